//! The windows of a run that goes on for ever: when each ends, and what becomes of it.
//!
//! The naming thread hands each window to [`Windows`], which never waits: each destination has a thread and a queue of its
//! own, so that a slow one delays no other, and no sample. Every window has one fate at each destination, and a count for
//! it: see [`Fates`]. A [folder](folder) keeps windows here, and a [store](remote) is sent them.

mod fates;
pub mod folder;
pub mod remote;
mod schedule;

use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::Ordering,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use profiler_profile::{export::format::Options, ledger::Ledger, profile::Profile};

use self::fates::add;
pub use self::{
    fates::{Counts, Dropped, Fates},
    schedule::Schedule,
};
use crate::{
    error::{Error, Result},
    kernel, stderr,
};

/// Windows that wait for a destination may take as much memory as so many profiles may.
const MAX_FULL: u64 = 2;
/// So many of them may wait, where each takes less.
const MAX_WAITING: usize = 64;
/// How often it is said at most that a destination takes no windows.
const SAY_INTERVAL: Duration = Duration::from_secs(60);
/// How long the end of the run waits for the last windows.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// How long a destination may take to send what waits, at the end: less, so that what it has counted is told.
const FINISHES_WITHIN: Duration = Duration::from_secs(8);
const STEP: Duration = Duration::from_millis(5);

/// What was sampled in a window.
#[derive(Debug)]
pub struct Window {
    /// The samples.
    pub profile: Profile,
    /// What has become of each sample of it.
    pub ledger: Ledger,
    /// When it began, and how it is written.
    pub options: Options,
}

impl Window {
    /// The memory that its profile takes, and may take.
    fn bytes(&self) -> u64 {
        self.profile.account().bytes
    }

    fn limit_bytes(&self) -> u64 {
        self.profile.limit_bytes().try_into().unwrap_or(u64::MAX)
    }
}

/// Where windows go.
pub trait Destination: Send + 'static {
    /// What the user calls it.
    fn name(&self) -> String;

    /// Whether windows are sent over the network.
    fn is_remote(&self) -> bool {
        false
    }

    /// Takes a window, and counts what becomes of it.
    ///
    /// # Errors
    ///
    /// It is refused, for this reason.
    fn take(&mut self, window: &Window, counts: &Counts) -> Result<(), String>;

    /// Does some of what is left to do for windows that were taken; when to go on with that, if anything is left.
    fn go_on(&mut self, counts: &Counts) -> Option<Instant> {
        let _ = counts;
        None
    }

    /// Does what can be done of that before the run ends.
    fn finish(&mut self, counts: &Counts, until: Instant) {
        let _ = (counts, until);
    }
}

/// How it goes at a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What the user calls it.
    pub name: String,
    /// What has become of the windows so far.
    pub fates: Fates,
    /// Windows that wait, or are being taken.
    pub waiting: u64,
    /// For how long it has been taking one.
    pub busy_for: Duration,
}

/// The destinations of a run.
#[derive(Debug)]
pub struct Windows {
    queues: Mutex<Vec<Queue>>,
}

/// A destination, seen from outside.
#[derive(Debug)]
struct Queue {
    name: String,
    is_remote: bool,
    /// `None` when no more windows come.
    sender: Option<SyncSender<Arc<Window>>>,
    counts: Arc<Counts>,
    thread: JoinHandle<()>,
    /// When it was last said that it is too slow.
    said: Option<Instant>,
}

impl Windows {
    /// Starts a thread for each destination, which first does what takes its rights.
    ///
    /// # Errors
    ///
    /// A thread can't be started.
    pub fn start(destinations: Vec<Box<dyn Destination>>, prepare: fn()) -> Result<Self> {
        let start = |it| Queue::start(it, prepare);
        let queues = destinations.into_iter().map(start).collect::<Result<_>>()?;
        Ok(Self { queues: Mutex::new(queues) })
    }

    /// Hands a window to all destinations.
    pub fn hand_over(&self, window: Window) {
        let window = Arc::new(window);
        for queue in &mut *self.queues() {
            queue.put(&window);
        }
    }

