//! What was sampled in a span, as a reader takes it out of the window.

use std::{sync::Arc, time::Duration};

use crate::{profile::Entry, sample::Task, source::Source, stack::Stack, stack_end::StackEnd};

/// Which samples are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Span {
    /// Those of the window.
    #[default]
    Window,
    /// All since the start.
    Start,
}

/// What the samples of a line have in common. The window and its snapshots share it.
#[derive(Clone, Debug)]
pub struct LineEntry {
    /// What took them.
    pub source: Arc<Source>,
    /// The thread, with what was last known of its process.
    pub task: Task,
    /// The kernel half of the stack.
    pub kernel: Arc<Stack>,
    /// The user half.
    pub user: Arc<Stack>,
}

/// Samples of one thread on one CPU with the same stack.
#[derive(Clone, Debug)]
pub struct Line {
    /// Whose they are.
    pub entry: Arc<LineEntry>,
    /// The CPU that was sampled.
    pub cpu: u32,
    /// How many.
    pub count: u64,
    /// What they stand for together, in the unit of their source.
    pub value: u64,
}

impl Line {
    /// The same as a profile has it.
    #[must_use]
    pub fn to_entry(&self) -> Entry {
        let LineEntry { source, task, kernel, user } = (*self.entry).clone();
        Entry { source, task, kernel, user, count: self.count, value: self.value }
    }
}

/// Samples of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    /// How many.
    pub samples: u64,
    /// Those with a user stack that is not whole, by why; in a snapshot most frequent first.
    pub cut: Vec<(StackEnd, u64)>,
}

impl Sampled {
    pub(super) fn add(&mut self, samples: u64, cut: Option<StackEnd>) {
        self.samples = self.samples.saturating_add(samples);
        if let Some(end) = cut {
            self.add_cut(end, samples);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.samples = self.samples.saturating_add(other.samples);
        other.cut.iter().for_each(|(end, count)| self.add_cut(*end, *count));
    }

    fn add_cut(&mut self, end: StackEnd, count: u64) {
        match self.cut.iter_mut().find(|(known, _)| *known == end) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => self.cut.push((end, count)),
        }
    }
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
    /// Samples of the window, by slot of their source; those behind the last have none.
    pub sources: Vec<Sampled>,
    /// By how much the window is shorter than it should be, since memory did not suffice.
    pub short_of: Duration,
    /// How long ago it ends.
    pub behind: Duration,
}
