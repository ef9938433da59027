//! The HTTP port of a run that goes on for ever: whether it is well, what it has counted, and profiles on request.
//!
//! A thread of its own answers. What only the run knows, it asks of the reader of the ring, which never waits for it.
//! Whether the run is well needs no answer of the reader: that is told without one, and tells when the reader stands still.

mod answers;
mod exposition;
mod health;
mod metrics;
pub(crate) mod notify;
mod profile;

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use profiler_profile::source::Source;
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::metrics::Snapshot;
use self::{answers::Site, health::Health};
use crate::{
    error::{Error, Result},
    hardening::capabilities,
    kernel,
    output::captures::Captures,
    queue::Depth,
    serve::{
        Listen,
        connections::Gate,
        listener::{advice, listen},
        server::Server,
    },
    stderr,
    windows::Windows,
    worker::told::Told,
};

/// A port that is listened on.
pub struct Prepared {
    listener: TcpListener,
    at: SocketAddr,
    user: Option<u32>,
    /// The settings that hold, as a file.
    config: String,
}

/// What the port tells of.
pub(crate) struct Run {
    /// What is sampled, by slot.
    pub(crate) sources: Vec<Arc<Source>>,
    /// Who takes profiles of it.
    pub(crate) captures: Option<Arc<Captures>>,
    /// What becomes of windows.
    pub(crate) windows: Option<Arc<Windows>>,
    /// What waits for its names.
    pub(crate) depth: Depth,
    /// What the naming thread has counted.
    pub(crate) told: Arc<Told>,
}

/// Somebody wants to know how the run is.
pub(crate) type Question = oneshot::Sender<Snapshot>;

/// The port, until this is dropped, as the reader of the ring has it.
pub(crate) struct Monitor {
    health: Arc<Health>,
    questions: mpsc::Receiver<Question>,
    _server: Server,
}

impl Prepared {
    /// Listens, for a run with these settings. What comes before [`start`](Self::start) waits.
    pub(crate) fn bind(listen_at: Listen, config: String) -> Result<Self> {
        let Listen { at, allow_remote, user } = listen_at;
        if !at.ip().is_loopback() && !allow_remote {
            return Err(Error::Usage(format!(
                "--listen {at}: other machines could connect, which --allow-remote allows"
            )));
        }
        let failed = |error: std::io::Error| {
            let advice = match advice(&error, at) {
                none if none.is_empty() => none,
                advice => format!("; {advice}, and --listen none does without"),
            };
            Error::Usage(format!("--listen {at}: {error}{advice}"))
        };
        let (listener, at) = listen(at).map_err(failed)?;
        Ok(Self { listener, at, user, config })
    }

    /// Where it listens.
    pub(crate) fn at(&self) -> SocketAddr {
        self.at
    }

    /// Answers from here on.
    pub(crate) fn start(self, run: Run) -> Result<Monitor> {
        let Self { listener, at, user, config } = self;
        let health = Arc::new(Health::new(run, kernel::monotonic_ns()));
        let (ask, questions) = mpsc::channel(1);
        let site = Arc::new(Site::new(at, user, config, Arc::clone(&health), ask));
        let answer = move |request, from, ended| {
            let site = Arc::clone(&site);
            async move { site.answer(&request, from, ended).await }
        };
        let rights = async {
            if let Err(error) = capabilities::give_up() {
                stderr::notice(&format!("the HTTP port's thread keeps its capabilities: {error}"));
            }
            std::future::pending::<()>().await;
        };
        let gate = Gate { user: None, port: at.port() };
        let server = Server::start("port", listener, gate, answer, rights)
            .map_err(|error| Error::system("cannot answer on the HTTP port", error))?;
        Ok(Monitor { health, questions, _server: server })
    }
}

impl Monitor {
    /// The reader has gone round.
    pub(crate) fn went_round(&self) {
        self.health.went_round(kernel::monotonic_ns());
    }

    /// Events are enabled.
    pub(crate) fn is_sampling(&self) {
        self.health.is_sampling();
    }
}

/// Waits until somebody asks.
pub(crate) async fn asked(monitor: &mut Option<Monitor>) -> Question {
    if let Some(monitor) = monitor
        && let Some(question) = monitor.questions.recv().await
    {
        return question;
    }
    std::future::pending().await
}
