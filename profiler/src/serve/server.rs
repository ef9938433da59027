//! A thread that answers connections, beside a run.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hyper::{Request, Response, body::Incoming};
use tokio::sync::{oneshot, watch};

use super::{
    answers::Body,
    connections::{self, Gate},
};
use crate::stderr;

/// How long the end of a run waits for those who are being answered.
const LEFT_WITHIN: Duration = Duration::from_secs(2);
const LEFT_STEP: Duration = Duration::from_millis(5);
/// How many threads make answers, which takes time on a machine with many stacks.
const MAKERS: usize = 2;

/// What is served, until this is dropped.
pub(crate) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the thread, with a runtime of its own. `beside` is done meanwhile; if it ends, so does all.
    ///
    /// An answer is made of a request, of who asks, and of what tells that the run has ended.
    pub(crate) fn start<A, F, B>(
        name: &'static str,
        listener: TcpListener,
        gate: Gate,
        answer: A,
        beside: B,
    ) -> io::Result<Self>
    where
        A: Fn(Request<Incoming>, SocketAddr, watch::Receiver<bool>) -> F + Clone + Send + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
        B: Future<Output = ()> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAKERS)
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            let served = runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                tokio::select! {
                    () = beside => {}
                    () = connections::accept(listener, answer, gate, stopped) => {}
                }
                Ok::<_, io::Error>(())
            });
            // Those who make answers for nobody need not be waited for.
            runtime.shutdown_background();
            if let Err(error) = served {
                stderr::say(&format!("nobody is answered: {error}"));
            }
        };
        let thread = thread::Builder::new().name(name.into()).spawn(serve)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
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