    /// How it goes at each destination.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        let of = |it: &Queue| Progress {
            name: it.name.clone(),
            fates: it.counts.read(it.is_remote),
            waiting: it.counts.waiting.load(Ordering::Relaxed),
            busy_for: it.counts.busy_for(),
        };
        self.queues().iter().map(of).collect()
    }

    /// Waits until all destinations have taken what was handed over, but not for ever, and tells what has become of the
    /// windows, a line for each destination; and whether all of them are there.
    #[must_use]
    pub fn finish(&self) -> (String, bool) {
        let mut queues = self.queues();
        queues.iter_mut().for_each(|it| it.sender = None);
        let start = Instant::now();
        while start.elapsed() < ENDS_WITHIN && !queues.iter().all(|it| it.thread.is_finished()) {
            thread::sleep(STEP);
        }
        let (mut text, mut are_all_there) = (String::new(), true);
        for queue in &*queues {
            let fates = queue.counts.read(queue.is_remote);
            let is_settled = queue.counts.waiting.load(Ordering::Relaxed) == 0;
            let late = if is_settled { "" } else { "; the last was not taken in time" };
            // Writing to memory does not fail.
            let _ = writeln!(text, "windows for {}: {fates}{late}", queue.name);
            // What is in the spool is sent by the next run.
            are_all_there &= is_settled && fates.dropped.total() + fates.refused == 0;
        }
        (text, are_all_there)
    }

    /// Each change is whole as soon as it can be seen.
    fn queues(&self) -> std::sync::MutexGuard<'_, Vec<Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn start(destination: Box<dyn Destination>, prepare: fn()) -> Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(MAX_WAITING);
        let (name, is_remote) = (destination.name(), destination.is_remote());
        let counts = Arc::<Counts>::default();
        let of_thread = Arc::clone(&counts);
        let thread = thread::Builder::new()
            .name("windows".into())
            .spawn(move || {
                prepare();
                take_all(destination, &receiver, &of_thread);
            })
            .map_err(|error| Error::system("cannot start a thread", error))?;
        Ok(Self { name, is_remote, sender: Some(sender), counts, thread, said: None })
    }

    /// Has a window wait, where there is room.
    fn put(&mut self, window: &Arc<Window>) {
        let Some(sender) = &self.sender else { return };
        let (bytes, counts) = (window.bytes(), &self.counts);
        let room = window.limit_bytes().saturating_mul(MAX_FULL);
        // Only this thread adds to it, and it does before the other one can subtract.
        let waiting_bytes = counts.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        add(&counts.waiting, 1);
        let has_room = waiting_bytes.saturating_add(bytes) <= room;
        let sent = has_room.then(|| sender.try_send(Arc::clone(window)));
        if let Some(Ok(())) = sent {
            return;
        }
        counts.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        counts.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(Err(TrySendError::Disconnected(_))) = sent {
            add(&counts.refused, 1);
        } else {
            add(&counts.queue_full, 1);
            if is_due(&mut self.said) {
                stderr::say(&format!("a window was dropped: {} is too slow", self.name));
            }
        }
    }
}

