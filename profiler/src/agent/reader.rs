//! What the ring and the sideband hold is read, and sent on to the threads that have to know.

use std::time::{Duration, Instant};

use super::{Sampling, rounds::Round};
use crate::{
    kernel,
    perf::record::{Record, Timed},
    process::{
        table::Event,
        tracker::{self, Answer},
    },
    sample, stderr,
};

/// How much is read at once and sent on.
const BATCH_BYTES: usize = 64 << 10;
/// After records were lost, all processes are looked for in `/proc`, at most this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

impl Sampling<'_> {
    /// Reads what is in the ring, once around at most: under full load it never gets empty. What was read is sent on
    /// when its files are open.
    pub(super) fn read(&mut self) {
        self.priority.renew();
        let samples_since_ns = std::mem::replace(&mut self.last_read_ns, kernel::monotonic_ns());
        let most = self.config.program.ring_bytes as usize / BATCH_BYTES + 1;
        let mut batches = Vec::new();
        for _ in 0..most {
            // At too high a rate, once around takes seconds.
            self.sources.govern(&self.counters).iter().for_each(|notice| stderr::notice(notice));
            let mut samples = self.sender.buffer();
            let more = self.ring.read_into(&mut samples, BATCH_BYTES);
            if !samples.is_empty() {
                batches.push(samples);
            }
            if !more {
                break;
            }
        }
        // Read behind the samples, so that whatever these need is there, and sent before them.
        let (round, files) = self.read_sideband(samples_since_ns);
        let samples = self.without_strangers(batches);
        self.rounds.add(Round { samples, ..round }, files, Instant::now());
        self.look_for_missed();
        if let Some(family) = &mut self.family {
            family.forget(samples_since_ns);
        }
        self.sources.poll();
        if let Some(log) = &mut self.log {
            log.flush();
        }
        self.pass_on_rounds();
    }

    /// Reads what has happened to processes, and has the files opened that they map. What happens while the rings of
    /// the CPUs are read one after another may come from one and not yet from another, so it is kept for the next
    /// time: the samples read so far are from before.
    fn read_sideband(&mut self, samples_since_ns: u64) -> (Round, Answer) {
        let read_ns = kernel::monotonic_ns();
        let mut records = Vec::new();
        self.sideband.read(&mut records);
        let is_code = |timed: &mut Timed| matches!(timed.record, Record::Ksymbol { .. });
        let kernel_code =
            records.extract_if(.., is_code).map(|timed| timed.record).collect::<Vec<_>>();
        let (events, files) = self.tracker.tell(records);
        self.happened.extend(events);
        let events = tracker::take_before(&mut self.happened, read_ns);
        // At once, whatever their files do: it says whose samples are kept.
        if let Some(family) = &mut self.family {
            for event in &events {
                family.apply(event);
            }
        }
        (Round { events, kernel_code, read_ns, samples_since_ns, samples: Vec::new() }, files)
    }

    /// Leaves out samples of others, with `--children`.
    fn without_strangers(&self, mut batches: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        if let Some(family) = &self.family {
            for samples in &mut batches {
                sample::retain(samples, |it| {
                    let is_kept = family.has(it.tgid, it.time_ns);
                    if !is_kept {
                        self.strangers.add(it.slot(), it.cpu);
                    }
                    is_kept
                });
            }
        }
        batches
    }

    /// Looks for all processes if records were missed, which may be about any.
    fn look_for_missed(&mut self) {
        let (missed_before, looked) = self.looked_for;
        let (lost, malformed) = (self.sideband.lost(), self.sideband.malformed());
        let missed = lost + malformed + self.tracker.missed();
        if missed > missed_before && looked.elapsed() >= LOOK_INTERVAL {
            self.rounds.expect(self.tracker.find_all());
            self.looked_for = (missed, Instant::now());
            if let Some(family) = &mut self.family {
                family.look(kernel::monotonic_ns());
            }
        }
    }

    /// Sends on the rounds that wait for nothing any more.
    pub(super) fn pass_on_rounds(&mut self) {
        while let Some(round) = self.rounds.next(Instant::now()) {
            let Round { events, kernel_code, samples_since_ns, samples, .. } = round;
            self.pass_on(events, kernel_code, samples_since_ns);
            for samples in samples {
                self.sender.offer(samples);
            }
        }
    }

    /// Tells all who have to know.
    pub(super) fn pass_on(
        &mut self,
        events: Vec<Event>,
        kernel_code: Vec<Record>,
        samples_since_ns: u64,
    ) {
        let is_news = !(events.is_empty() && kernel_code.is_empty());
        let is_shown = self.config.worker.output.live.is_some();
        let shown = if is_shown { events.clone() } else { Vec::new() };
        self.processes.apply(events, kernel::monotonic_ns());
        let count = (shown.len() + kernel_code.len()) as u64;
        if is_news && !self.sender.tell(shown, kernel_code, samples_since_ns) {
            self.dropped_records += count;
        }
    }
}
