//! Real-time priority for the few threads that must be in time on an overloaded machine, within a budget.
//!
//! A thread may run ahead of all ordinary ones for a share of each [`WINDOW`] only. A timer of its own CPU
//! time ends that in the middle of whatever it is doing, so a fault can't hang the machine: for the rest of
//! the window the thread is an ordinary one, with a high nice value. Should even that fail, the kernel ends
//! the process: `RLIMIT_RTTIME`.

use std::{
    cell::Cell,
    io,
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, Resource, Rlimit, setpriority_process, setrlimit},
    thread::gettid,
};

/// The time of which a thread has its share.
pub const WINDOW: Duration = Duration::from_millis(500);

/// The nice value of a thread beyond its budget, or of one that may not have real-time priority.
const NICE: i32 = -15;
/// The highest real-time priority that a thread of ours has.
const MAX_LEVEL: libc::c_int = 2;
/// CPU time without a pause after which the kernel sends SIGXCPU, which ends the run, and after which it kills,
/// in microseconds. Both are far beyond any budget.
const BACKSTOP_US: (u64, u64) = (1_000_000, 5_000_000);

/// The thread that calls, to system calls that take a thread.
const THIS_THREAD: libc::pid_t = 0;

/// Whether [`allow`] was called.
static ALLOWED: AtomicBool = AtomicBool::new(false);
/// Whether it was said that the kernel refuses.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the budget of this thread's window is used up. Const, so that the signal handler
    /// allocates nothing.
    static USED_UP: Cell<bool> = const { Cell::new(false) };
}

/// Who must be in time, and for what share of a CPU it may run ahead of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Ends the run. Goes before the others, and hardly runs.
    Deadline,
    /// Reads the rings: else samples and records are lost.
    Reader,
    /// Opens files before their processes have gone.
    Tracker,
    /// Puts mappings into the kernel before stacks are walked.
    Loader,
    /// Makes unwind tables.
    Tables,
    /// Names and writes samples: else the queue is full.
    Naming,
}

impl Role {
    const fn percent(self) -> u32 {
        match self {
            Self::Tracker | Self::Loader => 10,
            // Interrupts count as the time of whom they interrupt: at too high a rate of samples these two
            // take long for the little that they do.
            Self::Deadline | Self::Reader | Self::Tables => 20,
            Self::Naming => 30,
        }
    }

    /// Any other real-time thread of the machine goes first.
    const fn level(self) -> libc::c_int {
        match self {
            Self::Deadline => MAX_LEVEL,
            _ => 1,
        }
    }

    fn budget(self) -> Duration {
        WINDOW * self.percent() / 100
    }
}