fn take_all(
    mut destination: Box<dyn Destination>,
    windows: &Receiver<Arc<Window>>,
    counts: &Counts,
) {
    let mut said: Option<Instant> = None;
    let mut go_on = destination.go_on(counts);
    loop {
        let window = match go_on {
            None => windows.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => windows.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match window {
            Ok(window) => take(&mut *destination, &window, counts, &mut said),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        go_on = destination.go_on(counts);
    }
    destination.finish(counts, Instant::now() + FINISHES_WITHIN);
}

fn take(
    destination: &mut dyn Destination,
    window: &Window,
    counts: &Counts,
    said: &mut Option<Instant>,
) {
    counts.waiting_bytes.fetch_sub(window.bytes(), Ordering::Relaxed);
    counts.busy_since_ns.store(kernel::monotonic_ns(), Ordering::Relaxed);
    let taken = destination.take(window, counts);
    counts.busy_since_ns.store(0, Ordering::Relaxed);
    if let Err(why) = taken {
        add(&counts.refused, 1);
        if is_due(said) {
            stderr::say(&format!("a window is lost: {why}"));
        }
    }
    counts.waiting.fetch_sub(1, Ordering::Relaxed);
}

/// Whether it may be said again, from when it was said last; that is now, then.
fn is_due(said: &mut Option<Instant>) -> bool {
    let is_due = said.is_none_or(|it| it.elapsed() >= SAY_INTERVAL);
    if is_due {
        *said = Some(Instant::now());
    }
    is_due
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use profiler_profile::ledger::{KernelSide, PerCpuCount, Scope, memory::Memory};

    pub(crate) fn window() -> Window {
        let kernel = KernelSide {
            sources: Vec::new(),
            duration: Duration::from_secs(1),
            pids: Vec::new(),
            children: None,
            filters: Vec::new(),
            scope: Scope::default(),
            strangers: Arc::new(PerCpuCount::new(0, 0)),
            sideband_lost: 0,
            sideband_malformed: 0,
            unwinding: None,
            memory: Memory::default(),
        };
        let none = PerCpuCount::new(0, 0);
        let options = Options {
            kernel_stacks: true,
            user_stacks: true,
            names_events: false,
            begun_ns: 0,
            producer: "profiler",
            real_time_ahead_ns: 1_700_000_000_123_000_000,
            zone: jiff::tz::TimeZone::UTC,
            rendered_bytes: 1 << 10,
            timeline_bytes: 0,
            root: profiler_profile::export::root::Root::default(),
        };
        let least = Profile::new(0).account().bytes.try_into().unwrap();
        Window {
            profile: Profile::new(least),
            ledger: Ledger::settle(&kernel, &none, &none),
            options,
        }
    }

    /// Takes a window for each word that it is sent: whether it does.
    struct Slow(Receiver<bool>);

    impl Destination for Slow {
        fn name(&self) -> String {
            "a slow one".into()
        }

        fn take(&mut self, _: &Window, counts: &Counts) -> Result<(), String> {
            if !self.0.recv().unwrap() {
                return Err("full".into());
            }
            add(&counts.written, 1);
            add(&counts.bytes, 1000);
            Ok(())
        }
    }

    struct Quick;

    impl Destination for Quick {
        fn name(&self) -> String {
            "a quick one".into()
        }

        fn take(&mut self, _: &Window, counts: &Counts) -> Result<(), String> {
            add(&counts.written, 1);
            add(&counts.bytes, 10);
            Ok(())
        }
    }

    /// Until the first destination is taking a window.
    fn wait_until_busy(windows: &Windows) {
        while windows.progress()[0].busy_for == Duration::ZERO {
            thread::yield_now();
        }
    }

    #[test]
    fn nothing_is_said_twice_within_a_minute() {
        let mut said = None;
        assert!(is_due(&mut said) && !is_due(&mut said));
        said = Instant::now().checked_sub(SAY_INTERVAL);
        assert!(is_due(&mut said));
    }

    #[test]
    fn each_window_has_one_fate_and_a_slow_destination_delays_no_other() {
        let (words, given) = mpsc::channel();
        let windows = Windows::start(vec![Box::new(Slow(given)), Box::new(Quick)], || {}).unwrap();
        let written = |at: usize| windows.queues()[at].counts.read(false).written;
        for at in 1..=5 {
            windows.hand_over(window());
            while written(1) < at {
                thread::yield_now();
            }
        }
        // One is being taken, or will be, and two wait.
        let dropped = windows.queues()[0].counts.read(false).dropped.queue_full;
        assert!((2..=3).contains(&dropped), "{dropped}");
        let left = 5 - dropped;
        wait_until_busy(&windows);
        let [slow, quick] = &windows.progress()[..] else { panic!("two destinations") };
        assert_eq!((slow.name.as_str(), slow.waiting), ("a slow one", left));
        assert_eq!((quick.fates.written, quick.busy_for), (5, Duration::ZERO));
        words.send(false).unwrap();
        (1..left).for_each(|_| words.send(true).unwrap());
        let (text, are_all_there) = windows.finish();
        assert!(!are_all_there);
        let lines: Vec<&str> = text.lines().collect();
        let slow = format!("{} written ({} KiB), {dropped} dropped, 1 refused", left - 1, left - 1);
        assert_eq!(lines[0], format!("windows for a slow one: {slow}"));
        assert_eq!(lines[1], "windows for a quick one: 5 written (1 KiB), 0 dropped, 0 refused");
    }
}
