//! The process manager: what happens to processes is applied once, to one table for all threads, and observers are told
//! what has changed.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use profiler_profile::ledger::memory::Cache;

use super::{
    space::Mappings,
    table::{Event, GRACE_NS, Kind, Process, Processes},
};

/// Who has to know what runs where, and what that has mapped.
pub trait Observer: Send + Sync {
    /// Takes what has changed; whether there was room for that. If not, all of it is told again, as it is then.
    ///
    /// This is called by the thread that reads the ring, or waits for that: hand it over to a thread of your own.
    fn changed(&self, changes: Vec<Change>) -> bool;
}

/// What a pid stands for now. What it was in between is not told.
#[derive(Clone, Debug)]
pub struct Change {
    /// The pid.
    pub tgid: u32,
    /// What runs there; `None` if that ended a while ago, or was evicted.
    pub image: Option<Image>,
}

/// A process image: a process from its start, or from an exec, until the next exec or its end.
#[derive(Clone, Debug)]
pub struct Image {
    /// When it began, which tells it from others of the same pid; CLOCK_MONOTONIC. 0 where it was there before anybody
    /// looked.
    pub began_ns: u64,
    /// What it has mapped. Files come as they are mapped, so a new image has none at first, and files that are slow to open
    /// are opened later.
    pub mappings: Mappings,
}

/// The table of processes. Clones share it.
#[derive(Clone)]
pub struct Manager(Arc<Mutex<Shared>>);

struct Shared {
    processes: Processes,
    observers: Vec<Observed>,
    /// Processes that have ended, and when, until observers are told.
    ended: VecDeque<(u64, u32)>,
    /// What has ended before this time is gone for observers. Samples may still ask for it.
    gone_before_ns: u64,
}

struct Observed {
    by: Weak<dyn Observer>,
    /// Who has changed since it was last told.
    untold: BTreeSet<u32>,
}

impl Manager {
    /// No process yet, and room for so many.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            processes: Processes::new(limit),
            observers: Vec::new(),
            ended: VecDeque::new(),
            gone_before_ns: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an observer told what runs now, and from then on what changes, for as long as it is there.
    pub fn observe<T: Observer + 'static>(&self, by: &Arc<T>) {
        let mut shared = self.lock();
        let untold = shared.processes.tgids().collect();
        let by: Weak<T> = Arc::downgrade(by);
        shared.observers.push(Observed { by, untold });
        shared.tell(&[]);
    }

    /// Takes in what happened, in the order of time, and tells the observers. To be called from time to time also where
    /// nothing has.
    pub fn apply(&self, events: impl IntoIterator<Item = Event>, now_ns: u64) {
        let mut shared = self.lock();
        shared.gone_before_ns = shared.gone_before_ns.max(now_ns.saturating_sub(GRACE_NS));
        let mut changed = Vec::new();
        for event in events {
            match event.kind {
                // Nothing else is mapped.
                Kind::Named(_) | Kind::Described(_) => {}
                Kind::Ended => shared.ended.push_back((event.time_ns, event.tgid)),
                _ => changed.push(event.tgid),
            }
            shared.processes.apply(event);
        }
        while let Some(&(ended_ns, tgid)) = shared.ended.front()
            && ended_ns < shared.gone_before_ns
        {
            shared.ended.pop_front();
            changed.push(tgid);
        }
        changed.extend(shared.processes.take_forgotten());
        shared.tell(&changed);
    }

    /// Forgets what no sample can ask for any more: none from before `time_ns` will come.
    pub fn forget_before(&self, time_ns: u64) {
        let mut shared = self.lock();
        let forgotten = shared.processes.forget_before(time_ns);
        shared.tell(&forgotten);
    }

    /// The process that had this pid at a time, of which a sample is.
    #[must_use]
    pub fn at(&self, tgid: u32, time_ns: u64) -> Option<Process> {
        self.lock().processes.at(tgid, time_ns)
    }

    /// The process that had this pid at a time.
    #[must_use]
    pub fn known_at(&self, tgid: u32, time_ns: u64) -> Option<Process> {
        self.lock().processes.known_at(tgid, time_ns).cloned()
    }

    /// Whether the process that had this pid at a time is one of these or was begun by one of them, or by what they have
    /// begun, as far as that is known.
    #[must_use]
    pub fn descends(&self, tgid: u32, time_ns: u64, of: &[u32]) -> bool {
        self.lock().processes.descends(tgid, time_ns, of)
    }

    /// How many processes were forgotten to make room for others.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.lock().processes.evicted()
    }

    /// What the table holds.
    #[must_use]
    pub fn account(&self) -> Cache {
        self.lock().processes.account()
    }
}

impl Shared {
    /// Tells each observer of these, and of those for which it had no room.
    fn tell(&mut self, changed: &[u32]) {
        let Self { processes, observers, gone_before_ns, .. } = self;
        let change = |&tgid: &u32| {
            let process = processes.since(tgid, *gone_before_ns);
            let image = process
                .map(|it| Image { began_ns: it.began_ns, mappings: it.space.mappings().clone() });
            Change { tgid, image }
        };
        observers.retain_mut(|it| {
            let Some(by) = it.by.upgrade() else { return false };
            it.untold.extend(changed);
            if !it.untold.is_empty() && by.changed(it.untold.iter().map(change).collect()) {
                it.untold.clear();
            }
            true
        });
    }
}

#[cfg(test)]
mod tests;
