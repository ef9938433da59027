//! Waiting for a file system, but not for ever.
//!
//! Nothing can interrupt a thread that waits for a file system which does not respond. So what may wait for one
//! is done by another thread, which is abandoned when it takes too long. Abandoned threads are limited per
//! owner of the file in question, and so is the [time](super::slow_users) that slow answers take: whoever makes files
//! hang loses the names in their own.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use super::slow_users::SlowUsers;
use crate::{
    kernel,
    realtime::{Priority, Role},
};

const ROOT: u32 = 0;
/// Abandoned threads for files of root, for those of any other user, and for those of all other users together.
/// Beyond that, questions about such files have no answer until one of the threads comes back.
const MAX_ROOT: usize = 4;
const MAX_USER: usize = 2;
const MAX_USERS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that asks file systems on behalf of another thread.
pub(super) struct Patience {
    /// The thread that takes questions; `None` before the first one, and after one was abandoned.
    thread: Option<Sender<Job>>,
    abandoned: Vec<Abandoned>,
    slow: SlowUsers,
    slow_time: Duration,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// It did not come in time, or others about this owner's files have not come yet.
    Late,
    /// It was not asked for: answers about this owner's files have taken too long together.
    Unasked,
}

/// A thread that has not come back yet.
struct Abandoned {
    owner: u32,
    is_back: Arc<AtomicBool>,
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("abandoned", &self.abandoned.len()).finish_non_exhaustive()
    }
}

impl Patience {
    /// No thread yet.
    pub(super) fn new() -> Self {
        Self {
            thread: None,
            abandoned: Vec::new(),
            slow: SlowUsers::new(Instant::now()),
            slow_time: Duration::ZERO,
        }
    }

    /// How long slow answers were waited for so far.
    pub(super) fn slow_time(&self) -> Duration {
        self.slow_time
    }

