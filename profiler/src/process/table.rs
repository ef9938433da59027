//! Processes in time: which there were, and what they had mapped when.
//!
//! What happens to processes comes as [`Event`]s, each before the samples that it matters for. A
//! process is its pid and when it began, so that a pid used again is another process. One that has
//! ended is kept until no sample from before can come any more.

use std::{rc::Rc, sync::Arc};

use profiler_profile::{
    ledger::memory::{Cache, count},
    process::Metadata,
    sample::Comm,
};
use rustc_hash::FxHashMap;

use super::space::{Mapped, Space};

/// For how long a process that has ended is kept, in the time of the samples.
const GRACE_NS: u64 = 500_000_000;
/// As many generations are looked through.
const MAX_DEPTH: usize = 64;

/// Something that happened to a process.
#[derive(Clone, Debug)]
pub struct Event {
    /// When, by CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// To which one.
    pub tgid: u32,
    /// What.
    pub kind: Kind,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Kind {
    /// It was there: read from `/proc`.
    Found {
        /// What it has mapped.
        mappings: Vec<Mapped>,
        /// The name of its main thread.
        name: Comm,
        /// Who it is, if that was asked for.
        metadata: Option<Box<Metadata>>,
    },
    /// It began as a copy of this process.
    Forked(u32),
    /// It runs another program, with nothing of the last one mapped; its main thread has this name now.
    Exec(Comm),
    /// Its main thread has this name now.
    Named(Comm),
    /// Who it is since an exec at that time; may come late.
    Described(Box<Metadata>),
    /// It mapped something executable.
    Mapped(Mapped),
    /// It ended.
    Ended,
}

/// A process at a time.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its pid.
    pub tgid: u32,
    /// The name of its main thread; empty if it is not known.
    pub name: Comm,
    /// What it has mapped.
    pub space: Rc<Space>,
    /// What it had mapped when it called exec, for a while. Until the new program runs, the address
    /// in user space that a sample shows is still that of the call.
    pub before_exec: Option<Rc<Space>>,
    /// Who it is, if that was asked for.
    pub metadata: Option<Arc<Metadata>>,
}

/// A pid and the processes that had it, the last one last.
#[derive(Debug, Default)]
struct Pid {
    runs: Vec<Run>,
    used: u64,
}

/// A process from its start, or from an exec, until the next.
#[derive(Debug)]
struct Run {
    from_ns: u64,
    /// When `/proc` was read: what happened before is known already.
    found_ns: u64,
    ended_ns: Option<u64>,
    process: Process,
}

impl Run {
    /// When the last was told of it.
    fn told_ns(&self) -> u64 {
        let changed_ns = self.process.space.changed_ns().max(self.ended_ns.unwrap_or_default());
        changed_ns.max(self.from_ns)
    }
}

/// All processes.
#[derive(Debug)]
pub struct Processes {
    pids: FxHashMap<u32, Pid>,
    limit: usize,
    clock: u64,
    evicted: u64,
    /// Pids with something to forget, and when that is due.
    ended: std::collections::VecDeque<(u64, u32)>,
    /// Pids forgotten since that was last told.
    forgotten: Vec<u32>,
}

