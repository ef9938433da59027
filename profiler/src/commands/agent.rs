//! `agent`: samples all the time, and hands each window to its destinations.

use std::{panic, sync::Arc, thread, time::Duration};

use rustix::process::geteuid;

use super::session::Session;
use crate::{
    cli::AgentArgs,
    error::{Error, Result},
    hardening::capabilities,
    invoker::Invoker,
    monitoring::{self, notify::Notifier},
    output::config::Parted,
    serve::Listen,
    stderr,
    units::Frequency,
    windows::{
        Windows,
        folder::{Folder, Keep},
    },
};

/// Samples a second, where none are asked for: off the beat of timers, and hardly to be noticed.
const DEFAULT_HZ: u64 = 19;

/// The shortest window.
const MIN_WINDOW: Duration = Duration::from_secs(1);

/// Samples until a signal ends it, writes the last window, and prints the ledger.
pub(super) fn run(mut args: AgentArgs, verbose: u8) -> Result<()> {
    let sampling = &mut args.sampling;
    if sampling.frequency.is_none() && sampling.period.is_none() {
        sampling.frequency = Some(Frequency::Hz(DEFAULT_HZ));
    }
    let keep = Keep { age: args.keep, bytes: args.keep_bytes };
    if args.window < MIN_WINDOW {
        return Err(Error::Usage("--window: at least a second".into()));
    }
    let folder = without_rights(|| Folder::open(&args.folder, keep))?;
    let port = open_port(&args)?;
    let mut session = Session::prepare(&args.sampling, Vec::new(), verbose)?;
    session.port = port;
    session.notifier = Notifier::find();
    // Containers are in windows.
    session.config.process.metadata = true;
    let windows = Arc::new(Windows::start(vec![Box::new(folder)], give_up_rights)?);
    let parted = Parted { length: args.window, to: Arc::clone(&windows) };
    session.config.worker.output.windows = Some(parted);
    let done = session.run(Vec::new(), None, |_, _| Ok(()));
    // However the run has ended.
    let (text, are_all_there) = windows.finish();
    if !are_all_there || !stderr::is_quiet() {
        stderr::write(&text);
    }
    done?;
    if are_all_there { Ok(()) } else { Err(Error::system("windows are missing", "see above")) }
}

/// Listens, before anything is loaded.
fn open_port(args: &AgentArgs) -> Result<Option<monitoring::Prepared>> {
    let Some(at) = args.listen.0 else { return Ok(None) };
    let own = geteuid();
    let invoker = Invoker::find().map(|it| it.uid());
    let user = invoker.or((!own.is_root()).then(|| own.as_raw()));
    let listen = Listen { at, allow_remote: args.allow_remote, user };
    let port = monitoring::Prepared::bind(listen)?;
    stderr::notice(&format!("metrics and health are at http://{}/", port.at()));
    Ok(Some(port))
}

/// Does something by a thread without capabilities, as whoever writes windows has none: what it can't write is told at once.
fn without_rights<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let work = || {
        give_up_rights();
        what()
    };
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|it| panic::resume_unwind(it))
}

fn give_up_rights() {
    if let Err(error) = capabilities::give_up() {
        stderr::notice(&format!("the thread that writes windows keeps its capabilities: {error}"));
    }
}
