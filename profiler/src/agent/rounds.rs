//! What was read at one time, until the files that it needs are open.
//!
//! A round is the samples and the records that one reading has brought, and leaves for the queue when the tracker has
//! opened what was mapped, or has had its time for that. It waits here and the reader does not: rings, signals and CPUs
//! have its attention meanwhile. Rounds leave in the order in which they came, so that what happens to a process comes
//! before the samples that need it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::{
    perf::record::Record,
    process::{
        table::Event,
        tracker::{self, Answer},
    },
    queue,
};

/// What one reading has brought.
#[derive(Debug)]
pub(super) struct Round {
    /// What happened to processes, in the order of time.
    pub(super) events: Vec<Event>,
    /// What happened to the kernel's code.
    pub(super) kernel_code: Vec<Record>,
    /// All that happened before this time was read; CLOCK_MONOTONIC.
    pub(super) read_ns: u64,
    /// The samples were taken since then.
    pub(super) samples_since_ns: u64,
    /// Samples, in batches.
    pub(super) samples: Vec<Vec<u8>>,
}

impl Round {
    /// What it takes.
    fn bytes(&self) -> usize {
        let samples: usize = self.samples.iter().map(Vec::len).sum();
        samples.saturating_add(queue::size_of_all(&self.events, &self.kernel_code))
    }
}

/// A round that is not complete, or comes after one.
#[derive(Debug)]
struct Waiting {
    round: Round,
    bytes: usize,
    /// Complete when the files are open that the records tell of; `None` when it is.
    files: Option<Answer>,
    until: Instant,
}

/// The rounds that wait, and what the tracker tells late.
#[derive(Debug)]
pub(super) struct Rounds {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    limit_bytes: usize,
    /// What the tracker was asked and has not told, and no round waits for, as when a file system does not respond.
    late: Vec<Answer>,
    /// What it has told, and no round has taken along yet.
    told: Vec<Event>,
}

