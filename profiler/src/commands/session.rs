//! What every run has, whatever it writes.

use profiler_profile::ledger::Ledger;
use tokio::runtime::Runtime;

use super::privileges;
use crate::{
    agent::{self, Audience},
    cli::{SamplingArgs, Strict},
    config::{Config, Machine},
    error::{Error, Result},
    launch::Launch,
    limits,
    monitoring::{self, notify::Notifier},
    output::{Sink, config::Report},
    serve,
    shutdown::Requests,
    stderr, top,
};

/// A run that can start.
pub(super) struct Session {
    pub(super) config: Config,
    /// Who has the terminal while it goes on.
    pub(super) screen: Option<top::Prepared>,
    /// What is served while it goes on.
    pub(super) page: Option<serve::Prepared>,
    /// Where it tells how it is.
    pub(super) port: Option<monitoring::Prepared>,
    /// Who tells systemd.
    pub(super) notifier: Option<Notifier>,
    runtime: Runtime,
    requests: Requests,
    strict: Option<Strict>,
    verbose: u8,
}

impl Session {
    /// Checks whether the run is possible. If it is, signals no longer end the process: what the caller makes for the
    /// run is not left behind.
    pub(super) fn prepare(args: &SamplingArgs, reports: Vec<Report>, verbose: u8) -> Result<Self> {
        limits::require_open_files()?;
        limits::memory::require()?;
        let strict = args.strict;
        let config = Config::resolve(args, reports, verbose, &Machine::probe()?)?;
        privileges::require()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::system("cannot set up epoll", error))?;
        let requests = {
            let _context = runtime.enter();
            Requests::listen()?
        };
        let (screen, page, port, notifier) = (None, None, None, None);
        Ok(Self { config, screen, page, port, notifier, runtime, requests, strict, verbose })
    }

    /// Samples until the run ends; `finish` is what is to be done before the ledger is printed, if outputs are whole,
    /// other than those that the ledger names.
    pub(super) fn run(
        self,
        sinks: Vec<Sink>,
        mut launch: Option<&mut Launch>,
        finish: impl FnOnce(&Ledger, Option<&Launch>) -> Result<()>,
    ) -> Result<()> {
        let Self { config, screen, page, port, notifier, runtime, requests, strict, verbose } =
            self;
        let audience = Audience { screen, page, port, notifier };
        let run = agent::run(&config, requests, sinks, launch.as_deref_mut(), audience);
        let (ledger, result) = runtime.block_on(run)?;
        let result = result
            .and_then(|()| finish(&ledger, launch.as_deref()))
            .and_then(|()| all_written(&ledger));
        let lost =
            if strict == Some(Strict::All) { ledger.lost_in_all() } else { ledger.lost_by_us() };
        if lost > 0 || !stderr::is_quiet() {
            stderr::write(&ledger.table(verbose > 0));
        }
        judge(lost, strict, result)
    }
}

/// Fails if an output was left out, which was said when that happened.
fn all_written(ledger: &Ledger) -> Result<()> {
    if ledger.unwritten.is_empty() {
        return Ok(());
    }
    let paths: Vec<_> = ledger.unwritten.iter().map(|it| it.display().to_string()).collect();
    Err(Error::system("not written", paths.join(", ")))
}

/// How the run ended, where so many samples were lost.
fn judge(lost: u64, strict: Option<Strict>, result: Result<()>) -> Result<()> {
    let lost = if strict.is_some() { lost } else { 0 };
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
