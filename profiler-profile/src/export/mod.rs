//! From a profile to bytes: one file a format.

pub mod at_end;
pub mod compact;
pub mod firefox;
pub mod folded;
pub mod format;
pub mod html;
pub mod json;
mod json_text;
mod numbered;
pub mod perf_script;
pub mod pprof;
mod rendered;
pub mod speedscope;
pub mod svg;
pub mod text;
pub mod top;
mod tree;

use std::io;

use crate::{
    ledger::{Ledger, memory::Cache},
    sample::Sample,
};

/// A format, and where it is written to.
///
/// A run may have several. Each gets all samples, in the order of their delivery, and then the ledger.
/// An error is final: nothing is given to an exporter that has returned one.
pub trait Exporter {
    /// Takes samples.
    fn add(&mut self, samples: &[Sample]) -> io::Result<()>;

    /// Writes what it has taken, as far as the format allows that before the end.
    fn flush(&mut self) -> io::Result<Flushed>;

    /// Writes the rest. No sample comes any more.
    fn finish(&mut self, ledger: &Ledger) -> io::Result<()>;

    /// What it keeps in memory.
    fn account(&self) -> Vec<Cache> {
        Vec::new()
    }
}

/// Where the samples are that an exporter has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Written: whatever happens to the run, they were delivered.
    Written,
    /// In memory until the end, and lost if [`Exporter::finish`] fails.
    Kept,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{sync::Arc, time::Duration};

    use profiler_common::counter::Counter;

    use crate::{
        address::Address,
        frame::Frame,
        ledger::{
            CpuEvent, EventCount, KernelSide, Ledger, PerCpuCount, SourceSide,
            counters::PerCpuCounters, memory::Memory,
        },
        sample::{Comm, Sample, Task},
        source::{Counts, Rate, Source},
        stack::Location,
        stack_end::StackEnd,
        store::Store,
    };

    /// A sample without frames.
    pub(crate) fn sample() -> Sample {
        let mut comm = Comm::default();
        comm.0[0] = b'a';
        let empty = Store::default().empty();
        let (slot, name) = (0, "cycles".into());
        let source = Source { slot, name, counts: Counts::Events, rate: Rate::Frequency(99) };
        Sample {
            source: Arc::new(source),
            time_ns: 1,
            value: 3,
            cpu: 6,
            task: Task {
                tgid: 4,
                tid: 5,
                comm,
                main_comm: Comm::default(),
                cgroup_id: 2,
                process: None,
            },
            kernel: Arc::clone(&empty),
            user: empty,
            user_end: StackEnd::NotCaptured,
            from_snapshot: false,
        }
    }

    /// An address with these functions.
    pub(crate) fn location(address: u64, frames: &[Frame]) -> Location {
        Location { address: Address::returned_to(address), frames: Arc::from(frames) }
    }

    /// What an exporter has written.
    #[derive(Clone, Default)]
    pub(crate) struct Written(Arc<std::sync::Mutex<Vec<u8>>>);

    impl Written {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.bytes()).unwrap()
        }

        pub(crate) fn bytes(&self) -> Vec<u8> {
            self.0.lock().unwrap().clone()
        }
    }

    /// The ledger of a second on one CPU, in which these events have fired a hundred times each.
    pub(crate) fn ledger(sources: &[Source]) -> Ledger {
        let mut counters = [0; Counter::COUNT];
        counters[Counter::Fired as usize] = 100;
        let event = CpuEvent {
            cpu: 0,
            count: EventCount::default(),
            events: 1,
            whole: true,
            refused: false,
            throttled: 0,
            idle: Duration::ZERO,
        };
        let side = |source: &Source| SourceSide {
            source: source.clone(),
            dithered: false,
            lowered: None,
            events: vec![event],
            counters: PerCpuCounters::from(vec![counters]),
        };
        let kernel = KernelSide {
            sources: sources.iter().map(side).collect(),
            duration: Duration::from_secs(1),
            pids: Vec::new(),
            children: None,
            filters: Vec::new(),
            strangers: Arc::new(PerCpuCount::new(sources.len(), 1)),
            sideband_lost: 0,
            sideband_malformed: 0,
            unwinding: None,
            memory: Memory::default(),
        };
        let delivered = PerCpuCount::new(sources.len(), 1);
        (0..sources.len()).for_each(|slot| (0..100).for_each(|_| delivered.add(slot, 0)));
        Ledger::settle(&kernel, &delivered, &PerCpuCount::new(sources.len(), 1))
    }

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
