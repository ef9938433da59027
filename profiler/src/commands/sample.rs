//! Sampling: what the profiler does without a subcommand.

use super::privileges;
use crate::{
    agent,
    cli::{SamplingArgs, Strict},
    config::{Config, Machine},
    error::{Error, Result},
    limits,
    output::Sink,
    stderr,
};

/// Samples until the run ends, and prints the ledger.
pub(super) fn run(args: SamplingArgs, verbose: u8) -> Result<()> {
    limits::require_open_files()?;
    limits::memory::require()?;
    let strict = args.strict;
    let config = Config::resolve(args, verbose, &Machine::probe()?)?;
    privileges::require()?;
    let sink = Sink::open(config.output.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::system("cannot set up epoll", error))?;
    let (ledger, result) = runtime.block_on(agent::run(&config, sink))?;
    stderr::write(&ledger.table(verbose > 0));
    let lost = strict.map_or(0, |strict| match strict {
        Strict::Ours => ledger.lost_by_us(),
        Strict::All => ledger.lost_in_all(),
    });
    match result {
        // How the output ended says nothing of what came before.
        Err(error @ Error::Blocked { .. }) if lost > 0 => {
            stderr::say(&error.to_string());
            Err(Error::Lost(lost))
        }
        Ok(()) | Err(Error::BrokenPipe) if lost > 0 => Err(Error::Lost(lost)),
        result => result,
    }
}
