//! What was sampled lately: slices of time, of which the oldest goes when a new one begins.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use rustc_hash::FxHashMap;

use crate::{
    address::Address,
    export::Row,
    frame::Frame,
    ledger::memory::{Cache, count},
    process::Metadata,
    profile::{BEYOND, Entry},
    sample::{Comm, Task},
    source::Source,
    stack::{Location, Stack, StackId},
    stack_end::StackEnd,
};

/// What a slice lasts: the window moves in steps of it.
pub const SLICE: Duration = Duration::from_millis(500);
const SLICE_NS: u64 = 500_000_000;
/// So many processes are told apart where there is no room for more stacks.
const MAX_BEYOND: usize = 1024;
/// The CPU of samples that are no longer known one by one.
const NO_CPU: u32 = u32::MAX;
/// What an entry of a hash table takes beside itself, about.
const TABLE_BYTES: usize = 16;

/// Which samples are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Span {
    /// Those of the window.
    #[default]
    Window,
    /// All since the start.
    Start,
}

/// Samples of one thread on one CPU with the same stack.
#[derive(Clone, Debug)]
pub struct Line {
    /// Whose they are, and how many.
    pub entry: Entry,
    /// The CPU that was sampled.
    pub cpu: u32,
}

/// What was sampled in a span.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The samples, in no order.
    pub lines: Vec<Line>,
    /// The time that they are of.
    pub time: Duration,
    /// Samples of each slice of the window, the oldest first.
    pub rate: Vec<u64>,
    /// User stacks of the window that are not whole, by why, most frequent first.
    pub cut: Vec<(StackEnd, u64)>,
    /// Samples of the window.
    pub in_window: u64,
    /// By how much the window is shorter than it should be, since memory did not suffice.
    pub short_of: Duration,
    /// How long ago it ends.
    pub behind: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    count: u64,
    value: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.value = self.value.saturating_add(other.value);
    }

    fn take(&mut self, other: Self) {
        self.count = self.count.saturating_sub(other.count);
        self.value = self.value.saturating_sub(other.value);
    }
}

/// Slot, process, thread, its name, the two stacks, and the CPU.
type Key = (usize, u32, u32, Comm, StackId, StackId, u32);

/// A line with its sums.
#[derive(Debug)]
struct Held {
    key: Key,
    line: Line,
    window: Counts,
    start: Counts,
}

