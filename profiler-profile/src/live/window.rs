//! What was sampled lately: slices of time, of which the oldest goes when a new one begins.

mod range;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use rustc_hash::FxHashMap;

use super::{
    shares::Shares,
    slice::{Counts, SLICE, SLICE_NS, Slice, is_cut},
    snapshot::{Line, LineEntry, Sampled, Snapshot, Span},
};
use crate::{
    address::Address,
    export::Row,
    frame::{COUNTS_BYTES, Frame},
    ledger::memory::{Cache, count},
    process::Metadata,
    profile::BEYOND,
    sample::{Comm, Task},
    source::Source,
    stack::{Location, Stack, StackId},
};

pub use self::range::{By, Range, Strip};

/// So many processes are told apart where there is no room for more stacks.
const MAX_BEYOND: usize = 1024;
/// The CPU of samples that are no longer known one by one.
const NO_CPU: u32 = u32::MAX;
/// What an entry of a hash table takes beside itself, about.
const TABLE_BYTES: usize = 16;

/// What tells a line from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    slot: usize,
    tgid: u32,
    tid: u32,
    comm: Comm,
    kernel: StackId,
    user: StackId,
    cpu: u32,
}

/// A line with its sums.
#[derive(Debug)]
struct Held {
    key: Key,
    entry: Arc<LineEntry>,
    window: Counts,
    start: Counts,
    /// Whether it waits to be given up.
    is_cold: bool,
}

/// The samples of the last seconds, and of the whole run, in so much memory at most.
///
/// Where that does not suffice, first the stacks are given up that are no longer in the window: since the start, their
/// samples are then known by process only. Then the window gets shorter, and at last the stacks of new samples are left
/// out.
#[derive(Debug)]
pub struct Window {
    slices: VecDeque<Slice>,
    /// How many slices there are at most, and how many of them memory has cost.
    length: u64,
    given_up: u64,
    sources: Vec<Arc<Source>>,
    lines: Vec<Option<Held>>,
    free: Vec<usize>,
    places: FxHashMap<Key, usize>,
    /// Lines that are no longer in the window, the coldest first. Some may have been sampled again.
    cold: VecDeque<usize>,
    stacks: Shares<StackId>,
    /// By where they lie: what is held lies where nothing else does.
    processes: Shares<usize>,
    beyond: usize,
    beyond_stack: Arc<Stack>,
    no_stack: Arc<Stack>,
    limit_bytes: usize,
    /// Of lines, their stacks and processes, and of slices.
    bytes: usize,
    /// What a reader has beside it, made of its snapshots.
    beside_bytes: usize,
    /// Whether nothing can be given up before the next slice.
    is_full: bool,
    begun_ns: u64,
    evicted: u64,
}

impl Window {
    /// A window of this length, which begins now (CLOCK_MONOTONIC, in nanoseconds), and so many bytes for all of it.
    #[must_use]
    pub fn new(length: Duration, limit_bytes: usize, now_ns: u64) -> Self {
        let frames = Arc::from([Frame { symbol: Some(Arc::from(BEYOND)), ..Frame::default() }]);
        let beyond = Location { address: Address::sampled(0), frames };
        // No store gives these ids to others.
        let stack = |id, locations| Arc::new(Stack { id: StackId(id), locations });
        let slices = length.as_nanos().div_ceil(u128::from(SLICE_NS));
        Self {
            slices: VecDeque::new(),
            length: u64::try_from(slices).unwrap_or(u64::MAX).max(1),
            given_up: 0,
            sources: Vec::new(),
            lines: Vec::new(),
            free: Vec::new(),
            places: FxHashMap::default(),
            cold: VecDeque::new(),
            stacks: Shares::default(),
            processes: Shares::default(),
            beyond: 0,
            beyond_stack: stack(u64::MAX, [beyond].into()),
            no_stack: stack(0, Box::default()),
            limit_bytes,
            bytes: 0,
            beside_bytes: 0,
            is_full: false,
            begun_ns: now_ns,
            evicted: 0,
        }
    }

