//! A thread for what may take for ever, such as opening a file on a network: when it is stuck it is
//! left alone, and another takes over.
//!
//! Nobody watches the thread: whoever waits for it in vain [relieves](Crew::relieve) it.

use std::{
    collections::VecDeque,
    fs,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{Pid, gettid};

use super::mounts;
use crate::stderr;

/// For how long a thread may be at one task before it is taken to be stuck.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Threads that may be stuck, at most. When all are, no task is tried until one comes back.
const STUCK: usize = 8;
/// Whether a process or a file system is at fault can't be seen of one task that is stuck. Where so
/// many are stuck, nothing more is tried.
const AT_FAULT: usize = 2;
/// Tasks that may wait. At 2,500 processes a second they come in one second.
const WAITING: usize = 16 << 10;
/// That something is stuck is said at most [`SAID`] times within this, of processes and of files.
const SAY_AGAIN: Duration = Duration::from_secs(10);
const SAID: usize = 3;

/// What a thread does at a time.
pub(super) trait Task: Send + Sized + 'static {
    /// Where it may get stuck.
    fn place(&self) -> Place;
    /// Does it; gives what is to be done behind what waits already.
    fn run(self) -> Vec<Self>;
    /// It will not be done.
    fn refuse(self);
}

/// Where a task may get stuck.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Of which process `/proc` is asked.
    pub(super) tgid: u32,
    /// Which of its files, if any.
    pub(super) path: Option<Arc<str>>,
}

/// The threads: one that works, and those that are stuck. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Crew<T: Task>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// The thread that works; `None` before the first task, and when all are stuck.
    in_charge: Option<u64>,
    at_work: Option<AtWork>,
    stuck: Vec<Stuck>,
    last_thread: u64,
    missed: u64,
    said: Said,
    over: bool,
}

/// When it was last said that something is stuck. What a busy machine holds up for a moment must not
/// keep it unsaid that a file system does not answer.
#[derive(Debug, Default)]
struct Said {
    of_process: VecDeque<Instant>,
    of_file: VecDeque<Instant>,
}

impl Said {
    /// Whether it is to be said of this place, which it then is.
    fn is_due(&mut self, place: &Place, now: Instant) -> bool {
        let last = if place.path.is_some() { &mut self.of_file } else { &mut self.of_process };
        last.retain(|at| now.duration_since(*at) < SAY_AGAIN);
        let is_due = last.len() < SAID;
        if is_due {
            last.push_back(now);
        }
        is_due
    }
}

/// What the thread in charge is at.
#[derive(Debug)]
struct AtWork {
    place: Place,
    since: Instant,
    tid: Pid,
}

#[derive(Debug)]
struct Stuck {
    thread: u64,
    place: Place,
    device: Option<String>,
}

impl<T: Task> Crew<T> {
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
        {
            let mut state = self.0.state();
            self.0.staff(&mut state);
            if state.in_charge.is_some() {
                let room = WAITING.saturating_sub(state.waiting.len());
                state.waiting.extend(tasks.by_ref().take(room));
                state.missed += tasks.len() as u64;
            }
        }
        self.0.changed.notify_one();
        tasks.for_each(T::refuse);
    }

    /// Has another thread take over if the one at work is stuck.
    pub(super) fn relieve(&self) {
        let mut state = self.0.state();
        let (Some(thread), Some(work)) = (state.in_charge, &state.at_work) else { return };
        if work.since.elapsed() < PATIENCE || is_runnable(work.tid) {
            return;
        }
        let place = work.place.clone();
        let mut notice = match &place.path {
            Some(path) => format!("{path}, mapped by process {}, does not answer", place.tgid),
            None => format!("/proc/{} does not answer", place.tgid),
        };
        let is_new = state.said.is_due(&place, Instant::now());
        state.stuck.push(Stuck { thread, place, device: None });
        (state.in_charge, state.at_work) = (None, None);
        self.0.staff(&mut state);
        let mut given_up = VecDeque::new();
        let is_last = state.in_charge.is_none();
        if is_last {
            notice += "; no more files are opened until one that was asked for does";
            given_up = std::mem::take(&mut state.waiting);
        }
        drop(state);
        given_up.into_iter().for_each(T::refuse);
        if is_new || is_last {
            stderr::say(&format!("names may be missing: {notice}"));
        }
    }

    /// How often something was left undone that may be worth another try by now: too much was
    /// waiting, or a stuck thread has come back.
    pub(super) fn missed(&self) -> u64 {
        self.0.state().missed
    }
}

