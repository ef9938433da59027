//! Processes in time: which there were, and what they had mapped when.
//!
//! What happens to processes comes as [`Event`]s, each before the samples that it matters for. A
//! process is its pid and when it began, so that a pid used again is another process. One that has
//! ended is kept until no sample from before can come any more.

use std::{collections::VecDeque, sync::Arc};

use profiler_profile::{
    ledger::memory::{Cache, count},
    process::Metadata,
    sample::Comm,
};
use rustc_hash::FxHashMap;

use super::space::{Mapped, Space};

/// For how long a process that has ended is kept, in the time of the samples.
pub(super) const GRACE_NS: u64 = 500_000_000;
/// Images of one pid that are remembered: its programs within the time for which late samples may come.
const MAX_IMAGES: usize = 16;
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
    /// When it began, or called exec last; CLOCK_MONOTONIC. 0 where it was there before anybody looked.
    pub began_ns: u64,
    /// The name of its main thread; empty if it is not known.
    pub name: Comm,
    /// Its address space.
    pub space: Arc<Space>,
    /// What it had mapped when it called exec, for a while. Until the new program runs, the address
    /// in user space that a sample shows is still that of the call.
    pub before_exec: Option<Arc<Space>>,
    /// Who it is, if that was asked for.
    pub metadata: Option<Arc<Metadata>>,
}

/// What a pid stands for over time.
#[derive(Debug, Default)]
struct Pid {
    /// The last one last.
    images: VecDeque<Image>,
    /// When it was last sampled or began.
    used: u64,
    /// Of times before this too much has happened to know.
    known_since_ns: u64,
    /// Whether it is among those that have something to forget.
    is_due: bool,
}

impl Pid {
    /// Forgets what ended before a time.
    fn forget_before(&mut self, time_ns: u64) {
        // An image lasts until it ends or the next one begins.
        let next = self.images.iter().skip(1).map(|it| Some(it.process.began_ns)).chain([None]);
        let next: Vec<Option<u64>> = next.collect();
        let mut next = next.into_iter();
        self.images.retain_mut(|it| {
            let until_ns = match (it.ended_ns, next.next().flatten()) {
                (Some(ended_ns), Some(next_ns)) => Some(ended_ns.min(next_ns)),
                (ended_ns, next_ns) => ended_ns.or(next_ns),
            };
            if it.process.began_ns < time_ns {
                it.process.before_exec = None;
            }
            if let Some(space) = Arc::get_mut(&mut it.process.space) {
                space.forget_before(time_ns);
            }
            until_ns.is_none_or(|it| it >= time_ns)
        });
    }
}

/// A process image: a process from its start, or from an exec, until the next exec or its end.
#[derive(Debug)]
struct Image {
    /// When `/proc` was read: what happened before is known already.
    found_ns: u64,
    ended_ns: Option<u64>,
    process: Process,
}

impl Image {
    /// When the last was told of it.
    fn told_ns(&self) -> u64 {
        let changed_ns = self.process.space.changed_ns().max(self.ended_ns.unwrap_or_default());
        changed_ns.max(self.process.began_ns)
    }
}