    /// How long it is, and when it began.
    pub(super) fn extent(&self) -> (Duration, u64) {
        let slices = u32::try_from(self.length).unwrap_or(u32::MAX);
        (SLICE.saturating_mul(slices), self.begun_ns)
    }

    /// Begins now: nothing was sampled before.
    pub fn begin_at(&mut self, now_ns: u64) {
        self.begun_ns = now_ns;
    }

    /// Counts samples. Those without a time count as of the last slice.
    pub fn add(&mut self, row: &Row<'_>) {
        let moment = row.moment.as_ref();
        let last = self.slices.back().map_or(self.begun_ns / SLICE_NS, |it| it.at);
        let at = moment.map_or(last, |it| it.time_ns / SLICE_NS);
        if at > last || self.slices.is_empty() {
            self.begin(at);
        }
        let counts = Counts { count: row.count, value: row.value };
        let place = self.line(row, moment.map_or(NO_CPU, |it| it.cpu));
        if let Some(Some(held)) = self.lines.get_mut(place) {
            held.window.add(counts);
            held.start.add(counts);
        }
        self.learn(place, row.task);
        // One that comes late is of an older slice, or of the oldest.
        let slice = self.slices.iter().rposition(|it| it.at <= at).unwrap_or(0);
        let Some(slice) = self.slices.get_mut(slice) else { return };
        if let Some(of_source) = slice.of_source(row.source.slot) {
            of_source.add(row.count, moment.map(|it| it.user_end).filter(|it| is_cut(*it)));
        }
        let known = slice.counts.len();
        slice.counts.entry(place).or_default().add(counts);
        if slice.counts.len() > known {
            self.bytes = self.bytes.saturating_add(CELL_BYTES);
            self.fit();
        }
    }

    /// Takes in what is known of a line's process by now.
    fn learn(&mut self, place: usize, task: &Task) {
        let Some(Some(held)) = self.lines.get_mut(place) else { return };
        let known = &held.entry.task;
        let is_named = task.main_comm == Comm::default() || task.main_comm == known.main_comm;
        let is_described = match (&task.process, &known.process) {
            (Some(new), Some(known)) => Arc::ptr_eq(new, known),
            (new, _) => new.is_none(),
        };
        if is_named && is_described {
            return;
        }
        // A snapshot keeps what it has.
        let known = &mut Arc::make_mut(&mut held.entry).task;
        if !is_named {
            known.main_comm = task.main_comm;
        }
        if !is_described {
            let before = std::mem::replace(&mut known.process, task.process.clone());
            self.bytes = self.bytes.saturating_add(hold(&mut self.processes, task));
            let less = before.map_or(0, |it| self.processes.release(&address(&it)));
            self.bytes = self.bytes.saturating_sub(less);
        }
    }

    /// Begins a slice, and gives up those that are too old.
    fn begin(&mut self, at: u64) {
        self.is_full = false;
        self.slices.push_back(Slice { at, ..Slice::default() });
        self.evict_before(at.saturating_sub(self.length - 1));
    }

    fn evict_before(&mut self, at: u64) {
        while self.slices.front().is_some_and(|it| it.at < at) {
            self.evict();
        }
        let begun = self.begun_ns / SLICE_NS;
        if self.given_up <= at.max(begun) {
            self.given_up = 0;
        }
    }

    /// Takes the oldest slice out of the window.
    fn evict(&mut self) {
        let Some(slice) = self.slices.pop_front() else { return };
        self.bytes = self.bytes.saturating_sub(slice.counts.len().saturating_mul(CELL_BYTES));
        for (place, counts) in slice.counts {
            let Some(Some(held)) = self.lines.get_mut(place) else { continue };
            held.window.take(counts);
            let is_beyond = held.key.user == self.beyond_stack.id;
            if held.window.count == 0 && !held.is_cold && !is_beyond {
                held.is_cold = true;
                self.cold.push_back(place);
            }
        }
    }

    /// What counts towards the limit.
    fn used_bytes(&self) -> usize {
        self.bytes.saturating_add(self.beside_bytes)
    }

