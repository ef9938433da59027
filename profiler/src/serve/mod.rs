//! A page that follows a run, for browsers: the page that `record` writes, with samples that are asked for.
//!
//! The socket listens before rights are dropped; who accepts connections is a thread that starts after that, with a
//! runtime of its own, since the reader of the ring must not wait for it. Whoever wants to see anything needs the
//! [token](access). Nothing is asked of the page but by GET, and nothing that it asks for changes anything.

mod access;
mod answers;
mod asked;
mod connections;
mod making;
mod patient;
mod port;
mod ticks;

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use profiler_profile::{
    live::{Live, SLICE},
    source::Source,
};
use tokio::sync::{oneshot, watch};

use self::{access::Access, answers::Site};
use crate::{
    error::{Error, Result},
    stderr,
};

/// How long the end of a run waits for browsers that are being answered.
const LEFT_WITHIN: Duration = Duration::from_secs(2);
const LEFT_STEP: Duration = Duration::from_millis(5);
/// How many threads make answers, which takes time on a machine with many stacks.
const MAKERS: usize = 2;

/// Where to serve, and for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen {
    /// The address.
    pub(crate) at: SocketAddr,
    /// Whether other machines may be able to connect.
    pub(crate) allow_remote: bool,
    /// On this machine only this user may connect, and root; whoever knows the token if `None`.
    pub(crate) user: Option<u32>,
}

/// A page that can be served.
pub struct Prepared {
    listener: TcpListener,
    at: SocketAddr,
    user: Option<u32>,
    access: Access,
    live: Arc<Live>,
    /// How many slices the page shows at first.
    window: u64,
}

impl Prepared {
    /// Listens. What comes before [`start`](Self::start) waits.
    pub(crate) fn bind(listen: Listen, live: Arc<Live>, window: Duration) -> Result<Self> {
        let Listen { at, allow_remote, user } = listen;
        if !at.ip().is_loopback() && !allow_remote {
            return Err(Error::Usage(format!(
                "--listen {at}: other machines could connect, which --allow-remote allows; to see the page on another \
                 machine without that, forward the port by ssh -L"
            )));
        }
        let failed = |error: io::Error| {
            Error::system_with(format!("cannot listen on {at}"), &error, advice(&error, at))
        };
        let listener = TcpListener::bind(at).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let access =
            Access::new(at).map_err(|error| Error::system("cannot read /dev/urandom", error))?;
        let window = window.as_nanos().div_ceil(SLICE.as_nanos());
        let window = u64::try_from(window).unwrap_or(u64::MAX).max(1);
        Ok(Self { listener, at, user, access, live, window })
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.at.port()
    }

    /// Whether other machines may be able to connect.
    pub(crate) fn is_remote(&self) -> bool {
        !self.at.ip().is_loopback()
    }

    /// What to type into a browser. It holds the token.
    pub(crate) fn address(&self) -> String {
        format!("http://{}/?token={}", self.host(), self.access.token())
    }

    /// An address that leads to the page, once: for a command line, which other users may see.
    pub(crate) fn ticket(&self) -> io::Result<String> {
        Ok(format!("http://{}/?ticket={}", self.host(), self.access.new_ticket()?))
    }

    /// What a browser can reach it by.
    fn host(&self) -> String {
        if self.at.ip().is_unspecified() {
            let machine = rustix::system::uname();
            return format!("{}:{}", machine.nodename().to_string_lossy(), self.at.port());
        }
        self.at.to_string()
    }

    /// Serves what is sampled of these sources, by slot.
    pub(crate) fn start(self, sources: Vec<Arc<Source>>) -> Result<Server> {
        let failed = |error: io::Error| Error::system("cannot serve the page", error);
        let Self { listener, at, user, access, live, window } = self;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAKERS)
            .build()
            .map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = watch::channel(String::new());
        // What /proc says of a connection can only be asked for this address.
        let user = user
            .filter(|_| matches!(at.ip(), IpAddr::V4(it) if it == std::net::Ipv4Addr::LOCALHOST));
        let site = Arc::new(Site::new(live, sources, access, window, told));
        let serve = move || {
            let served = runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let gate = connections::Gate { user, port: at.port() };
                tokio::select! {
                    () = ticks::tell(&site, tell) => {}
                    () = connections::accept(listener, &site, gate, stopped) => {}
                }
                Ok::<_, io::Error>(())
            });
            // Those who make answers for nobody need not be waited for.
            runtime.shutdown_background();
            if let Err(error) = served {
                stderr::say(&failed(error).to_string());
            }
        };
        let thread = thread::Builder::new().name("serve".into()).spawn(serve).map_err(failed)?;
        Ok(Server { stop: Some(stop), thread: Some(thread) })
    }
}

/// What to do where a socket can't be had.
fn advice(error: &io::Error, at: SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let who = port::owner(at.port());
            let who = who.map_or_else(String::new, |it| format!("{it} listens there; "));
            format!("{who}--listen 127.0.0.1:0 takes any port that is free")
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: `ip address` lists those it has".into()
        }
        _ => String::new(),
    }
}

/// A page that is served, until this is dropped.
pub(crate) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended by itself.
            let _ = stop.send(());
        }
        let Some(thread) = self.thread.take() else { return };
        let start = Instant::now();
        while !thread.is_finished() && start.elapsed() < LEFT_WITHIN {
            thread::sleep(LEFT_STEP);
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}
