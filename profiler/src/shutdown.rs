//! What is asked of a run from outside: to end, by a signal or after the time asked for, and to report.

use std::{
    future::{Future, poll_fn},
    task::Poll,
    time::Duration,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep_until},
};

use crate::error::{Error, Result};

/// The signals that end a run: Ctrl-C and Ctrl-\\, `kill`, a closed terminal, a timer, a limit of CPU time
/// (`ulimit -t`), and a power failure. One that was ignored when we were started, as `nohup` does it, stays
/// so. What is not here and not a [report](Reports) ends the process as it always does, without a ledger.
pub struct Signals(Vec<(i32, Signal)>);

/// The signals that ask for a report of a run that goes on.
pub struct Reports(Vec<(i32, Signal)>);

/// All that is asked of a run by signals.
pub struct Requests {
    /// To end.
    pub signals: Signals,
    /// To report.
    pub reports: Reports,
}

impl Requests {
    /// From here on no signal that a run heeds ends the process by itself. Those that come before the run begins are
    /// heeded then. Needs the context of a runtime.
    pub fn listen() -> Result<Self> {
        Ok(Self { signals: Signals::listen()?, reports: Reports::listen()? })
    }
}

impl Signals {
    const ALL: [i32; 7] = [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGALRM,
        libc::SIGXCPU,
        libc::SIGPWR,
    ];

    /// From here on these signals no longer end the process by themselves.
    /// Needs the context of a runtime.
    pub fn listen() -> Result<Self> {
        listen(&Self::ALL).map(Self)
    }

    /// Waits for the next of them; its number.
    pub async fn next(&mut self) -> i32 {
        next(&mut self.0).await
    }

    /// From here on they end the process again, until what is returned is [heeded](Heeded::again) again.
    pub fn end_again() -> Heeded {
        let heeded = Self::ALL.into_iter().filter(|it| !is_ignored(SignalKind::from_raw(*it)));
        Heeded(heeded.filter_map(|signal| Some((signal, end_by(signal)?))).collect())
    }
}

/// How signals were heeded.
pub struct Heeded(Vec<(i32, libc::sigaction)>);

impl Heeded {
    /// From here on these signals no longer end the process by themselves.
    pub fn again(self) {
        for (signal, action) in self.0 {
            // SAFETY: the action was that of this signal.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    }
}

/// Has a signal end the process; what it did before, if it is one.
fn end_by(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: all zeros are a valid `sigaction`: SIG_DFL.
    let (default, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: both outlive the call, and the default is no handler.
    let set = unsafe { libc::sigaction(signal, &raw const default, &raw mut before) };
    (set == 0).then_some(before)
}

impl Reports {
    /// From here on these signals no longer end the process.
    fn listen() -> Result<Self> {
        listen(&[libc::SIGUSR1, libc::SIGUSR2]).map(Self)
    }

    /// Waits for the next of them.
    pub async fn next(&mut self) {
        next(&mut self.0).await;
    }
}

fn listen(signals: &[i32]) -> Result<Vec<(i32, Signal)>> {
    let kinds = signals.iter().map(|it| SignalKind::from_raw(*it)).filter(|it| !is_ignored(*it));
    kinds
        .map(|kind| match signal(kind) {
            Ok(signal) => Ok((kind.as_raw_value(), signal)),
            Err(error) => Err(Error::system("cannot catch signals", error)),
        })
        .collect()
}

async fn next(signals: &mut [(i32, Signal)]) -> i32 {
    poll_fn(|context| {
        let come = signals
            .iter_mut()
            .find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
        come.map_or(Poll::Pending, Poll::Ready)
    })
    .await
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
