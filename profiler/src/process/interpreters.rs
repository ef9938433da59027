//! Which processes run an interpreter: found by the thread that tells the eBPF program, used by the one that names.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use profiler_python::image::Loaded;
use rustc_hash::FxHashMap;

/// Samples of processes that have ended are named a while later. So many of these are kept.
const GONE: usize = 1024;

/// An interpreter in a process.
#[derive(Debug)]
pub struct Interpreter {
    /// Tells it from those that had the same pid before.
    pub number: u64,
    /// What is known of it.
    pub loaded: Arc<Loaded>,
}

/// Interpreters by pid.
#[derive(Debug, Default)]
pub struct Interpreters(Mutex<ByPid>);

#[derive(Debug, Default)]
struct ByPid {
    known: FxHashMap<u32, Arc<Interpreter>>,
    /// Those that are gone, the first one first, by pid and number.
    gone: VecDeque<(u32, u64)>,
}

impl Interpreters {
    fn lock(&self) -> MutexGuard<'_, ByPid> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one of a process, also a while after that has ended.
    #[must_use]
    pub fn of(&self, tgid: u32) -> Option<Arc<Interpreter>> {
        self.lock().known.get(&tgid).cloned()
    }

    /// A process has one, before the eBPF program is told.
    pub fn add(&self, tgid: u32, interpreter: Interpreter) {
        self.lock().known.insert(tgid, Arc::new(interpreter));
    }

    /// The process does not have that one any more.
    pub fn remove(&self, tgid: u32, number: u64) {
        let ByPid { known, gone } = &mut *self.lock();
        gone.push_back((tgid, number));
        while gone.len() > GONE
            && let Some((tgid, number)) = gone.pop_front()
        {
            if known.get(&tgid).is_some_and(|it| it.number == number) {
                known.remove(&tgid);
            }
        }
    }
}
