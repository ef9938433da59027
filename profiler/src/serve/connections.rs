//! Connections: who may have one, how many there are, and how long each may take.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{answers::Body, patient::Patient};
use crate::viewer::peer;

/// How many there are at once: a browser has up to six for each window; others are closed.
const CONNECTIONS: usize = 64;
/// For how long a browser may say nothing, and take nothing.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
const WRITE_WITHIN: Duration = Duration::from_secs(10);
/// How long a request's head may be, and how many headers it may have: what is longer is answered with 431.
const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// After a connection could not be accepted, as when there are no files left.
const PAUSE: Duration = Duration::from_millis(50);
/// How long answers may still take when the run has ended.
const END_WITHIN: Duration = Duration::from_millis(500);

/// Who may connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    /// Only this user of this machine, and root.
    pub(crate) user: Option<u32>,
    /// The port that is listened on.
    pub(crate) port: u16,
}

impl Gate {
    /// Whether it is open for who is at the other end.
    fn lets(self, from: SocketAddr) -> bool {
        let Some(user) = self.user else { return true };
        matches!(from.ip(), IpAddr::V4(_))
            && peer::uid(from.port(), self.port).is_some_and(|uid| uid == user || uid == 0)
    }
}

/// Accepts connections until it is told to stop, and ends them.
pub(super) async fn accept<A, F>(
    listener: TcpListener,
    answer: A,
    gate: Gate,
    stopped: oneshot::Receiver<()>,
) where
    A: Fn(Request<Incoming>, SocketAddr, watch::Receiver<bool>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let (end, ended) = watch::channel(false);
    let mut open = JoinSet::new();
    let accepting = async {
        loop {
            while open.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, from)) if open.len() < CONNECTIONS && gate.lets(from) => {
                    open.spawn(serve(stream, from, answer.clone(), ended.clone()));
                }
                Ok(_) => {}
                Err(_) => sleep(PAUSE).await,
            }
        }
    };
    tokio::select! {
        _ = stopped => {}
        () = accepting => {}
    }
    end.send_replace(true);
    let all = async { while open.join_next().await.is_some() {} };
    // Whoever takes longer is cut off.
    let _ = timeout(END_WITHIN, all).await;
}

/// Serves one connection to its end.
async fn serve<A, F>(
    stream: TcpStream,
    from: SocketAddr,
    answer: A,
    mut ended: watch::Receiver<bool>,
) where
    A: Fn(Request<Incoming>, SocketAddr, watch::Receiver<bool>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let to = ended.clone();
    let answer = service_fn(move |request| {
        let answer = answer(request, from, to.clone());
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let stream = TokioIo::new(Patient::new(stream, WRITE_WITHIN));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(stream, answer);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // Whoever has gone wants nothing.
        _ = connection.as_mut() => return,
        _ = ended.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
