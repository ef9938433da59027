//! A watchdog pool for what may block for ever, such as opening a file on a network: a thread that is stuck is left
//! alone, and another takes over.
//!
//! Nobody watches the thread all the time: whoever has waited too long for it [relieves](WatchdogPool::relieve) it.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{Pid, gettid};

use crate::{
    procfs::{mounts, stat::Stat},
    realtime::{Priority, Role},
    stderr,
};

/// For how long a thread may be at one task before it is taken to be stuck.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Threads that may be stuck at what root's processes have. Beyond that, no task of theirs is tried until
/// one comes back.
const ROOT_STUCK: usize = 8;
/// The same for the processes of any other user, and of all other users together: what they do to us costs
/// root's processes nothing.
const USER_STUCK: usize = 4;
const USERS_STUCK: usize = 16;
/// Whether a process or a file system is at fault can't be seen of one task that is stuck. Where so
/// many of one user's are stuck, that user's are not tried there any more. Others' are: a user can make a
/// file of their own get stuck on any file system.
const AT_FAULT: usize = 2;
/// Tasks that may wait. At 2,500 processes a second they come in one second.
const WAITING: usize = 16 << 10;
/// That something is stuck is said at most [`SAID`] times within this, of processes and of files.
const SAY_AGAIN: Duration = Duration::from_secs(10);
const SAID: usize = 3;
const ROOT: Option<u32> = Some(0);

/// What a thread does at a time.
pub(super) trait Task: Send + Sized + 'static {
    /// Where it may get stuck.
    fn place(&self) -> WaitsFor;
    /// Whose process that is; `None` if it is gone.
    fn user_of(place: &WaitsFor) -> Option<u32>;
    /// Does it; gives what is to be done behind what waits already.
    fn run(self) -> Vec<Self>;
    /// It will not be done.
    fn refuse(self);
}

/// What a task may wait for without end.
#[derive(Clone, Debug)]
pub(super) struct WaitsFor {
    /// Of which process `/proc` is asked.
    pub(super) tgid: u32,
    /// Which of its files, if any.
    pub(super) path: Option<Arc<str>>,
}

/// The threads: one that works, and those that are stuck. They end when this is dropped.
#[derive(Debug)]
pub(super) struct WatchdogPool<T: Task>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// The thread that works; `None` before the first task, and when none can be started.
    in_charge: Option<u64>,
    at_work: Option<AtWork>,
    stuck: Vec<Stuck>,
    last_thread: u64,
    missed: u64,
    said: Said,
    over: bool,
}

/// When it was last said that something is stuck: of root's and of others', of processes and of files.
/// What a busy machine holds up for a moment, or a user does on purpose, must not keep it unsaid that a file
/// system does not answer.
#[derive(Debug, Default)]
struct Said(VecDeque<(Instant, (bool, bool))>);

impl Said {
    /// Whether it is to be said of this place, which it then is.
    fn is_due(&mut self, place: &WaitsFor, user: Option<u32>, now: Instant) -> bool {
        let what = (user == ROOT, place.path.is_some());
        self.0.retain(|(at, _)| now.duration_since(*at) < SAY_AGAIN);
        let is_due = self.0.iter().filter(|(_, said)| *said == what).count() < SAID;
        if is_due {
            self.0.push_back((now, what));
        }
        is_due
    }
}

/// What the thread in charge is at.
#[derive(Debug)]
struct AtWork {
    place: WaitsFor,
    since: Instant,
    tid: Pid,
}

#[derive(Clone, Debug)]
struct Stuck {
    thread: u64,
    place: WaitsFor,
    user: Option<u32>,
    device: Option<String>,
}

/// Whether as many threads are stuck at what this user's processes have as may be.
fn is_at_quota(stuck: &[Stuck], user: Option<u32>) -> bool {
    let of_user = stuck.iter().filter(|it| it.user == user).count();
    let of_users = stuck.iter().filter(|it| it.user != ROOT).count();
    if user == ROOT {
        of_user >= ROOT_STUCK
    } else {
        of_user >= USER_STUCK || of_users >= USERS_STUCK
    }
}

