//! `agent`: samples all the time, and hands each window to its destinations.

use std::sync::Arc;

use super::session::Session;
use crate::{
    cli::AgentArgs,
    error::{Error, Result},
    output::config::Parted,
    stderr,
    units::Frequency,
    windows::{
        Windows,
        folder::{Folder, Keep},
    },
};

/// Samples a second, where none are asked for: off the beat of timers, and hardly to be noticed.
const DEFAULT_HZ: u64 = 19;

/// Samples until a signal ends it, writes the last window, and prints the ledger.
pub(super) fn run(mut args: AgentArgs, verbose: u8) -> Result<()> {
    let sampling = &mut args.sampling;
    if sampling.frequency.is_none() && sampling.period.is_none() {
        sampling.frequency = Some(Frequency::Hz(DEFAULT_HZ));
    }
    let keep = Keep { age: args.keep, bytes: args.keep_bytes };
    let folder = Folder::open(&args.folder, keep)?;
    let mut session = Session::prepare(sampling, Vec::new(), verbose)?;
    // Containers and units are in windows.
    session.config.process.metadata = true;
    let windows = Arc::new(Windows::start(vec![Box::new(folder)])?);
    let parted = Parted { length: args.window, to: Arc::clone(&windows) };
    session.config.worker.output.windows = Some(parted);
    let mut are_all_there = true;
    let done = session.run(Vec::new(), None, |_, _| {
        let (text, all) = windows.finish();
        stderr::write(&text);
        are_all_there = all;
        Ok(())
    });
    done?;
    if are_all_there { Ok(()) } else { Err(Error::system("windows are missing", "see above")) }
}