impl<T: Task> Drop for Crew<T> {
    fn drop(&mut self) {
        self.0.state().over = true;
        self.0.changed.notify_all();
    }
}

impl<T: Task> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread if none is in charge and there may be one more.
    fn staff(self: &Arc<Self>, state: &mut State<T>) {
        if state.in_charge.is_some() || state.stuck.len() >= STUCK {
            return;
        }
        state.last_thread += 1;
        let (shared, thread) = (Arc::clone(self), state.last_thread);
        let started = thread::Builder::new().name("tracker".into()).spawn(move || {
            while let Some(task) = shared.next(thread) {
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

    /// Whether a task would only get stuck as others of the same process or file system are.
    fn is_in_vain(&self, place: &Place) -> bool {
        let stuck: Vec<(u64, Place, Option<String>)> = {
            let state = self.state();
            let stuck = state.stuck.iter();
            stuck.map(|it| (it.thread, it.place.clone(), it.device.clone())).collect()
        };
        if stuck.len() < AT_FAULT {
            return false;
        }
        if stuck.iter().filter(|(_, it, _)| it.tgid == place.tgid).count() >= AT_FAULT {
            return true;
        }
        // Not under the lock: this reads files.
        let device_of = |place: &Place| mounts::device(place.tgid, place.path.as_deref()?);
        let Some(device) = device_of(place) else { return false };
        let mut there = 0;
        for (thread, place, known) in stuck {
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
    let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    // The name in parentheses comes before the state.
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('R'))
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
        fn place(&self) -> Place {
            Place { tgid: self.number, path: None }
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
        crew: Crew<Blocking>,
        done: Receiver<(u32, bool)>,
        sender: Sender<(u32, bool)>,
    }

    impl Bench {
        fn new() -> Self {
            let (sender, done) = channel();
            Self { crew: Crew::new(), done, sender }
        }

        /// A task, and what ends it when it is dropped.
        fn give(&self, number: u32) -> Sender<()> {
            let (end, until) = channel();
            self.crew.give(vec![Blocking { number, until, done: self.sender.clone() }]);
            end
        }

        fn wait_until(&self, condition: impl Fn(&State<Blocking>) -> bool) {
            while !condition(&self.crew.0.state()) {
                self.crew.relieve();
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn of_files_and_of_processes_it_is_said_now_and_then() {
        let process = Place { tgid: 1, path: None };
        let file = Place { tgid: 1, path: Some("/program".into()) };
        let (mut said, start) = (Said::default(), Instant::now());
        for place in [&process, &file] {
            assert!((0..SAID).all(|_| said.is_due(place, start)));
            assert!(!said.is_due(place, start));
        }
        let almost = start + SAY_AGAIN * 9 / 10;
        assert!(!said.is_due(&process, almost) && !said.is_due(&file, almost));
        let later = start + SAY_AGAIN;
        assert!(said.is_due(&file, later) && said.is_due(&process, later));
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
        assert_eq!(bench.crew.missed(), 1);
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
    fn when_all_are_stuck_nothing_is_tried_until_one_comes_back() {
        let bench = Bench::new();
        let last = u32::try_from(STUCK).unwrap();
        let mut stuck: Vec<_> = (1..=last).map(|number| bench.give(number)).collect();
        let waiting = bench.give(100);
        bench.wait_until(|state| state.stuck.len() == STUCK);
        assert_eq!(bench.done.recv().unwrap(), (100, false), "what waited is given up");
        drop((waiting, bench.give(101)));
        assert_eq!(bench.done.recv().unwrap(), (101, false), "nobody is there to do it");

        stuck.pop();
        assert_eq!(bench.done.recv().unwrap(), (last, true));
        bench.wait_until(|state| state.stuck.len() == STUCK - 1 && state.in_charge.is_some());
        drop(bench.give(102));
        assert_eq!(bench.done.recv().unwrap(), (102, true));
    }

    #[test]
    fn what_waits_is_bounded() {
        let bench = Bench::new();
        let stuck = bench.give(0);
        bench.wait_until(|state| state.at_work.is_some());
        let ends: Vec<_> =
            (1..=5 + u32::try_from(WAITING).unwrap()).map(|it| bench.give(it)).collect();
        assert!(bench.done.try_iter().all(|(_, done)| !done));
        assert_eq!(bench.crew.missed(), 5);
        drop((ends, stuck));
    }

    #[test]
    fn the_threads_end_with_it() {
        let bench = Bench::new();
        drop(bench.give(1));
        bench.done.recv().unwrap();
        let shared = Arc::downgrade(&bench.crew.0);
        drop(bench.crew);
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