impl<T: Task> WatchdogPool<T> {
    /// No thread before the first task.
    pub(super) fn new() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            in_charge: None,
            at_work: None,
            stuck: Vec::new(),
            last_thread: 0,
            missed: 0,
            said: Said::default(),
            over: false,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Has the tasks done in this order, or refused if there are too many or nobody is there to do
    /// them. Never waits.
    pub(super) fn give(&self, tasks: Vec<T>) {
        if tasks.is_empty() {
            return;
        }
        let mut tasks = tasks.into_iter();
        let given_up;
        {
            let mut state = self.0.state();
            given_up = self.0.staff(&mut state);
            if state.in_charge.is_some() {
                let room = WAITING.saturating_sub(state.waiting.len());
                state.waiting.extend(tasks.by_ref().take(room));
                state.missed += tasks.len() as u64;
            }
        }
        self.0.changed.notify_one();
        given_up.into_iter().chain(tasks).for_each(T::refuse);
    }

    /// Has another thread take over if the one at work is stuck.
    pub(super) fn relieve(&self) {
        let mut state = self.0.state();
        let (Some(thread), Some(work)) = (state.in_charge, &state.at_work) else { return };
        if work.since.elapsed() < PATIENCE || is_runnable(work.tid) {
            return;
        }
        let place = work.place.clone();
        let user = T::user_of(&place);
        let mut notice = match &place.path {
            Some(path) => format!("{path}, mapped by process {}, is not responding", place.tgid),
            None => format!("/proc/{} is not responding", place.tgid),
        };
        let is_new = state.said.is_due(&place, user, Instant::now());
        state.stuck.push(Stuck { thread, place, user, device: None });
        (state.in_charge, state.at_work) = (None, None);
        if is_at_quota(&state.stuck, user) {
            let whose = user.map_or("processes that are gone".into(), |it| format!("user {it}"));
            let _ = write!(notice, "; no more is asked for {whose} until a stuck request returns");
        }
        let given_up = self.0.staff(&mut state);
        drop(state);
        given_up.into_iter().for_each(T::refuse);
        if is_new {
            stderr::notice(&format!("names may be missing: {notice}"));
        }
    }

    /// How often something was left undone that may be worth another try by now: too much was
    /// waiting, or a stuck thread has come back.
    pub(super) fn missed(&self) -> u64 {
        self.0.state().missed
    }
}

impl<T: Task> Drop for WatchdogPool<T> {
    fn drop(&mut self) {
        self.0.state().over = true;
        self.0.changed.notify_all();
    }
}

