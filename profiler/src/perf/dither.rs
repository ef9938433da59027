//! Moves the sampling times, so that no program keeps step with them.
//!
//! A timer that fires every 10 ms sees a loop that takes 10 ms at one place only. So each CPU begins at a
//! phase of its own, and its period is moved again and again, by 5 to 10 % up or down.
//!
//! `PERF_EVENT_IOC_PERIOD` takes effect at once: the kernel starts the timer again with the whole new
//! period, and what had passed of the old one is lost
//! (<https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c>, `__perf_event_period` and
//! `perf_swevent_start_hrtimer`). So it is done right after the event has fired. When that is, follows from
//! when the timer was last started. The eBPF program measures what each sample stands for.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    num::NonZeroU64,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, JoinHandle},
    time::Duration,
};

use perf_event_open_sys as sys;
use rustix::{
    fs::Timespec,
    thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack},
};

use crate::{
    bpf,
    error::{Error, Result},
    kernel,
};

/// The shortest period that is moved. At a shorter one the event would have fired again before the thread
/// is awake.
pub(super) const MIN_PERIOD_NS: u64 = 100_000;
/// By how much a period is moved, in thousandths. Less would leave the samples of a turn close together.
const MOVED: (u64, u64) = (50, 100);
/// Samples for which a period stays, at least and at most: they have to fall all over a cycle as long as the
/// period.
const SAMPLES: (u64, u64) = (8, 14);
/// At high rates a period stays longer, since each move costs an interrupt of the CPU.
const MIN_TURN_NS: u64 = 40_000_000;
/// How long after the event the timer is started again: by then it has fired.
const LAG_NS: u64 = 30_000;
/// When the thread is later than this part of a period, it waits for the next sample.
const LATE: u64 = 4;
/// After so many samples in vain, as on a busy machine, the period stays for another turn.
const TRIES: u32 = 8;
/// Longer waits can be broken off.
const PRECISE: Duration = Duration::from_millis(2);

/// The thread that moves the periods. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Dither {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    turns: BTreeMap<u32, Turn>,
    random: Random,
    periods: Periods,
    over: bool,
}

/// A CPU's event, and how it fires now.
#[derive(Debug)]
struct Turn {
    /// Closed by its owner, when the CPU is gone.
    event: Weak<OwnedFd>,
    started_ns: u64,
    period_ns: u64,
    /// When its period is moved: a little after a sample.
    due_ns: u64,
    tries: u32,
}

/// Where the eBPF program finds the period of each CPU.
struct Periods {
    map: bpf::periods::Periods,
    nominal_ns: u64,
}