/// What was sampled in [`SLICE`].
#[derive(Debug, Default)]
struct Slice {
    /// Its number: the time of the machine, in slices.
    at: u64,
    counts: FxHashMap<usize, Counts>,
    samples: u64,
    cut: Vec<(StackEnd, u64)>,
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
    /// How many lines have a stack, and its bytes.
    stacks: FxHashMap<StackId, (usize, usize)>,
    beyond: usize,
    beyond_stack: Arc<Stack>,
    no_stack: Arc<Stack>,
    limit_bytes: usize,
    /// Of lines and their stacks, and of slices.
    bytes: usize,
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
            stacks: FxHashMap::default(),
            beyond: 0,
            beyond_stack: stack(u64::MAX, [beyond].into()),
            no_stack: stack(0, Box::default()),
            limit_bytes,
            bytes: 0,
            is_full: false,
            begun_ns: now_ns,
            evicted: 0,
        }
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
            let task = &mut held.line.entry.task;
            if row.task.main_comm != Comm::default() {
                task.main_comm = row.task.main_comm;
            }
            if row.task.process.is_some() {
                task.process.clone_from(&row.task.process);
            }
        }
        // One that comes late is of an older slice, or of the oldest.
        let slice = self.slices.iter().rposition(|it| it.at <= at).unwrap_or(0);
        let Some(slice) = self.slices.get_mut(slice) else { return };
        slice.samples = slice.samples.saturating_add(row.count);
        let end = moment.map(|it| it.user_end).filter(|it| is_cut(*it));
        if let Some(end) = end {
            match slice.cut.iter_mut().find(|(known, _)| *known == end) {
                Some((_, cut)) => *cut = cut.saturating_add(row.count),
                None => slice.cut.push((end, row.count)),
            }
        }
        let known = slice.counts.len();
        slice.counts.entry(place).or_default().add(counts);
        if slice.counts.len() > known {
            self.bytes = self.bytes.saturating_add(CELL_BYTES);
            self.fit();
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
            if let Some(Some(held)) = self.lines.get_mut(place) {
                held.window.take(counts);
            }
        }
    }

    /// Gives up what there is no room for.
    fn fit(&mut self) {
        if self.bytes <= self.limit_bytes || self.is_full {
            return;
        }
        self.forget_cold();
        // Not for every line that comes: a quarter is room for some time.
        while self.bytes > self.limit_bytes / 4 * 3 && self.slices.len() > 1 {
            self.evict();
            self.given_up = self.slices.front().map_or(0, |it| it.at);
            self.forget_cold();
        }
        self.is_full = self.bytes > self.limit_bytes;
    }

    /// Gives up the lines that are not in the window. Their samples since the start stay with their processes.
    fn forget_cold(&mut self) {
        for place in 0..self.lines.len() {
            let is_cold =
                |held: &Held| held.window.count == 0 && held.key.5 != self.beyond_stack.id;
            let cold = self.lines.get(place).and_then(Option::as_ref).is_some_and(is_cold);
            let held = if cold { self.lines.get_mut(place).and_then(Option::take) } else { None };
            let Some(held) = held else { continue };
            self.places.remove(&held.key);
            self.free.push(place);
            self.release(&held);
            self.evicted += 1;
            let (start, line) = (held.start, held.line);
            let to = self.beyond_line(line.entry);
            if let Some(Some(beyond)) = self.lines.get_mut(to) {
                beyond.start.add(start);
            }
        }
    }

    /// Takes back what a line has cost.
    fn release(&mut self, held: &Held) {
        self.bytes = self.bytes.saturating_sub(LINE_BYTES);
        for id in [held.key.4, held.key.5] {
            let Some((lines, bytes)) = self.stacks.get_mut(&id) else { continue };
            *lines = lines.saturating_sub(1);
            if *lines == 0 {
                self.bytes = self.bytes.saturating_sub(*bytes);
                self.stacks.remove(&id);
            }
        }
    }

    /// The place of a line, which may be new.
    fn line(&mut self, row: &Row<'_>, cpu: u32) -> usize {
        let Row { source, task, kernel, user, .. } = row;
        let key = (source.slot, task.tgid, task.tid, task.comm, kernel.id(), user.id(), cpu);
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let source = self.source(row.source);
        let (kernel, user) = (Arc::clone(kernel), Arc::clone(user));
        let entry = Entry { source, task: (*task).clone(), kernel, user, count: 0, value: 0 };
        // Where the window is one slice only, and that is too much.
        if self.is_full {
            return self.beyond_line(entry);
        }
        self.insert(key, Line { entry, cpu })
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

    fn insert(&mut self, key: Key, line: Line) -> usize {
        self.bytes = self.bytes.saturating_add(LINE_BYTES);
        let of_process = line.entry.task.process.as_ref().map_or(0, Metadata::bytes);
        for (half, more) in [(&line.entry.kernel, 0), (&line.entry.user, of_process)] {
            let bytes = half.bytes().saturating_add(more);
            let known = self.stacks.entry(half.id()).or_insert((0, bytes));
            known.0 += 1;
            if known.0 == 1 {
                self.bytes = self.bytes.saturating_add(bytes);
            }
        }
        let held = Held { key, line, window: Counts::default(), start: Counts::default() };
        let place = self.free.pop().unwrap_or(self.lines.len());
        match self.lines.get_mut(place) {
            Some(free) => *free = Some(held),
            None => self.lines.push(Some(held)),
        }
        self.places.insert(key, place);
        place
    }

    /// The line of a process for stacks that there is no room for.
    fn beyond_line(&mut self, entry: Entry) -> usize {
        let key = |slot, task: &Task| {
            let (kernel, user) = (self.no_stack.id, self.beyond_stack.id);
            (slot, task.tgid, task.tid, Comm::default(), kernel, user, 0)
        };
        let (slot, mut task) = (entry.source.slot, entry.task.of_process());
        let mut found = key(slot, &task);
        if !self.places.contains_key(&found) && self.beyond >= MAX_BEYOND {
            task = Task::default();
            found = key(slot, &task);
        }
        if let Some(place) = self.places.get(&found) {
            return *place;
        }
        self.beyond += 1;
        let (kernel, user) = (Arc::clone(&self.no_stack), Arc::clone(&self.beyond_stack));
        self.insert(found, Line { entry: Entry { task, kernel, user, ..entry }, cpu: NO_CPU })
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
            let entry = || Entry { count, value, ..held.line.entry.clone() };
            (count > 0).then(|| Line { entry: entry(), cpu: held.line.cpu })
        });
        let from_ns = match span {
            Span::Window => (first * SLICE_NS).max(self.begun_ns),
            Span::Start => self.begun_ns,
        };
        let mut rate =
            vec![0_u64; usize::try_from(now.saturating_sub(first) + 1).unwrap_or(1).min(4096)];
        let mut cut: Vec<(StackEnd, u64)> = Vec::new();
        for slice in &self.slices {
            let place = slice.at.checked_sub(first).and_then(|it| usize::try_from(it).ok());
            if let Some(rate) = place.and_then(|it| rate.get_mut(it)) {
                *rate = rate.saturating_add(slice.samples);
            }
            for (end, count) in &slice.cut {
                match cut.iter_mut().find(|(known, _)| known == end) {
                    Some((_, sum)) => *sum = sum.saturating_add(*count),
                    None => cut.push((*end, *count)),
                }
            }
        }
        cut.sort_by_key(|(end, count)| (std::cmp::Reverse(*count), end.word()));
        Snapshot {
            lines: lines.collect(),
            time: Duration::from_nanos(now_ns.saturating_sub(from_ns)),
            rate,
            cut,
            in_window: self.slices.iter().map(|it| it.samples).sum(),
            short_of: SLICE.saturating_mul(
                u32::try_from(self.given_up.saturating_sub(oldest.max(begun))).unwrap_or(u32::MAX),
            ),
            behind: Duration::ZERO,
        }
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
            bytes: count(self.bytes),
            limit_bytes: Some(count(self.limit_bytes)),
            limit_entries: None,
            evicted: self.evicted,
        }
    }
}

/// What a line takes in its tables, and a cell of a slice.
const LINE_BYTES: usize = size_of::<Option<Held>>() + size_of::<(Key, usize)>() + 2 * TABLE_BYTES;
const CELL_BYTES: usize = size_of::<(usize, Counts)>() + TABLE_BYTES;

/// Whether a user stack misses callers.
fn is_cut(end: StackEnd) -> bool {
    !matches!(
        end,
        StackEnd::Complete | StackEnd::NotCaptured | StackEnd::NoUserMemory | StackEnd::MemoryGone
    )
}
