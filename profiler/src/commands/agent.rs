//! `agent`: samples all the time, and hands each window to its destinations.

use std::{
    env, ffi::OsString, fs::File, io::Read as _, panic, path::Path, process::ExitCode, sync::Arc,
    thread, time::Duration,
};

use clap::Parser as _;
use rustix::process::geteuid;

use super::{answer, session::Session, stores};
use crate::{
    cli::{AgentArgs, Cli, Command, settings},
    error::{Error, Result},
    hardening::capabilities,
    invoker::Invoker,
    monitoring::{self, notify::Notifier},
    output::{captures::Captures, config::Parted},
    serve::Listen,
    stderr,
    windows::{
        Destination, Windows,
        folder::{Folder, Keep},
    },
};

/// The shortest window.
const MIN_WINDOW: Duration = Duration::from_secs(1);
/// The folder where windows are written to none.
const NO_FOLDER: &str = "none";
/// No file with settings is longer.
const MAX_CONFIG: u64 = 1 << 20;

/// Finds out what holds, and prints it, or samples by it.
pub(super) fn run(typed: &AgentArgs, verbose: u8) -> Result<ExitCode> {
    let words: Vec<OsString> = env::args_os().collect();
    let words = match &typed.config {
        None => settings::settled(&words, None),
        Some(path) => {
            let text = read_config(path).map_err(|error| {
                Error::Usage(format!("--config: cannot read {}: {error}", path.display()))
            })?;
            let name = path.to_string_lossy();
            settings::settled(&words, Some(settings::File { name: &name, text: &text }))
        }
    };
    let words = words.map_err(Error::Usage)?;
    if typed.print_config {
        return Ok(answer(&settings::shown(&words)));
    }
    let Ok(Cli { command: Some(Command::Agent(args)), quiet, .. }) = Cli::try_parse_from(&words)
    else {
        return Err(Error::Usage("the settings are not those of `agent`".into()));
    };
    if quiet {
        stderr::be_quiet();
    }
    sample(&args, settings::shown(&words), verbose).map(|()| ExitCode::SUCCESS)
}

fn read_config(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_CONFIG).read_to_string(&mut text)?;
    Ok(text)
}

/// Samples until a signal ends it, writes the last window, and prints the ledger.
fn sample(args: &AgentArgs, config: String, verbose: u8) -> Result<()> {
    let keep = Keep { age: args.keep, bytes: args.keep_bytes };
    if args.window < MIN_WINDOW {
        return Err(Error::Usage("--window: at least a second".into()));
    }
    let destinations = without_rights(|| open_destinations(args, keep))?;
    let port = open_port(args, config)?;
    let mut session = Session::prepare(&args.sampling, Vec::new(), verbose)?;
    session.notifier = Notifier::find();
    // Containers are in windows.
    session.config.process.metadata = true;
    let windows = Arc::new(Windows::start(destinations, give_up_rights)?);
    let output = &mut session.config.worker.output;
    let captures = port.as_ref().map(|_| Arc::new(Captures::new(output.profile_bytes)));
    output.windows = Some(Parted { length: args.window, to: Arc::clone(&windows), captures });
    session.port = port;
    let done = session.run(Vec::new(), None, |_, _| Ok(()));
    // However the run has ended.
    let (text, are_all_there) = windows.finish();
    if !are_all_there || !stderr::is_quiet() {
        stderr::write(&text);
    }
    done?;
    if are_all_there { Ok(()) } else { Err(Error::system("windows are missing", "see above")) }
}

/// The folder, and the stores.
fn open_destinations(args: &AgentArgs, keep: Keep) -> Result<Vec<Box<dyn Destination>>> {
    let path = Some(&*args.folder).filter(|it| *it != Path::new(NO_FOLDER));
    let mut destinations: Vec<Box<dyn Destination>> = Vec::new();
    if let Some(path) = path {
        destinations.push(Box::new(Folder::open(path, keep)?));
    }
    destinations.extend(stores::open(&args.sending, path)?);
    if destinations.is_empty() {
        return Err(Error::Usage(
            "--folder none: no store is named that windows are sent to".into(),
        ));
    }
    Ok(destinations)
}

/// Listens, before anything is loaded.
fn open_port(args: &AgentArgs, config: String) -> Result<Option<monitoring::Prepared>> {
    let Some(at) = args.listen.0 else { return Ok(None) };
    let own = geteuid();
    let invoker = Invoker::find().map(|it| it.uid());
    let user = invoker.or((!own.is_root()).then(|| own.as_raw()));
    let listen = Listen { at, allow_remote: args.allow_remote, user };
    let port = monitoring::Prepared::bind(listen, config)?;
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