impl<T: Task> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread if none is in charge; gives what waits in vain if that can't be done. Quotas bound
    /// how many are stuck, so there is always one more.
    fn staff(self: &Arc<Self>, state: &mut State<T>) -> VecDeque<T> {
        if state.in_charge.is_none() {
            state.last_thread += 1;
            let (shared, thread) = (Arc::clone(self), state.last_thread);
            let started = thread::Builder::new().name("tracker".into()).spawn(move || {
                let mut priority = Priority::enter(Role::Tracker);
                while let Some(task) = shared.next(thread) {
                    priority.renew();
                    let more = if shared.is_in_vain(&task.place()) {
                        task.refuse();
                        Vec::new()
                    } else {
                        task.run()
                    };
                    shared.done(thread, more);
                }
            });
            state.in_charge = started.is_ok().then_some(thread);
        }
        if state.in_charge.is_some() { VecDeque::new() } else { std::mem::take(&mut state.waiting) }
    }

    /// Waits for the next task of this thread; `None` when another is in charge.
    fn next(&self, thread: u64) -> Option<T> {
        let mut state = self.state();
        loop {
            if state.over || state.in_charge != Some(thread) {
                return None;
            }
            if let Some(task) = state.waiting.pop_front() {
                let (place, since, tid) = (task.place(), Instant::now(), gettid());
                state.at_work = Some(AtWork { place, since, tid });
                return Some(task);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, thread: u64, more: Vec<T>) {
        let mut state = self.state();
        // What it leaves is of use also when it comes late.
        state.waiting.extend(more);
        if state.in_charge == Some(thread) {
            state.at_work = None;
            return;
        }
        state.stuck.retain(|it| it.thread != thread);
        state.missed += 1;
        if state.in_charge.is_none() {
            state.in_charge = Some(thread);
        } else {
            self.changed.notify_one();
        }
    }

    /// Whether a task would only get stuck as others of the same user are: of the same process or file
    /// system, or too many of all.
    fn is_in_vain(&self, place: &WaitsFor) -> bool {
        let mut stuck = self.state().stuck.clone();
        if stuck.is_empty() {
            return false;
        }
        let user = T::user_of(place);
        if is_at_quota(&stuck, user) {
            return true;
        }
        stuck.retain(|it| it.user == user);
        if stuck.len() < AT_FAULT {
            return false;
        }
        if stuck.iter().filter(|it| it.place.tgid == place.tgid).count() >= AT_FAULT {
            return true;
        }
        // Not under the lock: this reads files.
        let device_of = |place: &WaitsFor| mounts::device(place.tgid, place.path.as_deref()?);
        let Some(device) = device_of(place) else { return false };
        let mut there = 0;
        for Stuck { thread, place, device: known, .. } in stuck {
            // What is on none is looked up once, too.
            let its = known.unwrap_or_else(|| device_of(&place).unwrap_or_default());
            there += usize::from(its == device);
            let mut state = self.state();
            if let Some(it) = state.stuck.iter_mut().find(|it| it.thread == thread) {
                it.device = Some(its);
            }
        }
        there >= AT_FAULT
    }
}

/// Whether one of our threads would go on if it had a CPU, so that it is not stuck.
fn is_runnable(tid: Pid) -> bool {
    let stat = Stat::of_own(tid.as_raw_nonzero().get().unsigned_abs());
    stat.is_some_and(|stat| stat.is_runnable())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Ends when it is told to, and then says its number.
    struct Blocking {
        number: u32,
        until: Receiver<()>,
        done: Sender<(u32, bool)>,
    }

    impl Task for Blocking {
        fn place(&self) -> WaitsFor {
            WaitsFor { tgid: self.number, path: None }
        }

        /// Process 101 is of user 1, and so on.
        fn user_of(place: &WaitsFor) -> Option<u32> {
            Some(place.tgid / 100)
        }

        fn run(self) -> Vec<Self> {
            let _ = self.until.recv();
            let _ = self.done.send((self.number, true));
            Vec::new()
        }

        fn refuse(self) {
            let _ = self.done.send((self.number, false));
        }
    }

    struct Bench {
        pool: WatchdogPool<Blocking>,
        done: Receiver<(u32, bool)>,
        sender: Sender<(u32, bool)>,
    }

    impl Bench {
        fn new() -> Self {
            let (sender, done) = channel();
            Self { pool: WatchdogPool::new(), done, sender }
        }

        /// A task, and what ends it when it is dropped.
        fn give(&self, number: u32) -> Sender<()> {
            let (end, until) = channel();
            self.pool.give(vec![Blocking { number, until, done: self.sender.clone() }]);
            end
        }

        fn wait_until(&self, condition: impl Fn(&State<Blocking>) -> bool) {
            while !condition(&self.pool.0.state()) {
                self.pool.relieve();
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn of_files_and_of_processes_it_is_said_now_and_then() {
        let process = WaitsFor { tgid: 1, path: None };
        let file = WaitsFor { tgid: 1, path: Some("/program".into()) };
        let (mut said, start) = (Said::default(), Instant::now());
        for user in [Some(1000), ROOT] {
            for place in [&process, &file] {
                assert!((0..SAID).all(|_| said.is_due(place, user, start)));
                assert!(!said.is_due(place, user, start));
            }
        }
        assert!(!said.is_due(&file, Some(1001), start), "users have no share of their own");
        let almost = start + SAY_AGAIN * 9 / 10;
        assert!(!said.is_due(&process, ROOT, almost) && !said.is_due(&file, ROOT, almost));
        let later = start + SAY_AGAIN;
        assert!(said.is_due(&file, ROOT, later) && said.is_due(&process, ROOT, later));
    }

    #[test]
    fn another_takes_over_from_one_that_is_stuck() {
        let bench = Bench::new();
        let stuck = bench.give(1);
        drop(bench.give(2));
        bench.wait_until(|state| state.stuck.len() == 1);
        assert_eq!(bench.done.recv().unwrap(), (2, true));
        drop(stuck);
        assert_eq!(bench.done.recv().unwrap(), (1, true));
        bench.wait_until(|state| state.stuck.is_empty());
        assert_eq!(bench.pool.missed(), 1);
    }

    #[test]
    fn a_process_that_is_at_fault_is_not_asked() {
        let bench = Bench::new();
        let stuck = [bench.give(1), bench.give(1)];
        bench.wait_until(|state| state.stuck.len() == 2);
        drop((bench.give(1), bench.give(2)));
        assert_eq!(bench.done.recv().unwrap(), (1, false));
        assert_eq!(bench.done.recv().unwrap(), (2, true));
        drop(stuck);
        bench.wait_until(|state| state.stuck.is_empty());
        drop(bench.give(1));
        let all: Vec<_> = bench.done.iter().take(3).collect();
        assert_eq!(all, [(1, true); 3]);
    }

    #[test]
    fn when_all_of_a_user_are_stuck_nothing_of_that_user_is_tried_until_one_comes_back() {
        for (user, quota) in [(0, ROOT_STUCK), (7, USER_STUCK)] {
            let bench = Bench::new();
            let number = |at: usize| user * 100 + u32::try_from(at).unwrap();
            let mut stuck: Vec<_> = (1..=quota).map(|at| bench.give(number(at))).collect();
            let waiting = bench.give(number(50));
            bench.wait_until(|state| state.stuck.len() == quota);
            assert_eq!(bench.done.recv().unwrap(), (number(50), false), "what waited");
            drop((waiting, bench.give(number(51)), bench.give(100)));
            assert_eq!(bench.done.recv().unwrap(), (number(51), false));
            assert_eq!(bench.done.recv().unwrap(), (100, true), "another user's");

            stuck.pop();
            assert_eq!(bench.done.recv().unwrap(), (number(quota), true));
            bench.wait_until(|state| state.stuck.len() == quota - 1);
            drop(bench.give(number(52)));
            assert_eq!(bench.done.recv().unwrap(), (number(52), true));
        }
    }

    #[test]
    fn whatever_users_do_roots_are_done() {
        let bench = Bench::new();
        let users = 1..=u32::try_from(USERS_STUCK / USER_STUCK).unwrap();
        let numbers = users.flat_map(|user| (0..USER_STUCK).zip((user * 100)..));
        let stuck: Vec<_> = numbers.map(|(_, number)| bench.give(number)).collect();
        bench.wait_until(|state| state.stuck.len() == USERS_STUCK);
        drop((bench.give(9900), bench.give(1)));
        assert_eq!(bench.done.recv().unwrap(), (9900, false), "all users together have a quota");
        assert_eq!(bench.done.recv().unwrap(), (1, true));
        drop(stuck);
    }

    #[test]
    fn what_waits_is_bounded() {
        let bench = Bench::new();
        let stuck = bench.give(0);
        bench.wait_until(|state| state.at_work.is_some());
        let ends: Vec<_> =
            (1..=5 + u32::try_from(WAITING).unwrap()).map(|it| bench.give(it)).collect();
        assert!(bench.done.try_iter().all(|(_, done)| !done));
        assert_eq!(bench.pool.missed(), 5);
        drop((ends, stuck));
    }

    #[test]
    fn the_threads_end_with_it() {
        let bench = Bench::new();
        drop(bench.give(1));
        bench.done.recv().unwrap();
        let shared = Arc::downgrade(&bench.pool.0);
        drop(bench.pool);
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
