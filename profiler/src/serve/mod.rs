//! A page that follows a run, for browsers: the page that `record` writes, with samples that are asked for.
//!
//! The socket listens before rights are dropped; who accepts connections is a thread that starts after that, with a
//! runtime of its own, since the reader of the ring must not wait for it. Whoever wants to see anything needs the
//! [token](access). Nothing is asked of the page but by GET, and nothing that it asks for changes anything.

pub(crate) mod access;
pub(crate) mod answers;
pub(crate) mod asked;
pub(crate) mod connections;
pub(crate) mod listener;
mod making;
mod patient;
mod port;
pub(crate) mod server;
mod sources;
mod ticks;

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use profiler_profile::{
    live::{Live, SLICE},
    source::Source,
};
use tokio::sync::watch;

use self::{access::Access, answers::Site, connections::Gate, server::Server, sources::Sources};
use crate::{
    error::{Error, Result},
    invoker::Invoker,
};

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
    /// The text of source files, where lines are known.
    texts: Option<Sources>,
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
            let advice = listener::advice(&error, at);
            Error::system_with(format!("cannot listen on {at}"), &error, advice)
        };
        let (listener, at) = listener::listen(at).map_err(failed)?;
        let access =
            Access::new(at).map_err(|error| Error::system("cannot read /dev/urandom", error))?;
        let window = window.as_nanos().div_ceil(SLICE.as_nanos());
        let window = u64::try_from(window).unwrap_or(u64::MAX).max(1);
        Ok(Self { listener, at, user, access, live, window, texts: None })
    }

    /// Also shows the lines of functions, with their text as far as this user may read it, or everybody.
    pub(crate) fn show_lines(&mut self, invoker: Option<&Invoker>) -> Result<()> {
        self.texts = Some(Sources::start(invoker)?);
        Ok(())
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
        let Self { listener, at, user, access, live, window, texts } = self;
        let (tell, told) = watch::channel(String::new());
        // What /proc says of a connection can only be asked for this address.
        let user = user
            .filter(|_| matches!(at.ip(), IpAddr::V4(it) if it == std::net::Ipv4Addr::LOCALHOST));
        let site = Arc::new(Site::new(live, sources, texts, access, window, told));
        let ticking = Arc::clone(&site);
        let ticks = async move { ticks::tell(&ticking, tell).await };
        let answer = move |request, _, ended| Arc::clone(&site).answer(request, ended);
        Server::start("serve", listener, Gate { user, port: at.port() }, answer, ticks)
            .map_err(|error| Error::system("cannot serve the page", error))
    }
}