    /// Gives up what there is no room for.
    fn fit(&mut self) {
        if self.used_bytes() <= self.limit_bytes || self.is_full {
            return;
        }
        // Not for every line that comes, nor all at once: whoever brings samples waits for it.
        let enough = self.limit_bytes - self.limit_bytes / 16;
        self.forget_cold(enough);
        if self.used_bytes() <= enough {
            return;
        }
        // A quarter is room for some time.
        let enough = self.limit_bytes / 4 * 3;
        while self.used_bytes() > enough && self.slices.len() > 1 {
            self.evict();
            self.given_up = self.slices.front().map_or(0, |it| it.at);
            self.forget_cold(enough);
        }
        self.is_full = self.used_bytes() > self.limit_bytes;
    }

    /// Gives up lines that are not in the window, until this is enough. Their samples since the start stay with their
    /// processes.
    fn forget_cold(&mut self, enough: usize) {
        while self.used_bytes() > enough
            && let Some(place) = self.cold.pop_front()
        {
            let Some(Some(held)) = self.lines.get_mut(place) else { continue };
            held.is_cold = false;
            if held.window.count > 0 {
                continue;
            }
            let Some(held) = self.lines.get_mut(place).and_then(Option::take) else { continue };
            self.places.remove(&held.key);
            self.free.push(place);
            self.release(&held);
            self.evicted += 1;
            let to = self.beyond_line(held.entry.source.clone(), &held.entry.task);
            if let Some(Some(beyond)) = self.lines.get_mut(to) {
                beyond.start.add(held.start);
            }
        }
    }

