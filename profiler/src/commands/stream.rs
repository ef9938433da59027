//! What the profiler does without a subcommand: samples are printed as they come, or their sum at the end.

use std::io::{IsTerminal as _, stdout};

use profiler_profile::{export::format::Format, report::table};

use super::{columns, file_of, refuse_terminal, session::Session};
use crate::{
    cli::{By, StreamArgs},
    error::{Error, Result},
    output::{Sink, config::Report},
    stderr,
};

/// Samples until the run ends, and prints the ledger.
pub(super) fn run(args: StreamArgs, verbose: u8) -> Result<()> {
    let mut sampling = args.sampling;
    if args.by == By::Line && !sampling.lines {
        return Err(Error::Usage("--by line: add --lines".into()));
    }
    // Nothing else says which container a process is in.
    sampling.metadata |= [By::Container, By::Service].contains(&args.by);
    let path = args.output.and_then(file_of);
    let report = match args.top {
        Some(rows) => Report::Top(table::Options {
            by: args.by.into(),
            rows: Some(rows as usize),
            columns: columns().filter(|_| path.is_none()),
        }),
        None => Report::Samples(args.format),
    };
    // Whoever has asked for nothing may not know what there is.
    let is_asked = args.top.is_some() || sampling.duration.is_some() || path.is_some();
    let has_hint = !is_asked && args.format == <&Format>::default() && stdout().is_terminal();
    refuse_terminal(args.format, path.as_deref())?;
    let session = Session::prepare(&sampling, vec![report], verbose)?;
    let sink = Sink::open(path.as_deref())?;
    if has_hint {
        stderr::notice(
            "samples are streamed until Ctrl-C; `profiler record` writes a profile, and `profiler report` shows it",
        );
    }
    session.run(vec![sink], None, |_, _| Ok(()))
}
