//! What the profiler does without a subcommand: samples are printed as they come, or their sum at the end.

use super::{file_of, refuse_terminal, session::Session};
use crate::{
    cli::StreamArgs,
    error::Result,
    output::{Sink, config::Report},
};

/// Samples until the run ends, and prints the ledger.
pub(super) fn run(args: StreamArgs, verbose: u8) -> Result<()> {
    let report = match args.top {
        Some(n) => Report::Top(n as usize),
        None => Report::Samples(args.format),
    };
    let path = args.output.and_then(file_of);
    refuse_terminal(args.format, path.as_deref())?;
    let session = Session::prepare(args.sampling, vec![report], verbose)?;
    session.run(vec![Sink::open(path.as_deref())?], None, |_| Ok(()))
}