impl Dither {
    /// Starts the thread, for events of this period.
    pub(super) fn start(map: bpf::periods::Periods, nominal_ns: u64) -> Result<Self> {
        let state = State {
            turns: BTreeMap::new(),
            random: Random::new(),
            periods: Periods { map, nominal_ns },
            over: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("dither".into())
            .spawn(move || of_thread.run())
            .map_err(|error| Error::system("cannot start the thread that moves periods", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Has the event begin at a phase of its own, and moves its period from then on. The event is about to
    /// be enabled.
    pub(super) fn add(&self, cpu: u32, event: &Arc<OwnedFd>) -> Result<()> {
        let mut state = self.shared.lock();
        // Between a half and three halves: all phases are alike.
        let nominal_ns = state.periods.nominal_ns;
        let period_ns = nominal_ns / 2 + state.random.below(nominal_ns);
        state.periods.set(cpu, event, period_ns).map_err(|error| {
            Error::system(format!("PERF_EVENT_IOC_PERIOD on the event of CPU {cpu}"), error)
        })?;
        let started_ns = kernel::monotonic_ns();
        let mut turn =
            Turn { event: Arc::downgrade(event), started_ns, period_ns, due_ns: 0, tries: 0 };
        turn.wait_for(1, started_ns);
        state.turns.insert(cpu, turn);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Moves the periods of all events around another one from now on.
    pub(super) fn set_nominal(&self, period_ns: u64) -> Result<()> {
        let mut state = self.shared.lock();
        let State { turns, periods, .. } = &mut *state;
        periods.nominal_ns = period_ns;
        for (&cpu, turn) in turns {
            let Some(event) = turn.event.upgrade() else { continue };
            periods.set(cpu, &event, period_ns).map_err(|error| {
                Error::system(format!("PERF_EVENT_IOC_PERIOD on the event of CPU {cpu}"), error)
            })?;
            let now_ns = kernel::monotonic_ns();
            (turn.period_ns, turn.started_ns) = (period_ns, now_ns);
            turn.wait_for(1, now_ns);
        }
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl Drop for Dither {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        wake_precisely();
        let mut state = self.lock();
        while !state.over {
            state.turns.retain(|_, turn| turn.event.strong_count() > 0);
            let next = state.turns.iter().min_by_key(|(_, turn)| turn.due_ns);
            let Some((&cpu, turn)) = next else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let due_ns = turn.due_ns;
            let left = Duration::from_nanos(due_ns.saturating_sub(kernel::monotonic_ns()));
            if left > PRECISE {
                let wait = self.changed.wait_timeout(state, left.saturating_sub(PRECISE / 2));
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(state);
            sleep_until(due_ns);
            state = self.lock();
            state.move_period(cpu);
        }
    }
}

impl State {
    fn move_period(&mut self, cpu: u32) {
        let Self { turns, random, periods, .. } = self;
        let Some(turn) = turns.get_mut(&cpu) else { return };
        let Some(event) = turn.event.upgrade() else { return };
        let now_ns = kernel::monotonic_ns();
        let samples = stay(periods.nominal_ns, random);
        if turn.since_sample(now_ns) > turn.period_ns / LATE {
            turn.tries += 1;
            if turn.tries < TRIES {
                turn.wait_for(1, now_ns);
            } else {
                turn.tries = 0;
                turn.wait_for(samples, now_ns);
            }
            return;
        }
        let period_ns = moved(periods.nominal_ns, random);
        // A CPU that is just going offline takes none; its event goes with it.
        let is_set = periods.set(cpu, &event, period_ns).is_ok();
        let now_ns = kernel::monotonic_ns();
        if is_set {
            turn.period_ns = period_ns;
            turn.started_ns = now_ns;
        }
        turn.tries = 0;
        turn.wait_for(samples, now_ns);
    }
}

impl Turn {
    /// What has passed since the event has fired.
    fn since_sample(&self, now_ns: u64) -> u64 {
        let since_start = now_ns.saturating_sub(self.started_ns);
        since_start.checked_rem(self.period_ns).unwrap_or(0)
    }

    /// Is due after so many more samples.
    fn wait_for(&mut self, samples: u64, now_ns: u64) {
        let since_sample_ns = self.since_sample(now_ns);
        let wait_ns = samples.saturating_mul(self.period_ns).saturating_sub(since_sample_ns);
        let lag_ns = LAG_NS.min(self.period_ns / LATE / 2);
        self.due_ns = now_ns.saturating_add(wait_ns).saturating_add(lag_ns);
    }
}

impl Periods {
    /// Sets the period of an event, and tells the eBPF program before: by what it is told, it sees
    /// whether samples were missed.
    fn set(&mut self, cpu: u32, event: &OwnedFd, period_ns: u64) -> io::Result<()> {
        self.map.set(cpu, period_ns).map_err(io::Error::other)?;
        // The kernel wants the address of the period.
        let at = (&raw const period_ns) as u64;
        // SAFETY: the ioctl reads the period, which outlives the call.
        let result = unsafe { sys::ioctls::PERIOD(event.as_raw_fd(), at) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Periods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Periods").field("nominal_ns", &self.nominal_ns).finish_non_exhaustive()
    }
}

/// A period that is moved from the nominal one.
fn moved(nominal_ns: u64, random: &mut Random) -> u64 {
    let (least, most) = MOVED;
    let thousandth = nominal_ns / 1000;
    let by = thousandth * least + random.below(thousandth * (most - least) + 1);
    if random.below(2) == 0 { nominal_ns - by } else { nominal_ns + by }
}

/// For how many samples a period is to stay.
fn stay(nominal_ns: u64, random: &mut Random) -> u64 {
    let (least, most) = SAMPLES;
    let enough = MIN_TURN_NS.div_ceil(nominal_ns.max(1)).max(least);
    enough + random.below(most - least + 1)
}

/// Numbers that nobody has to guess, and that differ from run to run: xorshift.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(RandomState::new().build_hasher().finish() | 1)
    }

    /// A number below `limit`, or 0.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11).checked_rem(limit).unwrap_or(0)
    }
}

/// By default the kernel may wake a thread 50 µs late.
fn wake_precisely() {
    let _ = set_current_timer_slack(Some(NonZeroU64::MIN));
}

fn sleep_until(time_ns: u64) {
    let until = Timespec {
        tv_sec: i64::try_from(time_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(time_ns % 1_000_000_000).unwrap_or(0),
    };
    // When a signal ends it early, that shows in the time.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(started_ns: u64, period_ns: u64) -> Turn {
        Turn { event: Weak::new(), started_ns, period_ns, due_ns: 0, tries: 0 }
    }

    #[test]
    fn it_is_due_a_little_after_a_sample() {
        let mut turn = turn(1_000_000, 10_000_000);
        // Half a period after the third sample.
        let now_ns = 36_000_000;
        assert_eq!(turn.since_sample(now_ns), 5_000_000);
        turn.wait_for(1, now_ns);
        assert_eq!(turn.due_ns, 41_000_000 + LAG_NS);
        turn.wait_for(9, now_ns);
        assert_eq!(turn.due_ns, 121_000_000 + LAG_NS);
        turn.wait_for(9, 1_000_000);
        assert_eq!(turn.due_ns, 91_000_000 + LAG_NS);
    }

    #[test]
    fn random_numbers_are_spread() {
        let mut random = Random::new();
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[usize::try_from(random.below(10)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }

    /// Samples of a cycle as long as the period, as the thread takes them.
    #[test]
    fn a_loop_in_step_is_sampled_as_it_is() {
        const NOMINAL_NS: u64 = 10_000_000;
        let mut random = Random::new();
        let (mut hits, mut samples, mut now_ns) = (0_u32, 0_u32, 0);
        while samples < 20_000 {
            let period_ns = moved(NOMINAL_NS, &mut random);
            for _ in 0..stay(NOMINAL_NS, &mut random) {
                now_ns += period_ns;
                hits += u32::from(now_ns % NOMINAL_NS < NOMINAL_NS * 7 / 10);
                samples += 1;
            }
            now_ns += LAG_NS;
        }
        let share = f64::from(hits) / f64::from(samples);
        // Four standard deviations of as many independent samples.
        assert!((share - 0.7).abs() < 4.0 * (0.21 / f64::from(samples)).sqrt(), "{share}");
    }

    #[test]
    fn periods_are_moved_by_a_tenth_at_most_and_none_on_the_whole() {
        let mut random = Random::new();
        let moved: Vec<u64> = (0..10_000).map(|_| moved(1_000_000, &mut random)).collect();
        assert!(moved.iter().all(|it| (900_000..=1_100_000).contains(it)));
        assert!(moved.iter().all(|it| it.abs_diff(1_000_000) >= 50_000));
        let mean = moved.iter().sum::<u64>() / 10_000;
        assert!(mean.abs_diff(1_000_000) < 4_000, "{mean}");
    }
}
