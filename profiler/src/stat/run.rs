//! Counting from the start to the end, with what is read on the way.

use std::{
    future::pending,
    os::fd::OwnedFd,
    pin::pin,
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{interval, sleep_until},
};

use super::{
    counters::{Counters, Reading},
    hotplug::Followed,
};
use crate::{
    error::{Error, Result},
    launch::Launch,
    process::watched::Watched,
    shutdown::{Signals, after},
    stderr,
};

/// How often it is looked whether processes that others have started are still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How often it is looked which CPUs are online.
const CPUS_INTERVAL: Duration = Duration::from_millis(250);

/// When to read, and when to end but for a signal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// End after this long.
    pub(crate) duration: Option<Duration>,
    /// Read each time that this has passed.
    pub(crate) interval: Option<Duration>,
}

/// What comes and goes while it is counted.
#[derive(Debug, Default)]
pub(crate) struct Watches<'a> {
    /// The processes and threads of `-p` and `-t`.
    pub(crate) tasks: Option<Watched>,
    /// CPUs.
    pub(crate) cpus: Option<Followed<'a>>,
}

/// What was counted in an interval, or in all of the time.
#[derive(Debug)]
pub(crate) struct Block {
    /// For each event of the plan.
    pub(crate) readings: Vec<Reading>,
    /// The end of it, since the start.
    pub(crate) at: Duration,
    /// How long it was.
    pub(crate) length: Duration,
}

/// How counting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// Whether a signal has come.
    pub(crate) was_signaled: bool,
    /// Whether what was counted has ended.
    pub(crate) has_ended: bool,
}

/// Counts until the command or all that is watched has ended, the time is over, or a signal comes that the command
/// does not get. What was counted goes to `each`: one block, or one for each interval.
pub(crate) async fn count(
    counters: &mut Counters,
    mut launch: Option<&mut Launch>,
    watches: Watches<'_>,
    times: Times,
    signals: &mut Signals,
    mut each: impl FnMut(Block) -> Result<()>,
) -> Result<End> {
    let command = launch.as_ref().map(|it| Exit::of(it.pid())).transpose()?;
    if !counters.begin_on_exec() {
        counters.enable()?;
    }
    let start = Instant::now();
    launch.as_mut().map_or(Ok(()), |it| it.execute())?;
    let Watches { tasks, cpus: mut followed } = watches;
    let mut over = pin!(has_ended(command, tasks));
    let mut look = interval(CPUS_INTERVAL);
    let mut late = pin!(after(times.duration));
    let (mut read, mut next) = (start, times.interval.and_then(|it| start.checked_add(it)));
    let (mut was_signaled, mut has_ended) = (false, false);
    let mut block = |counters: &mut Counters, now: Instant| {
        let readings = counters.take()?;
        let length = now.saturating_duration_since(std::mem::replace(&mut read, now));
        each(Block { readings, at: now.saturating_duration_since(start), length })
    };
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => {
                was_signaled = true;
                if !launch.as_mut().is_some_and(|it| it.signal(signal)) {
                    break;
                }
            }
            () = &mut over => {
                has_ended = true;
                break;
            }
            () = &mut late => break,
            _ = look.tick(), if followed.is_some() => {
                if let Some(changes) = followed.as_mut().map(|it| it.look(counters)).transpose()? {
                    changes.notices("counted").for_each(|it| stderr::notice(&it));
                }
            }
            () = until(next) => {
                block(counters, Instant::now())?;
                next = times.interval.and_then(|it| following(start, it, start.elapsed()));
            }
        }
    }
    let end = Instant::now();
    counters.disable()?;
    block(counters, end)?;
    Ok(End { elapsed: end.saturating_duration_since(start), was_signaled, has_ended })
}

/// The next end of an interval. They are counted from the start, so that being late once makes none of the others late;
/// what is missed altogether is left out.
fn following(start: Instant, interval: Duration, elapsed: Duration) -> Option<Instant> {
    let passed = elapsed.as_nanos().checked_div(interval.as_nanos())?;
    let next_ns = interval.as_nanos().checked_mul(passed.checked_add(1)?)?;
    start.checked_add(Duration::from_nanos(u64::try_from(next_ns).ok()?))
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => pending().await,
    }
}

/// Waits until the command has ended, or all that is watched; for ever if there is neither.
async fn has_ended(command: Option<Exit>, watched: Option<Watched>) {
    match (command, watched) {
        (Some(command), _) => command.wait().await,
        (None, Some(mut watched)) => {
            let mut look = interval(LOOK_INTERVAL);
            while !watched.is_empty() {
                look.tick().await;
                watched.take_ended();
            }
        }
        (None, None) => pending().await,
    }
}

/// The end of a process, to be waited for.
struct Exit(AsyncFd<OwnedFd>);

impl Exit {
    /// That of a child which nobody has waited for.
    fn of(pid: u32) -> Result<Self> {
        let failed = |error: std::io::Error| Error::system("cannot wait for the command", error);
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH);
        let fd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let fd = fd.map_err(|error| failed(error.into()))?;
        // SAFETY: the descriptor is open until it is dropped with its registration.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        fd.map(Self).map_err(|error| failed(error.into()))
    }

    async fn wait(&self) {
        if self.0.readable().await.is_err() {
            // The runtime is ending.
            pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_end_at_multiples_since_the_start() {
        let (start, interval) = (Instant::now(), Duration::from_millis(100));
        let next = |ms| following(start, interval, Duration::from_millis(ms));
        let at = |ms| Some(start + Duration::from_millis(ms));
        assert_eq!((next(0), next(101), next(199)), (at(100), at(200), at(200)));
        // One was missed.
        assert_eq!(next(350), at(400));
        assert_eq!(following(start, Duration::ZERO, interval), None);
    }
}