    /// Takes back what a line has cost.
    fn release(&mut self, held: &Held) {
        let mut bytes = LINE_BYTES;
        for id in [held.key.kernel, held.key.user] {
            bytes = bytes.saturating_add(self.stacks.release(&id));
        }
        if let Some(process) = &held.entry.task.process {
            bytes = bytes.saturating_add(self.processes.release(&address(process)));
        }
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// The place of a line, which may be new.
    fn line(&mut self, row: &Row<'_>, cpu: u32) -> usize {
        let Row { source, task, kernel, user, .. } = row;
        let Task { tgid, tid, comm, .. } = **task;
        let (slot, halves) = (source.slot, (kernel.id(), user.id()));
        let key = Key { slot, tgid, tid, comm, kernel: halves.0, user: halves.1, cpu };
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let source = self.source(source);
        // Where the window is one slice only, and that is too much.
        if self.is_full {
            return self.beyond_line(source, task);
        }
        let (kernel, user) = (Arc::clone(kernel), Arc::clone(user));
        self.insert(key, LineEntry { source, task: (*task).clone(), kernel, user })
    }

    /// A source, shared by all lines.
    fn source(&mut self, source: &Source) -> Arc<Source> {
        if let Some(known) = self.sources.iter().find(|it| it.slot == source.slot) {
            return Arc::clone(known);
        }
        let new = Arc::new(source.clone());
        self.sources.push(Arc::clone(&new));
        new
    }

    fn insert(&mut self, key: Key, entry: LineEntry) -> usize {
        let mut bytes = LINE_BYTES;
        for half in [&entry.kernel, &entry.user] {
            bytes = bytes.saturating_add(self.stacks.hold(half.id(), || half.bytes()));
        }
        bytes = bytes.saturating_add(hold(&mut self.processes, &entry.task));
        self.bytes = self.bytes.saturating_add(bytes);
        let (window, start) = (Counts::default(), Counts::default());
        let held = Held { key, entry: Arc::new(entry), window, start, is_cold: false };
        let place = self.free.pop().unwrap_or(self.lines.len());
        match self.lines.get_mut(place) {
            Some(free) => *free = Some(held),
            None => self.lines.push(Some(held)),
        }
        self.places.insert(key, place);
        place
    }

    /// The line of a process for stacks that there is no room for.
    fn beyond_line(&mut self, source: Arc<Source>, task: &Task) -> usize {
        let (kernel, user) = (Arc::clone(&self.no_stack), Arc::clone(&self.beyond_stack));
        let key = |task: &Task| Key {
            slot: source.slot,
            tgid: task.tgid,
            tid: task.tid,
            comm: Comm::default(),
            kernel: kernel.id,
            user: user.id,
            cpu: NO_CPU,
        };
        let mut task = task.clone().of_process();
        let mut found = key(&task);
        if !self.places.contains_key(&found) && self.beyond >= MAX_BEYOND {
            task = Task::default();
            found = key(&task);
        }
        if let Some(place) = self.places.get(&found) {
            return *place;
        }
        self.beyond += 1;
        self.insert(found, LineEntry { source, task, kernel, user })
    }

    /// What was sampled until now (CLOCK_MONOTONIC, in nanoseconds).
    pub fn snapshot(&mut self, span: Span, now_ns: u64) -> Snapshot {
        let now = now_ns / SLICE_NS;
        let oldest = now.saturating_sub(self.length - 1);
        self.evict_before(oldest);
        let begun = self.begun_ns / SLICE_NS;
        let first = oldest.max(begun).max(self.given_up);
        let lines = self.lines.iter().flatten().filter_map(|held| {
            let Counts { count, value } = match span {
                Span::Window => held.window,
                Span::Start => held.start,
            };
            // Whoever brings samples waits for this: nothing is copied that can be shared.
            let line = || Line { entry: Arc::clone(&held.entry), cpu: held.key.cpu, count, value };
            (count > 0).then(line)
        });
        let from_ns = match span {
            Span::Window => (first * SLICE_NS).max(self.begun_ns),
            Span::Start => self.begun_ns,
        };
        let mut rate =
            vec![0_u64; usize::try_from(now.saturating_sub(first) + 1).unwrap_or(1).min(4096)];
        let mut sources: Vec<Sampled> = Vec::new();
        for slice in &self.slices {
            let place = slice.at.checked_sub(first).and_then(|it| usize::try_from(it).ok());
            if let Some(rate) = place.and_then(|it| rate.get_mut(it)) {
                *rate = slice.sources.iter().map(|it| it.samples).fold(*rate, u64::saturating_add);
            }
            sources.resize_with(sources.len().max(slice.sources.len()), Sampled::default);
            sources.iter_mut().zip(&slice.sources).for_each(|(sum, one)| sum.merge(one));
        }
        for source in &mut sources {
            source.cut.sort_by_key(|(end, count)| (std::cmp::Reverse(*count), end.word()));
        }
        Snapshot {
            lines: lines.collect(),
            time: Duration::from_nanos(now_ns.saturating_sub(from_ns)),
            rate,
            sources,
            short_of: SLICE.saturating_mul(
                u32::try_from(self.given_up.saturating_sub(oldest.max(begun))).unwrap_or(u32::MAX),
            ),
            behind: Duration::ZERO,
        }
    }

    /// What a reader holds beside the window, made of its snapshots, counts towards the limit, too.
    pub fn set_beside(&mut self, bytes: usize) {
        self.beside_bytes = bytes;
    }

    /// When the last sample was taken, to the slice; `None` if the window is empty.
    pub(super) fn latest_ns(&self) -> Option<u64> {
        self.slices.back().map(|it| it.at.saturating_add(1).saturating_mul(SLICE_NS))
    }

    /// What it holds.
    #[must_use]
    pub fn account(&self) -> Cache {
        Cache {
            name: "stacks of the window",
            entries: count(self.places.len()),
            bytes: count(self.used_bytes()),
            limit_bytes: Some(count(self.limit_bytes)),
            limit_entries: None,
            evicted: self.evicted,
        }
    }
}

/// What a line takes in its tables, and a cell of a slice.
const LINE_BYTES: usize = size_of::<Option<Held>>()
    + COUNTS_BYTES
    + size_of::<LineEntry>()
    + size_of::<(Key, usize)>()
    + 2 * TABLE_BYTES;
const CELL_BYTES: usize = size_of::<(usize, Counts)>() + TABLE_BYTES;

/// Has one more line count what is known of a process.
fn hold(processes: &mut Shares<usize>, task: &Task) -> usize {
    let Some(process) = &task.process else { return 0 };
    processes.hold(address(process), || TABLE_BYTES + process.own_bytes())
}

/// Where it lies.
fn address(process: &Arc<Metadata>) -> usize {
    Arc::as_ptr(process).addr()
}
