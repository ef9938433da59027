//! The outputs of a run: an exporter each, and how many of its samples were delivered.

pub mod config;
mod sink;

use std::path::PathBuf;

use jiff::tz::TimeZone;
use profiler_profile::{
    export::{Exporter, Flushed, format::Options, top::Top},
    ledger::{Ledger, PerCpuCount, memory::Cache},
    sample::Sample,
};

use self::config::{Config, Report};
pub use self::sink::{Blocked, Sink};
use crate::{
    error::{Error, Result},
    kernel, stderr,
};

/// All that a run writes.
///
/// A sample is delivered when each output has it. An output whose reader has gone is left out from then on, unless no
/// other wants the samples themselves.
pub struct Outputs {
    all: Vec<Output>,
    /// Slot and CPU of each sample that has been given to the outputs, and is delivered with the next flush.
    given: Vec<(usize, u32)>,
    /// Of those that were delivered, the ones that are only in memory yet.
    kept: PerCpuCount,
}

/// One exporter, and what the user calls the place that it writes to.
struct Output {
    exporter: Box<dyn Exporter>,
    path: PathBuf,
    /// Whether the run is for its sake: it is more than a word at the end.
    has_samples: bool,
}

impl Output {
    /// The output that the user asked for.
    fn new(config: &Config, report: Report, sink: Sink) -> Self {
        let path = sink.path().to_owned();
        let exporter: Box<dyn Exporter> = match report {
            Report::Samples(format) => {
                let options = Options {
                    kernel_stacks: config.kernel_stacks,
                    user_stacks: config.user_stacks,
                    names_events: config.names_events,
                    begun_ns: kernel::monotonic_ns(),
                    producer: concat!("profiler ", env!("CARGO_PKG_VERSION")),
                    real_time_ahead_ns: kernel::real_time_ahead_ns(),
                    zone: TimeZone::system(),
                    rendered_bytes: config.rendered_bytes,
                    max_stacks: config.max_stacks,
                };
                (format.export)(Box::new(sink), options)
            }
            Report::Top(n) => Box::new(Top::at_end(sink, config.max_stacks, n)),
        };
        Self { exporter, path, has_samples: matches!(report, Report::Samples(_)) }
    }

    fn run<T>(&mut self, what: impl FnOnce(&mut dyn Exporter) -> std::io::Result<T>) -> Result<T> {
        what(&mut *self.exporter).map_err(|error| Error::write(&self.path, &error))
    }
}

impl Outputs {
    /// What the user asked for, a sink each, with a count of nothing for each source and CPU.
    pub(crate) fn new(config: &Config, sinks: Vec<Sink>, kept: PerCpuCount) -> Self {
        let both = config.reports.iter().zip(sinks);
        Self::with(both.map(|(report, sink)| Output::new(config, *report, sink)).collect(), kept)
    }

    fn with(all: Vec<Output>, kept: PerCpuCount) -> Self {
        Self { all, given: Vec::new(), kept }
    }

    /// These exporters, with what they write to.
    #[cfg(test)]
    pub(crate) fn of(exporters: Vec<(Box<dyn Exporter>, PathBuf)>, kept: PerCpuCount) -> Self {
        let output = |(exporter, path)| Output { exporter, path, has_samples: true };
        Self::with(exporters.into_iter().map(output).collect(), kept)
    }

    /// Gives samples to each.
    pub(crate) fn add(&mut self, samples: &[Sample]) -> Result<()> {
        self.each(|output| output.run(|it| it.add(samples)))?;
        self.given.extend(samples.iter().map(|it| (it.source.slot, it.cpu)));
        Ok(())
    }

    /// Writes what was given, and counts it as delivered.
    pub(crate) fn flush(&mut self, delivered: &PerCpuCount) -> Result<()> {
        let mut is_kept = false;
        self.each(|output| {
            is_kept |= output.run(|it| it.flush())? == Flushed::Kept;
            Ok(())
        })?;
        for (slot, cpu) in self.given.drain(..) {
            delivered.add(slot, cpu);
            if is_kept {
                self.kept.add(slot, cpu);
            }
        }
        Ok(())
    }

    /// Writes the rest. What an output has kept until now and can't write has not been delivered after all.
    pub(crate) fn finish(&mut self, ledger: &Ledger, delivered: &PerCpuCount) -> Result<()> {
        let finished = self.each(|output| output.run(|it| it.finish(ledger)));
        if finished.is_err() {
            delivered.take_back(&self.kept);
        }
        finished
    }

