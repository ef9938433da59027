//! Processes whose main thread has ended, while others go on.
//!
//! The kernel tells of the end of each thread, but not which is the last: threads that were there
//! before the profiler were never told of. So `/proc` is asked who is left.

use std::{
    collections::VecDeque,
    io,
    time::{Duration, Instant},
};

use rustc_hash::FxHashSet;

use crate::procfs::{self, stat::Stat};

/// How often it is looked whether they are still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// At how many each time, in turn: anyone can have thousands.
const MAX_LOOKS: usize = 64;

/// The processes.
#[derive(Debug)]
pub(crate) struct Headless {
    tgids: FxHashSet<u32>,
    /// The same, in the order in which they are looked at.
    turns: VecDeque<u32>,
    looked: Instant,
}

impl Headless {
    pub(crate) fn new() -> Self {
        Self { tgids: FxHashSet::default(), turns: VecDeque::new(), looked: Instant::now() }
    }

    /// A process was found whose main thread has ended.
    pub(super) fn add(&mut self, tgid: u32) {
        if self.tgids.insert(tgid) {
            self.turns.push_back(tgid);
        }
    }

    /// A main thread has ended; whether that was the end of its process. If no file can be opened now, it is taken to
    /// be: most processes have one thread, and those that are kept here must not pile up.
    pub(super) fn main_thread_ended(&mut self, tgid: u32) -> bool {
        let goes_on = other_threads(tgid).next().is_some();
        if goes_on {
            self.add(tgid);
        }
        !goes_on
    }

    /// Those that have ended since, at most every now and then.
    pub(super) fn ended(&mut self) -> Vec<u32> {
        if self.tgids.is_empty() || self.looked.elapsed() < LOOK_INTERVAL {
            return Vec::new();
        }
        self.looked = Instant::now();
        let mut ended = Vec::new();
        for _ in 0..self.turns.len().min(MAX_LOOKS) {
            let Some(tgid) = self.turns.pop_front() else { break };
            match State::of(tgid) {
                // Who can't be looked at now has its turn again.
                Ok(State::Headless) | Err(_) => self.turns.push_back(tgid),
                Ok(state) => {
                    self.tgids.remove(&tgid);
                    if state == State::Ended {
                        ended.push(tgid);
                    }
                }
            }
        }
        ended
    }
}

/// What has become of a process whose main thread had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Headless,
    Ended,
    /// Another thread has called exec, and is the main thread by that; or the process was waited for, and another has
    /// its number.
    Alive,
}

impl State {
    /// An error where no file can be opened now, so that nobody knows.
    fn of(tgid: u32) -> io::Result<Self> {
        if Stat::read(tgid)?.is_some_and(|stat| !stat.has_ended()) {
            return Ok(Self::Alive);
        }
        let has_others = procfs::list_threads(tgid)?.any(|tid| tid != tgid);
        Ok(if has_others { Self::Headless } else { Self::Ended })
    }
}

/// The threads of a process but for the main one; one that is ending may be among them.
pub(super) fn other_threads(tgid: u32) -> impl Iterator<Item = u32> {
    procfs::threads(tgid).filter(move |&tid| tid != tgid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_without_other_threads_ends_with_its_main_thread() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        assert_eq!(State::of(child.id()).unwrap(), State::Alive);
        child.kill().unwrap();
        // Nobody has waited for it yet.
        while State::of(child.id()).unwrap() == State::Alive {
            std::thread::yield_now();
        }
        let mut headless = Headless::new();
        assert!(headless.main_thread_ended(child.id()));
        // What was taken for one has ended.
        headless.add(child.id());
        let ended = loop {
            let ended = headless.ended();
            if !ended.is_empty() {
                break ended;
            }
        };
        assert_eq!(ended, [child.id()]);
        assert!(headless.tgids.is_empty() && headless.turns.is_empty());
        child.wait().unwrap();
        assert!(headless.main_thread_ended(child.id()));
    }

    #[test]
    fn a_process_that_has_a_main_thread_again_is_left_alone() {
        // As after an exec by another thread, or where the number is that of another process.
        let mut headless = Headless::new();
        let own = std::process::id();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || stopped.recv());
        assert!(!headless.main_thread_ended(own));
        while !headless.tgids.is_empty() {
            assert_eq!(headless.ended(), [] as [u32; 0]);
        }
        drop(stop);
        assert!(other.join().unwrap().is_err());
    }
}
