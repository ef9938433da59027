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
    kernel,
};

/// All that a run writes.
///
/// A sample is delivered when each output has it.
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
        Self { exporter, path }
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
        let all = exporters.into_iter().map(|(exporter, path)| Output { exporter, path });
        Self::with(all.collect(), kept)
    }

    /// Gives samples to each.
    pub(crate) fn add(&mut self, samples: &[Sample]) -> Result<()> {
        for output in &mut self.all {
            output.run(|it| it.add(samples))?;
        }
        self.given.extend(samples.iter().map(|it| (it.source.slot, it.cpu)));
        Ok(())
    }

    /// Writes what was given, and counts it as delivered.
    pub(crate) fn flush(&mut self, delivered: &PerCpuCount) -> Result<()> {
        let mut is_kept = false;
        for output in &mut self.all {
            is_kept |= output.run(|it| it.flush())? == Flushed::Kept;
        }
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
        for output in &mut self.all {
            if let Err(error) = output.run(|it| it.finish(ledger)) {
                delivered.take_back(&self.kept);
                return Err(error);
            }
        }
        Ok(())
    }

    /// What they keep in memory.
    pub(crate) fn account(&self) -> Vec<Cache> {
        self.all.iter().flat_map(|it| it.exporter.account()).collect()
    }
}