impl Processes {
    /// No process yet, and room for so many.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            pids: FxHashMap::default(),
            limit: limit.max(1),
            clock: 0,
            evicted: 0,
            ended: std::collections::VecDeque::new(),
            forgotten: Vec::new(),
        }
    }

    /// How many processes were forgotten to make room for others.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// What it holds. The mappings that processes share count once.
    #[must_use]
    pub fn account(&self) -> Cache {
        let mut bytes = 0;
        for run in self.pids.values().flat_map(|pid| &pid.runs) {
            let space = run.process.space.bytes() / Rc::strong_count(&run.process.space).max(1);
            bytes += size_of::<Run>() + space;
        }
        bytes += self.pids.capacity() * size_of::<(u32, Pid)>();
        bytes += self.ended.capacity() * size_of::<(u64, u32)>();
        Cache {
            name: "processes",
            entries: count(self.pids.len()),
            bytes: count(bytes),
            limit_bytes: None,
            limit_entries: Some(count(self.limit)),
            evicted: self.evicted,
        }
    }

    /// Takes in what happened.
    pub fn apply(&mut self, event: Event) {
        let Event { time_ns, tgid, kind } = event;
        if !matches!(kind, Kind::Found { .. }) && self.knows_since(tgid, time_ns) {
            return;
        }
        match kind {
            Kind::Found { mappings, name, metadata } => {
                self.find_out(tgid, mappings, name, metadata.map(Arc::from), time_ns);
            }
            Kind::Forked(parent) => {
                let copied = self.last(parent).map(|run| run.process.clone());
                let metadata = copied.as_ref().and_then(|process| process.metadata.as_deref());
                let metadata =
                    metadata.map(|it| Arc::new(Metadata { parent: Some(parent), ..it.clone() }));
                let name = copied.as_ref().map_or_else(Comm::default, |process| process.name);
                let space = copied.map_or_else(|| empty(time_ns), |process| process.space);
                self.begin(Process { tgid, name, space, before_exec: None, metadata }, time_ns, 0);
            }
            Kind::Exec(name) => {
                let before = self.last(tgid).map(|run| run.process.clone());
                // Of one that is gone already, what it belonged to before still holds.
                let metadata = before.as_ref().and_then(|process| process.metadata.as_deref());
                let metadata = metadata.map(|it| Arc::new(it.after_exec()));
                let before_exec = before.map(|process| process.space);
                let space = empty(time_ns);
                self.begin(Process { tgid, name, space, before_exec, metadata }, time_ns, 0);
            }
            Kind::Named(name) => {
                if let Some(run) = self.last_mut(tgid) {
                    run.process.name = name;
                }
            }
            Kind::Described(metadata) => {
                let pid = self.pids.get_mut(&tgid);
                let run = pid.and_then(|it| it.runs.iter_mut().find(|it| it.from_ns == time_ns));
                let known = run.map(|run| &mut run.process.metadata);
                // Of one that is gone, nothing is new.
                if let Some(known) = known.filter(|it| metadata.parent.is_some() || it.is_none()) {
                    *known = Some(Arc::from(metadata));
                }
            }
            Kind::Mapped(mapping) => {
                if !self.pids.contains_key(&tgid) {
                    let space = empty(time_ns);
                    let process = Process {
                        tgid,
                        name: Comm::default(),
                        space,
                        before_exec: None,
                        metadata: None,
                    };
                    self.begin(process, time_ns, 0);
                }
                if let Some(run) =
                    self.last_mut(tgid).filter(|run| !run.process.space.has(&mapping))
                {
                    Rc::make_mut(&mut run.process.space).map(mapping, time_ns);
                    self.ended.push_back((time_ns, tgid));
                }
            }
            Kind::Ended => {
                if let Some(run) = self.last_mut(tgid) {
                    run.ended_ns = Some(time_ns);
                    self.ended.push_back((time_ns, tgid));
                }
            }
        }
    }

    /// Whether `/proc` was read after this time, so that it has told already.
    fn knows_since(&self, tgid: u32, time_ns: u64) -> bool {
        self.last(tgid).is_some_and(|run| time_ns < run.found_ns)
    }

    fn last(&self, tgid: u32) -> Option<&Run> {
        self.pids.get(&tgid)?.runs.last()
    }

    fn last_mut(&mut self, tgid: u32) -> Option<&mut Run> {
        self.pids.get_mut(&tgid)?.runs.last_mut()
    }

    fn find_out(
        &mut self,
        tgid: u32,
        mappings: Vec<Mapped>,
        name: Comm,
        metadata: Option<Arc<Metadata>>,
        time_ns: u64,
    ) {
        match self.last_mut(tgid) {
            // It comes late: what has been told since is newer.
            Some(run) if time_ns < run.told_ns() => {}
            Some(run) if run.ended_ns.is_none() => {
                run.found_ns = time_ns;
                if name != Comm::default() {
                    run.process.name = name;
                }
                run.process.metadata = metadata.or(run.process.metadata.take());
                if run.process.space.mappings() != mappings {
                    Rc::make_mut(&mut run.process.space).replace(mappings, time_ns);
                }
            }
            // It may have begun long before: what is not known otherwise is taken to be so since.
            _ => {
                let space = Rc::new(Space::new(mappings, 0));
                self.begin(Process { tgid, name, space, before_exec: None, metadata }, 0, time_ns);
            }
        }
    }

    fn begin(&mut self, process: Process, from_ns: u64, found_ns: u64) {
        let tgid = process.tgid;
        if !self.pids.contains_key(&tgid) && self.pids.len() >= self.limit {
            self.evict();
        }
        self.clock += 1;
        let pid = self.pids.entry(tgid).or_default();
        pid.used = self.clock;
        pid.runs.push(Run { from_ns, found_ns, ended_ns: None, process });
        if pid.runs.len() > 1 {
            self.ended.push_back((from_ns, tgid));
        }
    }

    /// The process that had this pid at a time.
    pub fn at(&mut self, tgid: u32, time_ns: u64) -> Option<Process> {
        self.clock += 1;
        let pid = self.pids.get_mut(&tgid)?;
        pid.used = self.clock;
        // Its main thread has ended, and another has not.
        if let Some(ended_ns) = pid.runs.last_mut().and_then(|run| run.ended_ns.as_mut()) {
            *ended_ns = time_ns.max(*ended_ns);
        }
        let run = pid.runs.iter().rev().find(|run| run.from_ns <= time_ns);
        // Records and samples have clocks read at slightly different points of one event.
        run.or(pid.runs.first()).map(|run| run.process.clone())
    }

    /// The last process that had this pid.
    #[must_use]
    pub fn last_of(&self, tgid: u32) -> Option<&Process> {
        self.last(tgid).map(|run| &run.process)
    }

    /// Whether a process is one of these or was begun by one of them, or by what they have begun, as far as that is known.
    #[must_use]
    pub fn descends(&self, mut tgid: u32, of: &[u32]) -> bool {
        for _ in 0..MAX_DEPTH {
            if of.contains(&tgid) {
                return true;
            }
            let parent = self.last_of(tgid).and_then(|it| it.metadata.as_ref()?.parent);
            let Some(parent) = parent else { return false };
            tgid = parent;
        }
        false
    }

    /// What a process has mapped now.
    #[must_use]
    pub fn now(&self, tgid: u32) -> Option<Rc<Space>> {
        self.last(tgid).map(|run| Rc::clone(&run.process.space))
    }

    /// Forgets what no sample can ask for any more: none from before `time_ns` will come. Gives the
    /// pids that were forgotten since the last call, also those that had to make room.
    pub fn forget_before(&mut self, time_ns: u64) -> Vec<u32> {
        let horizon = time_ns.saturating_sub(GRACE_NS);
        while let Some(&(due_ns, tgid)) = self.ended.front() {
            if due_ns >= horizon {
                break;
            }
            self.ended.pop_front();
            let Some(pid) = self.pids.get_mut(&tgid) else { continue };
            // A run lasts until it ends or the next one begins.
            let runs = pid.runs.len();
            let next_from: Vec<Option<u64>> =
                (1..=runs).map(|next| pid.runs.get(next).map(|run| run.from_ns)).collect();
            let mut next_from = next_from.into_iter();
            pid.runs.retain_mut(|run| {
                let until = match (run.ended_ns, next_from.next().flatten()) {
                    (Some(ended), Some(next)) => Some(ended.min(next)),
                    (ended, next) => ended.or(next),
                };
                if run.from_ns < horizon {
                    run.process.before_exec = None;
                }
                if let Some(space) = Rc::get_mut(&mut run.process.space) {
                    space.forget_before(horizon);
                }
                until.is_none_or(|until_ns| until_ns >= horizon)
            });
            match pid.runs.last() {
                None => {
                    self.pids.remove(&tgid);
                    self.forgotten.push(tgid);
                }
                // It was sampled since.
                Some(Run { ended_ns: Some(ended_ns), .. }) if due_ns < *ended_ns => {
                    self.ended.push_back((*ended_ns, tgid));
                }
                Some(_) => {}
            }
        }
        std::mem::take(&mut self.forgotten)
    }

    /// Forgets a quarter of the processes: those that have ended, then those not sampled for longest.
    fn evict(&mut self) {
        let key = |pid: &Pid| {
            let has_ended = pid.runs.last().is_some_and(|run| run.ended_ns.is_some());
            (!has_ended, pid.used)
        };
        let mut keys: Vec<(bool, u64)> = self.pids.values().map(key).collect();
        let quarter = (keys.len() / 4).min(keys.len().saturating_sub(1));
        let (_, &mut limit, _) = keys.select_nth_unstable(quarter);
        let before = self.pids.len();
        self.pids.retain(|tgid, pid| {
            let stays = key(pid) > limit;
            if !stays {
                self.forgotten.push(*tgid);
            }
            stays
        });
        self.evicted += (before - self.pids.len()) as u64;
    }
}

fn empty(time_ns: u64) -> Rc<Space> {
    Rc::new(Space::new(Vec::new(), time_ns))
}

#[cfg(test)]
mod tests;
