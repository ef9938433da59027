//! Parts of the window, and when whose samples were taken: what a timeline shows, and lets people choose.

use std::{collections::BTreeMap, sync::Arc};

use rustc_hash::FxHashMap;

use super::{NO_CPU, Window};
use crate::{
    export::folded::task_name,
    live::{
        Line, Live,
        slice::{Counts, SLICE_NS},
    },
};

/// Slices of a run, by their number since its start: from the first on, up to the end, which is not part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first of them.
    pub first: u64,
    /// The one behind the last.
    pub end: u64,
}

impl Range {
    /// What of it is in another.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        let first = self.first.clamp(other.first, other.end);
        Self { first, end: self.end.clamp(first, other.end) }
    }

    /// How many slices it has.
    #[must_use]
    pub fn slices(self) -> u64 {
        self.end.saturating_sub(self.first)
    }
}

/// What has a strip of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Each CPU.
    Cpu,
    /// Each process.
    Process,
    /// Each thread.
    Thread,
}

/// When a CPU, a process or a thread was sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strip {
    /// The number of the CPU, or the id of the process or the thread.
    pub id: u32,
    /// The id of the process, which a CPU does not have.
    pub process: u32,
    /// What the process or the thread is called, printable; empty for a CPU.
    pub name: String,
    /// Its samples, by slice; none for slices that have none.
    pub counts: BTreeMap<u64, u64>,
}

impl Window {
    /// The slices that are kept of a run which has come to this moment.
    fn kept(&self, now_ns: u64) -> Range {
        let (now, begun) = (now_ns / SLICE_NS, self.begun_ns / SLICE_NS);
        let oldest = now.saturating_sub(self.length - 1).max(begun).max(self.given_up);
        Range {
            first: oldest.saturating_sub(begun),
            end: now.saturating_sub(begun).saturating_add(1),
        }
    }

    /// What was sampled in these slices, in no order.
    fn between(&self, range: Range) -> Vec<Line> {
        let mut sums: FxHashMap<usize, Counts> = FxHashMap::default();
        for slice in self.slices.iter().filter(|it| self.is_in(it.at, range)) {
            for (place, counts) in &slice.counts {
                sums.entry(*place).or_default().add(*counts);
            }
        }
        let lines = sums.into_iter().filter_map(|(place, Counts { count, value })| {
            let held = self.lines.get(place)?.as_ref()?;
            Some(Line { entry: Arc::clone(&held.entry), cpu: held.key.cpu, count, value })
        });
        lines.collect()
    }

    /// The strips of the samples of a source in these slices, in no order.
    fn strips(&self, by: By, slot: usize, range: Range) -> Vec<Strip> {
        let begun = self.begun_ns / SLICE_NS;
        let mut strips: FxHashMap<u32, Strip> = FxHashMap::default();
        for slice in self.slices.iter().filter(|it| self.is_in(it.at, range)) {
            for (place, counts) in &slice.counts {
                let Some(Some(held)) = self.lines.get(*place) else { continue };
                let task = &held.entry.task;
                let id = match by {
                    By::Cpu => held.key.cpu,
                    By::Process => task.tgid,
                    By::Thread => task.tid,
                };
                if held.entry.source.slot != slot || by == By::Cpu && id == NO_CPU {
                    continue;
                }
                let strip = strips.entry(id).or_insert_with(|| {
                    let (process, name) = match by {
                        By::Cpu => (0, String::new()),
                        By::Process => (task.tgid, task_name(&task.process_name())),
                        By::Thread => (task.tgid, task_name(&task.comm.text())),
                    };
                    Strip { id, process, name, counts: BTreeMap::new() }
                });
                let count = strip.counts.entry(slice.at.saturating_sub(begun)).or_default();
                *count = count.saturating_add(counts.count);
            }
        }
        strips.into_values().collect()
    }

    /// Whether a slice of the machine's time is in a range of the run's.
    fn is_in(&self, at: u64, range: Range) -> bool {
        let at = at.saturating_sub(self.begun_ns / SLICE_NS);
        range.first <= at && at < range.end
    }
}