    /// The answer to a question about files of an owner, if it comes within this time.
    pub(super) fn ask<T: Send + 'static>(
        &mut self,
        owner: u32,
        within: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        self.abandoned.retain(|it| !it.is_back.load(Ordering::Acquire));
        if self.is_at_limit(owner) {
            return Err(NoAnswer::Late);
        }
        let start = Instant::now();
        if !self.slow.have_time(owner, start) {
            return Err(NoAnswer::Unasked);
        }
        let (sender, answer) = mpsc::sync_channel(1);
        let is_back = Arc::new(AtomicBool::new(false));
        let has_returned = Arc::clone(&is_back);
        let job: Job = Box::new(move || {
            let before = kernel::thread_cpu_time();
            let answer = question();
            // If nobody waits any more, it came too late.
            let _ = sender.send((answer, kernel::thread_cpu_time().saturating_sub(before)));
            has_returned.store(true, Ordering::Release);
        });
        let thread = self.thread().ok_or(NoAnswer::Late)?;
        thread.send(job).map_err(|_| NoAnswer::Late)?;
        let (answer, worked) = match answer.recv_timeout(within) {
            Ok((answer, worked)) => (Ok(answer), worked),
            Err(error) => {
                // It ends when it comes back: nobody can send to it any more. One that has panicked is gone.
                self.thread = None;
                if error == RecvTimeoutError::Timeout {
                    self.abandoned.push(Abandoned { owner, is_back });
                }
                (Err(NoAnswer::Late), Duration::ZERO)
            }
        };
        let end = Instant::now();
        // What the answer takes to compute is not the file system's.
        let waited = end.duration_since(start).saturating_sub(worked);
        self.slow_time = self.slow_time.saturating_add(self.slow.take(owner, waited, end));
        answer
    }

    fn is_at_limit(&self, owner: u32) -> bool {
        let of_owner = self.abandoned.iter().filter(|it| it.owner == owner).count();
        let of_users = self.abandoned.iter().filter(|it| it.owner != ROOT).count();
        if owner == ROOT {
            of_owner >= MAX_ROOT
        } else {
            of_owner >= MAX_USER || of_users >= MAX_USERS
        }
    }

    /// The thread, which is started if there is none. `None` if that can't be done.
    fn thread(&mut self) -> Option<&Sender<Job>> {
        if self.thread.is_none() {
            let (sender, jobs) = mpsc::channel::<Job>();
            let run = move || {
                let mut priority = Priority::enter(Role::Tracker);
                for job in jobs {
                    priority.renew();
                    job();
                }
            };
            thread::Builder::new().name("files".into()).spawn(run).ok()?;
            self.thread = Some(sender);
        }
        self.thread.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Receiver;

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    /// Asks what has no answer before the sender is dropped.
    fn hang(patience: &mut Patience, owner: u32) -> Sender<()> {
        let (end, until): (Sender<()>, Receiver<()>) = mpsc::channel();
        assert_eq!(patience.ask(owner, SHORT, move || until.recv().is_ok()), Err(NoAnswer::Late));
        end
    }

    #[test]
    fn a_question_without_an_answer_does_not_hold_up_the_next_one() {
        let mut patience = Patience::new();
        assert_eq!(patience.ask(7, LONG, || 1), Ok(1));
        let end = hang(&mut patience, 7);
        assert_eq!(patience.ask(7, LONG, || 2), Ok(2));
        assert_eq!(patience.abandoned.len(), 1);
        drop(end);
        while patience.abandoned.iter().any(|it| !it.is_back.load(Ordering::Acquire)) {
            thread::yield_now();
        }
        assert_eq!(patience.ask(7, LONG, || 3), Ok(3));
        assert!(patience.abandoned.is_empty());
    }

    #[test]
    fn who_makes_files_hang_loses_answers_about_their_own() {
        let mut patience = Patience::new();
        let mut ends: Vec<Sender<()>> = (0..MAX_USER).map(|_| hang(&mut patience, 1000)).collect();
        assert_eq!(patience.ask(1000, LONG, || ()), Err(NoAnswer::Late));
        assert_eq!(patience.ask(1001, LONG, || ()), Ok(()));
        for user in 1001.. {
            if patience.abandoned.len() >= MAX_USERS {
                break;
            }
            ends.push(hang(&mut patience, user));
        }
        assert_eq!(patience.ask(5000, LONG, || ()), Err(NoAnswer::Late));
        assert_eq!(patience.ask(ROOT, LONG, || ()), Ok(()));
        ends.extend((0..MAX_ROOT).map(|_| hang(&mut patience, ROOT)));
        assert_eq!(patience.ask(ROOT, LONG, || ()), Err(NoAnswer::Late));
        // What has come back does not count any more.
        ends.clear();
        while patience.abandoned.iter().any(|it| !it.is_back.load(Ordering::Acquire)) {
            thread::yield_now();
        }
        for owner in [1000, 5000, ROOT] {
            assert_eq!(patience.ask(owner, LONG, || ()), Ok(()));
        }
    }

    #[test]
    fn who_answers_slowly_is_not_asked_any_more() {
        let mut patience = Patience::new();
        // As if that had taken long.
        let hour = Duration::from_secs(3600);
        patience.slow.take(1000, hour, Instant::now());
        assert_eq!(patience.ask(1000, LONG, || ()), Err(NoAnswer::Unasked));
        assert_eq!(patience.ask(ROOT, LONG, || ()), Ok(()));
        assert_eq!(patience.slow_time(), Duration::ZERO);
    }

    #[test]
    fn what_is_waited_for_is_counted() {
        let mut patience = Patience::new();
        let wait = Duration::from_millis(200);
        assert_eq!(patience.ask(1000, LONG, move || thread::sleep(wait)), Ok(()));
        assert!(patience.slow_time() >= wait * 9 / 10, "{:?}", patience.slow_time());
    }

    #[test]
    fn a_question_that_panics_has_no_answer() {
        let mut patience = Patience::new();
        assert_eq!(
            patience.ask(7, LONG, || assert!(std::hint::black_box(false))),
            Err(NoAnswer::Late)
        );
        assert_eq!(patience.ask(7, LONG, || 1), Ok(1));
    }
}
