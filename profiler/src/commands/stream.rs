//! What the profiler does without a subcommand: samples are printed as they come, or their sum at the end.

use std::io::{IsTerminal as _, stdout};

use profiler_profile::export::format::Format;

use super::{file_of, refuse_terminal, session::Session};
use crate::{
    cli::StreamArgs,
    error::Result,
    output::{Sink, config::Report},
    stderr,
};

/// Samples until the run ends, and prints the ledger.
pub(super) fn run(args: StreamArgs, verbose: u8) -> Result<()> {
    let report = match args.top {
        Some(n) => Report::Top(n as usize),
        None => Report::Samples(args.format),
    };
    let path = args.output.and_then(file_of);
    // Whoever has asked for nothing may not know what there is.
    let is_asked = args.top.is_some() || args.sampling.duration.is_some() || path.is_some();
    let has_hint = !is_asked && args.format == <&Format>::default() && stdout().is_terminal();
    refuse_terminal(args.format, path.as_deref())?;
    let session = Session::prepare(args.sampling, vec![report], verbose)?;
    let sink = Sink::open(path.as_deref())?;
    if has_hint {
        stderr::notice(
            "samples are streamed until Ctrl-C; `profiler record` writes a profile, and `profiler report` shows it",
        );
    }
    session.run(vec![sink], None, |_| Ok(()))
}
