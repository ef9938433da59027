//! Waiting for a file system, but not for ever.
//!
//! Nothing can interrupt a thread that waits for a file system which does not respond. So what may wait for one
//! is done by another thread, which is abandoned when it takes too long. Abandoned threads are limited per
//! owner of the file in question: whoever makes files hang loses the names in their own.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use crate::realtime::{Priority, Role};

const ROOT: u32 = 0;
/// Abandoned threads for files of root, for those of any other user, and for those of all other users together.
/// Beyond that, questions about such files have no answer until one of the threads comes back.
const MAX_ROOT: usize = 4;
const MAX_USER: usize = 2;
const MAX_USERS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that asks file systems on behalf of another thread.
#[derive(Default)]
pub(crate) struct Patience {
    /// The thread that takes questions; `None` before the first one, and after one was abandoned.
    thread: Option<Sender<Job>>,
    abandoned: Vec<Abandoned>,
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
    /// The answer to a question about files of an owner; `None` if there is none within this time, or if too
    /// many questions about this owner's files have none yet.
    pub(crate) fn ask<T: Send + 'static>(
        &mut self,
        owner: u32,
        within: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.abandoned.retain(|it| !it.is_back.load(Ordering::Acquire));
        if self.is_at_limit(owner) {
            return None;
        }
        let (sender, answer) = mpsc::sync_channel(1);
        let is_back = Arc::new(AtomicBool::new(false));
        let has_returned = Arc::clone(&is_back);
        let job: Job = Box::new(move || {
            // If nobody waits any more, it came too late.
            let _ = sender.send(question());
            has_returned.store(true, Ordering::Release);
        });
        self.thread()?.send(job).ok()?;
        match answer.recv_timeout(within) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => {
                // It ends when it comes back: nobody can send to it any more.
                self.thread = None;
                self.abandoned.push(Abandoned { owner, is_back });
                None
            }
            // The question has panicked, and its thread is gone.
            Err(RecvTimeoutError::Disconnected) => {
                self.thread = None;
                None
            }
        }
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
        assert_eq!(patience.ask(owner, SHORT, move || until.recv().is_ok()), None);
        end
    }

    #[test]
    fn a_question_without_an_answer_does_not_hold_up_the_next_one() {
        let mut patience = Patience::default();
        assert_eq!(patience.ask(7, LONG, || 1), Some(1));
        let end = hang(&mut patience, 7);
        assert_eq!(patience.ask(7, LONG, || 2), Some(2));
        assert_eq!(patience.abandoned.len(), 1);
        drop(end);
        while patience.abandoned.iter().any(|it| !it.is_back.load(Ordering::Acquire)) {
            thread::yield_now();
        }
        assert_eq!(patience.ask(7, LONG, || 3), Some(3));
        assert!(patience.abandoned.is_empty());
    }

    #[test]
    fn who_makes_files_hang_loses_answers_about_their_own() {
        let mut patience = Patience::default();
        let mut ends: Vec<Sender<()>> = (0..MAX_USER).map(|_| hang(&mut patience, 1000)).collect();
        assert_eq!(patience.ask(1000, LONG, || ()), None);
        assert_eq!(patience.ask(1001, LONG, || ()), Some(()));
        for user in 1001.. {
            if patience.abandoned.len() >= MAX_USERS {
                break;
            }
            ends.push(hang(&mut patience, user));
        }
        assert_eq!(patience.ask(5000, LONG, || ()), None);
        assert_eq!(patience.ask(ROOT, LONG, || ()), Some(()));
        ends.extend((0..MAX_ROOT).map(|_| hang(&mut patience, ROOT)));
        assert_eq!(patience.ask(ROOT, LONG, || ()), None);
        // What has come back does not count any more.
        ends.clear();
        while patience.abandoned.iter().any(|it| !it.is_back.load(Ordering::Acquire)) {
            thread::yield_now();
        }
        for owner in [1000, 5000, ROOT] {
            assert_eq!(patience.ask(owner, LONG, || ()), Some(()));
        }
    }

    #[test]
    fn a_question_that_panics_has_no_answer() {
        let mut patience = Patience::default();
        assert_eq!(patience.ask(7, LONG, || assert!(std::hint::black_box(false))), None);
        assert_eq!(patience.ask(7, LONG, || 1), Some(1));
    }
}