    /// Does something with each, and leaves out those whose reader has gone.
    fn each(&mut self, mut what: impl FnMut(&mut Output) -> Result<()>) -> Result<()> {
        let mut at = 0;
        while let Some(output) = self.all.get_mut(at) {
            match what(output) {
                Err(Error::BrokenPipe) if self.is_beside_another(at) => {
                    let gone = self.all.remove(at).path;
                    stderr::notice(&format!(
                        "nobody reads {} any more: the run goes on",
                        gone.display()
                    ));
                }
                result => {
                    result?;
                    at += 1;
                }
            }
        }
        Ok(())
    }

    /// Whether there is another than this that the run is for.
    fn is_beside_another(&self, this: usize) -> bool {
        self.all.iter().enumerate().any(|(at, output)| at != this && output.has_samples)
    }

    /// What they keep in memory.
    pub(crate) fn account(&self) -> Vec<Cache> {
        self.all.iter().flat_map(|it| it.exporter.account()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
        time::Duration,
    };

    use profiler_profile::ledger::{KernelSide, memory::Memory};

    use super::*;

    /// Writes what is done to it, until nobody reads it any more: from this word on.
    struct Spy {
        done: Arc<Mutex<Vec<&'static str>>>,
        closed_from: &'static str,
    }

    impl Spy {
        fn does(&self, what: &'static str) -> io::Result<()> {
            self.done.lock().unwrap().push(what);
            if what == self.closed_from { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
        }
    }

    impl Exporter for Spy {
        fn add(&mut self, _: &[Sample]) -> io::Result<()> {
            self.does("add")
        }

        fn flush(&mut self) -> io::Result<Flushed> {
            self.does("flush").map(|()| Flushed::Kept)
        }

        fn finish(&mut self, _: &Ledger) -> io::Result<()> {
            self.does("finish")
        }
    }

    /// Of a run without a source.
    fn ledger(delivered: &PerCpuCount) -> Ledger {
        let kernel = KernelSide {
            sources: Vec::new(),
            duration: Duration::ZERO,
            pids: Vec::new(),
            children: None,
            strangers: Arc::new(delivered.zeroed()),
            sideband_lost: 0,
            sideband_malformed: 0,
            unwinding: None,
            memory: Memory::default(),
        };
        Ledger::settle(&kernel, delivered, &delivered.zeroed())
    }

    /// What is done to outputs that are closed from these words on; all of it, and how it ended.
    fn run(
        closed_from: &[&'static str],
        samples_for: usize,
    ) -> (Vec<Vec<&'static str>>, Result<()>) {
        let done: Vec<Arc<Mutex<Vec<_>>>> = closed_from.iter().map(|_| Arc::default()).collect();
        let spies = closed_from.iter().zip(&done).map(|(closed_from, done)| {
            let spy = Spy { done: Arc::clone(done), closed_from };
            (Box::new(spy) as Box<dyn Exporter>, PathBuf::from("it"))
        });
        let delivered = PerCpuCount::new(1, 1);
        let mut outputs = Outputs::of(spies.collect(), delivered.zeroed());
        outputs.all.iter_mut().skip(samples_for).for_each(|it| it.has_samples = false);
        let ledger = ledger(&delivered);
        let result = outputs
            .add(&[])
            .and_then(|()| outputs.flush(&delivered))
            .and_then(|()| outputs.finish(&ledger, &delivered));
        (done.iter().map(|it| it.lock().unwrap().clone()).collect(), result)
    }

    #[test]
    fn an_output_that_nobody_reads_ends_no_other() {
        let all = vec!["add", "flush", "finish"];
        for (closed_from, seen) in [("add", 1), ("flush", 2), ("finish", 3)] {
            let (done, result) = run(&[closed_from, "never"], 2);
            assert!(result.is_ok());
            assert_eq!(done, [all[..seen].to_vec(), all.clone()], "{closed_from}");
        }
    }

    #[test]
    fn a_run_ends_when_nobody_reads_what_it_is_for() {
        for closed_from in ["add", "flush", "finish"] {
            // What comes last shows the hottest functions only.
            for closed in [&[closed_from][..], &[closed_from, "never"], &[closed_from, closed_from]]
            {
                let (_, result) = run(closed, 1);
                assert!(matches!(result, Err(Error::BrokenPipe)), "{closed:?}");
            }
        }
    }
}