impl Live {
    /// The slices that are kept now (CLOCK_MONOTONIC, in nanoseconds); where samples wait for their names, up to the
    /// last that has them.
    #[must_use]
    pub fn kept(&self, now_ns: u64) -> Range {
        let is_behind = self.vitals().is_behind;
        let window = self.window();
        let latest = window.latest_ns().filter(|_| is_behind);
        window.kept(latest.map_or(now_ns, |it| it.saturating_sub(1).min(now_ns)))
    }

    /// Whether the window is shorter than it should be, since memory did not suffice.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.window().given_up > 0
    }

    /// What was sampled in these slices, in no order.
    #[must_use]
    pub fn between(&self, range: Range) -> Vec<Line> {
        self.window().between(range)
    }

    /// The strips of the samples of a source in these slices, in no order.
    #[must_use]
    pub fn strips(&self, by: By, slot: usize, range: Range) -> Vec<Strip> {
        self.window().strips(by, slot, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::{Row, tests::sample},
        sample::{Sample, Task},
    };

    const START_NS: u64 = 7 * SLICE_NS + 5;

    fn window(slices: u32, samples: &[(u64, u32, u32)]) -> Arc<Live> {
        let length = crate::live::SLICE * slices;
        let mut window = Window::new(length, 1 << 20, START_NS);
        for (slice, tid, cpu) in samples {
            let task = Task { tgid: 4, tid: *tid, ..sample().task };
            let time_ns = START_NS + slice * SLICE_NS;
            window.add(&Row::from(&Sample { time_ns, cpu: *cpu, task, ..sample() }));
        }
        Live::new(window)
    }

    fn sum(lines: &[Line]) -> u64 {
        lines.iter().map(|it| it.count).sum()
    }

    #[test]
    fn a_range_has_its_own_samples() {
        let live = window(10, &[(0, 5, 0), (1, 5, 0), (1, 6, 1), (3, 5, 1)]);
        let now_ns = START_NS + 3 * SLICE_NS;
        let all = Range { first: 0, end: 4 };
        assert_eq!(live.kept(now_ns), all);
        for (first, end, count) in
            [(0, 4, 4), (0, 1, 1), (1, 3, 2), (2, 3, 0), (3, 9, 1), (2, 1, 0)]
        {
            assert_eq!(sum(&live.between(Range { first, end })), count, "{first}..{end}");
        }
        // What was asked for in a run long ago.
        assert_eq!(Range { first: 2, end: 90 }.within(all), Range { first: 2, end: 4 });
        assert_eq!(Range { first: 80, end: 90 }.within(all).slices(), 0);
        assert_eq!(Range { first: 3, end: 1 }.within(all).slices(), 0);
    }

    #[test]
    fn what_is_too_old_is_not_kept() {
        let live = window(3, &[(0, 5, 0), (1, 5, 0), (9, 5, 0)]);
        let now_ns = START_NS + 9 * SLICE_NS;
        assert_eq!(live.kept(now_ns), Range { first: 7, end: 10 });
        assert_eq!(sum(&live.between(Range { first: 0, end: 10 })), 1);
        // Before the start nothing was kept.
        assert_eq!(live.kept(START_NS).first, 0);
    }

    #[test]
    fn strips_say_when_who_was_sampled() {
        let live = window(10, &[(0, 5, 0), (1, 5, 0), (1, 6, 1), (1, 6, 1), (3, 5, 1)]);
        let of = |by, slot, first| {
            let mut strips = live.strips(by, slot, Range { first, end: 4 });
            strips.sort_by_key(|it| it.id);
            let shown = |it: Strip| (it.id, it.counts.into_iter().collect::<Vec<_>>());
            strips.into_iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(of(By::Cpu, 0, 0), [(0, vec![(0, 1), (1, 1)]), (1, vec![(1, 2), (3, 1)])]);
        assert_eq!(of(By::Process, 0, 1), [(4, vec![(1, 3), (3, 1)])]);
        assert_eq!(of(By::Thread, 0, 2), [(5, vec![(3, 1)])]);
        assert!(of(By::Thread, 1, 0).is_empty());
        let threads = live.strips(By::Thread, 0, Range { first: 0, end: 4 });
        assert!(threads.iter().all(|it| it.process == 4 && it.name == "a"), "{threads:?}");
    }
}