impl Rounds {
    /// None, and room for so many bytes.
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self { waiting: VecDeque::new(), bytes: 0, limit_bytes, late: Vec::new(), told: Vec::new() }
    }

    /// Waits for an answer that no round needs.
    pub(super) fn expect(&mut self, answer: Answer) {
        self.late.push(answer);
    }

    /// Takes in a round, which leaves when these files are open.
    pub(super) fn add(&mut self, round: Round, files: Answer, now: Instant) {
        let (bytes, until) = (round.bytes(), now + tracker::DEADLINE);
        self.bytes = self.bytes.saturating_add(bytes);
        self.waiting.push_back(Waiting { round, bytes, files: Some(files), until });
    }

    /// The next round that leaves now: the first one, if it is complete, has had its time, or takes room that others
    /// need. What the tracker has told by then goes along.
    pub(super) fn next(&mut self, now: Instant) -> Option<Round> {
        let is_full = self.bytes > self.limit_bytes;
        let first = self.waiting.front_mut()?;
        let has_all = match &mut first.files {
            Some(files) => files.wait(Duration::ZERO, &mut self.told),
            None => true,
        };
        if !has_all && !is_full && now < first.until {
            return None;
        }
        let Waiting { mut round, bytes, files, .. } = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(bytes);
        // Files that are opened later are known from then on.
        self.late.extend(files.filter(|_| !has_all));
        self.collect();
        round.events.extend(tracker::take_before(&mut self.told, round.read_ns));
        // Stable: what happened to a process at one time stays in its order.
        round.events.sort_by_key(|event| event.time_ns);
        Some(round)
    }

    /// When to look again whether a round leaves; `None` if none waits.
    pub(super) fn look_at(&self, now: Instant) -> Option<Instant> {
        let first = self.waiting.front()?;
        Some(first.until.min(now + tracker::LOOK))
    }

    /// Has the first round leave when it has all it needs, or has had its time. Whether there is one.
    pub(super) fn wait(&mut self) -> bool {
        let Some(first) = self.waiting.front_mut() else { return false };
        let left = first.until.saturating_duration_since(Instant::now());
        if let Some(files) = &mut first.files
            && files.wait(left, &mut self.told)
        {
            first.files = None;
        }
        true
    }

    /// Takes what was told of what no round waits for; how much is still owed.
    pub(super) fn collect(&mut self) -> usize {
        self.late.retain_mut(|it| !it.wait(Duration::ZERO, &mut self.told));
        self.late.len()
    }

    /// All that was told so far.
    pub(super) fn take_told(&mut self) -> Vec<Event> {
        tracker::take_before(&mut self.told, u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{table::Kind, tracker::tests::Pending};

    fn event(time_ns: u64, tgid: u32) -> Event {
        Event { time_ns, tgid, kind: Kind::Ended }
    }

    /// One that was read at a time, with so many bytes of samples.
    fn round(read_ns: u64, bytes: usize) -> Round {
        Round {
            events: vec![event(read_ns - 1, 1)],
            kernel_code: Vec::new(),
            read_ns,
            samples_since_ns: 0,
            samples: vec![vec![0; bytes]],
        }
    }

    /// The times at which those that leave now were read, and of their events.
    fn leave(rounds: &mut Rounds, now: Instant) -> Vec<(u64, Vec<u64>)> {
        let leaving = std::iter::from_fn(|| rounds.next(now));
        let times = |events: Vec<Event>| events.iter().map(|it| it.time_ns).collect();
        leaving.map(|it| (it.read_ns, times(it.events))).collect()
    }

    #[test]
    fn rounds_leave_in_their_order_when_they_are_complete() {
        let (mut rounds, now) = (Rounds::new(1 << 20), Instant::now());
        let [one, two, three] = [10, 20, 30].map(|read_ns| {
            let (pending, files) = Pending::new();
            rounds.add(round(read_ns, 1), files, now);
            pending
        });
        assert!(leave(&mut rounds, now).is_empty());
        assert_eq!(rounds.look_at(now), Some(now + tracker::LOOK));
        // A later one waits for an earlier one.
        drop(two);
        assert!(leave(&mut rounds, now).is_empty());
        drop(one);
        assert_eq!(leave(&mut rounds, now), [(10, vec![9]), (20, vec![19])]);
        drop(three);
        assert_eq!(leave(&mut rounds, now), [(30, vec![29])]);
        assert_eq!((rounds.look_at(now), rounds.bytes), (None, 0));
    }

    #[test]
    fn what_is_told_goes_along_in_the_order_of_time() {
        let (mut rounds, now) = (Rounds::new(1 << 20), Instant::now());
        let (one, files) = Pending::new();
        rounds.add(round(10, 1), files, now);
        let (two, files) = Pending::new();
        rounds.add(round(20, 1), files, now);
        // What lies behind the first one goes with the second.
        for time_ns in [12, 3, 5] {
            one.tell(event(time_ns, 2));
        }
        drop((one, two));
        assert_eq!(leave(&mut rounds, now), [(10, vec![3, 5, 9]), (20, vec![12, 19])]);
    }

    #[test]
    fn who_has_had_its_time_leaves_and_is_told_of_later() {
        let (mut rounds, now) = (Rounds::new(1 << 20), Instant::now());
        let (pending, files) = Pending::new();
        rounds.add(round(10, 1), files, now);
        assert!(leave(&mut rounds, now + tracker::DEADLINE / 2).is_empty());
        assert_eq!(leave(&mut rounds, now + tracker::DEADLINE), [(10, vec![9])]);
        assert_eq!(rounds.collect(), 1);
        pending.tell(event(4, 2));
        drop(pending);
        assert_eq!(rounds.collect(), 0);
        let (_, files) = Pending::new();
        rounds.add(round(20, 1), files, now);
        assert_eq!(leave(&mut rounds, now), [(20, vec![4, 19])]);
    }

    #[test]
    fn what_waits_is_bounded() {
        let (mut rounds, now) = (Rounds::new(1000), Instant::now());
        let pending = [10, 20, 30].map(|read_ns| {
            let (pending, files) = Pending::new();
            rounds.add(round(read_ns, 600), files, now);
            pending
        });
        assert_eq!(leave(&mut rounds, now), [(10, vec![9]), (20, vec![19])]);
        assert_eq!(rounds.collect(), 2);
        drop(pending);
    }

    #[test]
    fn the_end_waits_for_all() {
        let mut rounds = Rounds::new(1 << 20);
        let (pending, files) = Pending::new();
        rounds.add(round(10, 1), files, Instant::now());
        pending.tell(event(2, 2));
        drop(pending);
        let (_never, files) = Pending::new();
        rounds.add(round(20, 1), files, Instant::now());
        let mut left = Vec::new();
        while rounds.wait() {
            left.extend(leave(&mut rounds, Instant::now()));
        }
        assert_eq!(left, [(10, vec![2, 9]), (20, vec![19])]);
    }
}