/// All processes.
#[derive(Debug)]
pub struct Processes {
    pids: FxHashMap<u32, Pid>,
    limit: usize,
    clock: u64,
    evicted: u64,
    /// Pids with something to forget, each once, and when the first of that is due.
    due: VecDeque<(u64, u32)>,
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
            due: VecDeque::new(),
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
        for image in self.pids.values().flat_map(|pid| &pid.images) {
            let space = &image.process.space;
            bytes += size_of::<Image>() + space.bytes() / Arc::strong_count(space).max(1);
        }
        bytes += self.pids.capacity() * size_of::<(u32, Pid)>();
        bytes += self.due.capacity() * size_of::<(u64, u32)>();
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
                let copied = self.last(parent).map(|it| it.process.clone());
                let metadata = copied.as_ref().and_then(|process| process.metadata.as_deref());
                let metadata =
                    metadata.map(|it| Arc::new(Metadata { parent: Some(parent), ..it.clone() }));
                let name = copied.as_ref().map_or_else(Comm::default, |process| process.name);
                let space = copied.map_or_else(|| empty(time_ns), |process| process.space);
                let began_ns = time_ns;
                self.begin(Process { tgid, began_ns, name, space, before_exec: None, metadata }, 0);
            }
            Kind::Exec(name) => {
                let before = self.last(tgid).map(|it| it.process.clone());
                // Of one that is gone already, what it belonged to before still holds.
                let metadata = before.as_ref().and_then(|process| process.metadata.as_deref());
                let metadata = metadata.map(|it| Arc::new(it.after_exec()));
                let before_exec = before.map(|process| process.space);
                let (space, began_ns) = (empty(time_ns), time_ns);
                self.begin(Process { tgid, began_ns, name, space, before_exec, metadata }, 0);
            }
            Kind::Named(name) => {
                if let Some(image) = self.last_mut(tgid) {
                    image.process.name = name;
                }
            }
            Kind::Described(metadata) => {
                let images = self.pids.get_mut(&tgid).map(|it| it.images.iter_mut());
                let image = images.and_then(|mut it| it.find(|it| it.process.began_ns == time_ns));
                let known = image.map(|it| &mut it.process.metadata);
                // Of one that is gone, nothing is new.
                if let Some(known) = known.filter(|it| metadata.parent.is_some() || it.is_none()) {
                    *known = Some(Arc::from(metadata));
                }
            }
            Kind::Mapped(mapping) => {
                if !self.pids.contains_key(&tgid) {
                    let process = Process {
                        tgid,
                        began_ns: time_ns,
                        name: Comm::default(),
                        space: empty(time_ns),
                        before_exec: None,
                        metadata: None,
                    };
                    self.begin(process, 0);
                }
                let image = self.last_mut(tgid).filter(|it| !it.process.space.has(&mapping));
                if let Some(image) = image {
                    Arc::make_mut(&mut image.process.space).map(mapping, time_ns);
                    self.will_forget(tgid, time_ns);
                }
            }
            Kind::Ended => {
                if let Some(image) = self.last_mut(tgid) {
                    image.ended_ns = Some(time_ns);
                    self.will_forget(tgid, time_ns);
                }
            }
        }
    }

    /// Whether `/proc` was read after this time, so that it has told already.
    fn knows_since(&self, tgid: u32, time_ns: u64) -> bool {
        self.last(tgid).is_some_and(|it| time_ns < it.found_ns)
    }

    fn last(&self, tgid: u32) -> Option<&Image> {
        self.pids.get(&tgid)?.images.back()
    }

    fn last_mut(&mut self, tgid: u32) -> Option<&mut Image> {
        self.pids.get_mut(&tgid)?.images.back_mut()
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
            Some(image) if time_ns < image.told_ns() => {}
            Some(image) if image.ended_ns.is_none() => {
                image.found_ns = time_ns;
                let process = &mut image.process;
                if name != Comm::default() {
                    process.name = name;
                }
                process.metadata = metadata.or(process.metadata.take());
                if process.space.mappings()[..] != mappings[..] {
                    Arc::make_mut(&mut process.space).replace(mappings, time_ns);
                }
            }
            // It may have begun long before: what is not known otherwise is taken to be so since.
            _ => {
                let (space, began_ns) = (Arc::new(Space::new(mappings, 0)), 0);
                let process = Process { tgid, began_ns, name, space, before_exec: None, metadata };
                self.begin(process, time_ns);
            }
        }
    }

    fn begin(&mut self, process: Process, found_ns: u64) {
        let Process { tgid, began_ns, .. } = process;
        if !self.pids.contains_key(&tgid) && self.pids.len() >= self.limit {
            self.evict();
        }
        self.clock += 1;
        let pid = self.pids.entry(tgid).or_default();
        pid.used = self.clock;
        pid.images.push_back(Image { found_ns, ended_ns: None, process });
        if pid.images.len() > MAX_IMAGES {
            pid.images.pop_front();
            pid.known_since_ns = pid.images.front().map_or(0, |it| it.process.began_ns);
        }
        if pid.images.len() > 1 {
            self.will_forget(tgid, began_ns);
        }
    }

    /// The process that had this pid at a time, of which a sample is.
    pub fn at(&mut self, tgid: u32, time_ns: u64) -> Option<Process> {
        self.clock += 1;
        let pid = self.pids.get_mut(&tgid)?;
        pid.used = self.clock;
        // Its main thread has ended, and another has not.
        if let Some(ended_ns) = pid.images.back_mut().and_then(|it| it.ended_ns.as_mut()) {
            *ended_ns = time_ns.max(*ended_ns);
        }
        self.known_at(tgid, time_ns).cloned()
    }

    /// The process that had this pid at a time.
    #[must_use]
    pub fn known_at(&self, tgid: u32, time_ns: u64) -> Option<&Process> {
        let pid = self.pids.get(&tgid).filter(|it| it.known_since_ns <= time_ns)?;
        let image = pid.images.iter().rev().find(|it| it.process.began_ns <= time_ns);
        // Records and samples have clocks read at slightly different points of one event.
        image.or(pid.images.front()).map(|it| &it.process)
    }

    /// The last process that had this pid, unless it ended before a time.
    #[must_use]
    pub fn since(&self, tgid: u32, time_ns: u64) -> Option<&Process> {
        let is_there = |it: &&Image| it.ended_ns.is_none_or(|ended_ns| ended_ns >= time_ns);
        self.last(tgid).filter(is_there).map(|it| &it.process)
    }

    /// All pids that are known.
    pub fn tgids(&self) -> impl Iterator<Item = u32> {
        self.pids.keys().copied()
    }

    /// Whether the process that had this pid at a time is one of these or was begun by one of them, or by what they have
    /// begun, as far as that is known.
    #[must_use]
    pub fn descends(&self, mut tgid: u32, time_ns: u64, of: &[u32]) -> bool {
        for _ in 0..MAX_DEPTH {
            if of.contains(&tgid) {
                return true;
            }
            let process = self.known_at(tgid, time_ns);
            let Some(parent) = process.and_then(|it| it.metadata.as_ref()?.parent) else {
                return false;
            };
            tgid = parent;
        }
        false
    }

    /// Has something of a pid forgotten when no sample from before this time can come any more.
    fn will_forget(&mut self, tgid: u32, time_ns: u64) {
        if let Some(pid) = self.pids.get_mut(&tgid).filter(|it| !it.is_due) {
            pid.is_due = true;
            self.due.push_back((time_ns, tgid));
        }
    }

    /// Forgets what no sample can ask for any more: none from before `time_ns` will come. Gives the
    /// pids that were forgotten since the last call, also those that had to make room.
    pub fn forget_before(&mut self, time_ns: u64) -> Vec<u32> {
        let horizon_ns = time_ns.saturating_sub(GRACE_NS);
        while let Some(&(due_ns, tgid)) = self.due.front()
            && due_ns < horizon_ns
        {
            self.due.pop_front();
            let Some(pid) = self.pids.get_mut(&tgid).filter(|it| it.is_due) else { continue };
            pid.is_due = false;
            pid.forget_before(horizon_ns);
            match pid.images.back().map(Image::told_ns) {
                None => {
                    self.pids.remove(&tgid);
                    self.forgotten.push(tgid);
                }
                Some(told_ns) if told_ns >= horizon_ns => self.will_forget(tgid, told_ns),
                Some(_) => {}
            }
        }
        self.take_forgotten()
    }

    /// Those that had to make room since the last call, and since [`forget_before`](Self::forget_before).
    pub fn take_forgotten(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.forgotten)
    }

    /// Forgets a quarter of the processes: those that have ended, then those not sampled for longest.
    fn evict(&mut self) {
        let key = |pid: &Pid| {
            let has_ended = pid.images.back().is_some_and(|it| it.ended_ns.is_some());
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

fn empty(time_ns: u64) -> Arc<Space> {
    Arc::new(Space::new(Vec::new(), time_ns))
}

#[cfg(test)]
mod tests;
