//! What ends a run: a signal or the time asked for.

use std::{future::Future, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep_until},
};

use crate::error::{Error, Result};

/// The signals that end a run: Ctrl-C, `kill`, and a closed terminal.
pub struct Signals([Signal; 3]);

impl Signals {
    /// From here on these signals no longer end the process by themselves.
    pub fn listen() -> Result<Self> {
        let listen =
            |kind| signal(kind).map_err(|error| Error::system("cannot catch signals", error));
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
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
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