/// Lets threads of this process ask for priority. Call it before capabilities are dropped: the limits it
/// raises need CAP_SYS_RESOURCE, what is done by them later needs nothing.
pub fn allow() -> io::Result<()> {
    let limit = |resource, current: u64, maximum: u64| {
        setrlimit(resource, Rlimit { current: Some(current), maximum: Some(maximum) })
    };
    // A refusal shows when a thread asks: CAP_SYS_NICE does without the limits.
    for (resource, to) in [(Resource::Rtprio, MAX_LEVEL), (Resource::Nice, 20 - NICE)] {
        let _ = limit(resource, u64::from(to.unsigned_abs()), u64::from(to.unsigned_abs()));
    }
    let (warn, kill) = BACKSTOP_US;
    limit(Resource::Rttime, warn, kill)?;
    // SAFETY: all bytes zero are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = step_down as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` outlives the call, and its handler calls only what a handler may call.
    if unsafe { libc::sigaction(budget_signal(), &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    ALLOWED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether threads of this process may ask for priority.
#[must_use]
pub fn is_allowed() -> bool {
    ALLOWED.load(Ordering::Relaxed)
}

/// What a thread is sent whose budget is used up. Not SIGXCPU, by which others end the run: `RLIMIT_CPU`, and
/// the backstop here.
fn budget_signal() -> libc::c_int {
    libc::SIGRTMIN()
}

/// The budget of this thread is used up: it goes on as an ordinary one.
extern "C" fn step_down(_signal: libc::c_int) {
    // SAFETY: the address of `errno` is valid; whoever was interrupted must find it as it was.
    let errno = unsafe { *libc::__errno_location() };
    let _ = set_policy(THIS_THREAD, libc::SCHED_OTHER, 0);
    USED_UP.set(true);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets the policy of a thread; its children have the ordinary one.
fn set_policy(tid: libc::pid_t, policy: libc::c_int, level: libc::c_int) -> io::Result<()> {
    let flagged = policy | libc::SCHED_RESET_ON_FORK;
    // Not by libc's function, which musl does not have. The kernel's `sched_param` is one integer.
    // SAFETY: `level` outlives the call.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, flagged, &raw const level) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the nice value of a thread: Linux's threads have values of their own.
fn set_nice(tid: libc::pid_t) -> io::Result<()> {
    Ok(setpriority_process(Pid::from_raw(tid), NICE)?)
}

/// Gives a process of one thread the priority of a role, if [allowed](allow). The process must keep the budget
/// itself, by [`Priority::lent`]: it need not have the right to priority, but this process must (CAP_SYS_NICE).
pub fn lend(pid: u32, role: Role) -> io::Result<()> {
    if !is_allowed() {
        return Ok(());
    }
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let _ = set_nice(pid);
    set_policy(pid, libc::SCHED_RR, role.level())
}

/// The priority of one thread. It ends with the thread; dropped, the thread stays as it is.
#[derive(Debug)]
pub struct Priority {
    /// `None` where the thread has no real-time priority.
    timer: Option<Timer>,
    budget: Duration,
    level: libc::c_int,
    window_began: Instant,
    /// Whether another process sets the policy, maybe also when the budget is used up.
    is_lent: bool,
}

impl Priority {
    /// Gives it to the calling thread, if [allowed](allow); where the kernel refuses real-time priority,
    /// a high nice value.
    #[must_use]
    pub fn enter(role: Role) -> Self {
        Self::with_budget(role.budget(), role.level(), &format!("{role:?}"))
    }

    fn with_budget(budget: Duration, level: libc::c_int, who: &str) -> Self {
        let window_began = Instant::now();
        let mut priority = Self { timer: None, budget, level, window_began, is_lent: false };
        if !is_allowed() {
            return priority;
        }
        let niced = set_nice(THIS_THREAD);
        // Not without the timer that ends it.
        let timer = Timer::of_this_thread().and_then(|timer| {
            timer.set(budget)?;
            set_policy(THIS_THREAD, libc::SCHED_RR, level)?;
            Ok(timer)
        });
        match timer {
            Ok(timer) => priority.timer = Some(timer),
            Err(error) if !REFUSED.swap(true, Ordering::Relaxed) => {
                let instead = match niced {
                    Ok(()) => format!("nice {NICE} is what it has"),
                    Err(error) => format!("nor nice {NICE} ({error})"),
                };
                tracing::info!(
                    "no real-time priority for the {who} thread ({error}), {instead}: on an overloaded \
                     machine stacks may be cut; CAP_SYS_NICE allows it"
                );
            }
            Err(_) => {}
        }
        priority
    }

    /// Keeps the budget of the calling thread, which another process [lends](lend) priority to. `None` if it
    /// can't be kept: then nothing may be lent.
    #[must_use]
    pub fn lent(role: Role) -> Option<Self> {
        Self::lent_with_budget(role.budget(), role.level())
    }

    fn lent_with_budget(budget: Duration, level: libc::c_int) -> Option<Self> {
        let timer =
            Timer::of_this_thread().and_then(|timer| timer.set(budget).map(|()| timer)).ok()?;
        let window_began = Instant::now();
        Some(Self { timer: Some(timer), budget, level, window_began, is_lent: true })
    }

    /// Begins another window if the last one is over. To be called now and then; by who has lent priority, each
    /// time before it does anything, since the priority may have been lent again meanwhile.
    pub fn renew(&mut self) {
        let Some(timer) = &self.timer else { return };
        let now = Instant::now();
        if now.duration_since(self.window_began) < WINDOW {
            if self.is_lent && USED_UP.get() {
                let _ = set_policy(THIS_THREAD, libc::SCHED_OTHER, 0);
            }
            return;
        }
        self.window_began = now;
        // Where the timer can't be set, nothing would end the priority.
        if timer.set(self.budget).is_ok() && USED_UP.replace(false) {
            // Refused to who has no right to it, and then lent.
            let _ = set_policy(THIS_THREAD, libc::SCHED_RR, self.level);
        }
    }
}

/// A timer of a thread's CPU time that sends it [`budget_signal`].
#[derive(Debug)]
struct Timer(libc::timer_t);

impl Timer {
    fn of_this_thread() -> io::Result<Self> {
        // SAFETY: all bytes zero are a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = budget_signal();
        event.sigev_notify_thread_id = Pid::as_raw(Some(gettid()));
        let mut timer = ptr::null_mut();
        let clock = libc::CLOCK_THREAD_CPUTIME_ID;
        // SAFETY: both pointers are valid during the call.
        match unsafe { libc::timer_create(clock, &raw mut event, &raw mut timer) } {
            0 => Ok(Self(timer)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has it go off once, when the thread has run for this long from now.
    fn set(&self, after: Duration) -> io::Result<()> {
        let time = libc::timespec {
            tv_sec: after.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: after.subsec_nanos().into(),
        };
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval: zero, it_value: time };
        // SAFETY: the timer exists until it is dropped, and `setting` outlives the call.
        match unsafe { libc::timer_settime(self.0, 0, &raw const setting, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it exists, and nothing uses it any more. Without its timer the thread must not keep the
        // priority, so that goes first.
        let _ = set_policy(THIS_THREAD, libc::SCHED_OTHER, 0);
        // SAFETY: as above.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i64 {
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) }
    }

    #[test]
    fn priority_ends_with_its_budget_and_comes_back_with_the_next_window() {
        std::thread::spawn(|| {
            let before = policy();
            // Nothing was allowed: nothing changes.
            let mut none = Priority { timer: None, ..Priority::enter(Role::Reader) };
            none.renew();
            if !ALLOWED.load(Ordering::Relaxed) {
                assert_eq!(policy(), before);
            }
            allow().unwrap();
            let mut priority = Priority::with_budget(Duration::from_millis(20), 1, "test");
            if priority.timer.is_none() {
                // Whoever runs this may have no right to it.
                return;
            }
            let is_realtime = || policy() & 0xff == i64::from(libc::SCHED_RR);
            assert!(is_realtime());
            // This thread does nothing but run, and never asks whether it may.
            while is_realtime() {
                std::hint::spin_loop();
            }
            priority.renew();
            while Instant::now().duration_since(priority.window_began) < WINDOW {
                assert!(!is_realtime());
                std::thread::yield_now();
            }
            priority.renew();
            assert!(is_realtime());
            drop(priority);
            assert!(!is_realtime());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn priority_that_is_lent_ends_with_the_budget_however_often_it_is_lent() {
        allow().unwrap();
        std::thread::spawn(|| {
            let own = Pid::as_raw(Some(gettid())).unsigned_abs();
            let mut priority = Priority::lent_with_budget(Duration::from_millis(20), 1).unwrap();
            if lend(own, Role::Tables).is_err() {
                // Whoever runs this may have no right to it.
                return;
            }
            let is_realtime = || policy() & 0xff == i64::from(libc::SCHED_RR);
            assert!(is_realtime());
            while is_realtime() {
                std::hint::spin_loop();
            }
            // Until another window begins, whether that is seen here or there.
            let began = priority.window_began;
            while began.elapsed() < WINDOW {
                lend(own, Role::Tables).unwrap();
                priority.renew();
                if began != priority.window_began {
                    break;
                }
                assert!(!is_realtime());
                std::thread::yield_now();
            }
            lend(own, Role::Tables).unwrap();
            priority.renew();
            assert!(is_realtime());
            while is_realtime() {
                std::hint::spin_loop();
            }
        })
        .join()
        .unwrap();
    }
}
