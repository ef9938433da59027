//! What ends a run: a signal or the time asked for.

use std::{future::Future, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep_until},
};

use crate::error::{Error, Result};

/// The signals that end a run: Ctrl-C, `kill`, and a closed terminal. One that was ignored when we
/// were started, as `nohup` does it, stays so.
pub struct Signals([Option<Signal>; 3]);

impl Signals {
    /// From here on these signals no longer end the process by themselves.
    pub fn listen() -> Result<Self> {
        let listen = |kind: SignalKind| {
            if is_ignored(kind) {
                return Ok(None);
            }
            let signal = signal(kind).map(Some);
            signal.map_err(|error| Error::system("cannot catch signals", error))
        };
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the next of them.
    pub async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            () = receive(interrupt) => {}
            () = receive(terminate) => {}
            () = receive(hangup) => {}
        }
    }
}

async fn receive(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

fn is_ignored(kind: SignalKind) -> bool {
    // SAFETY: all zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `action` outlives the call, which changes nothing else.
    let asked = unsafe { libc::sigaction(kind.as_raw_value(), std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Waits until the time has passed; for ever if there is none.
pub fn after(duration: Option<Duration>) -> impl Future<Output = ()> {
    let end = duration.and_then(|duration| Instant::now().checked_add(duration));
    async move {
        match end {
            Some(end) => sleep_until(end).await,
            None => std::future::pending().await,
        }
    }
}
