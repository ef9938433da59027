//! What the eBPF program has counted on each CPU.

use profiler_common::counter::{Counter, Counters};

/// The counters of each possible CPU, by its number.
#[derive(Clone, Debug, Default)]
pub struct PerCpuCounters(Vec<Counters>);

impl PerCpuCounters {
    /// One counter of one CPU.
    #[must_use]
    pub fn get(&self, cpu: u32, counter: Counter) -> u64 {
        let counters = usize::try_from(cpu).ok().and_then(|cpu| self.0.get(cpu));
        counters.and_then(|counters| counters.get(counter as usize)).copied().unwrap_or(0)
    }

    /// One counter of all CPUs.
    #[must_use]
    pub fn sum(&self, counter: Counter) -> u64 {
        self.0.iter().filter_map(|counters| counters.get(counter as usize)).sum()
    }

    /// One more than the highest number of a CPU.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.0.len()
    }

    /// Sets all counters of a CPU.
    pub fn set(&mut self, cpu: u32, value: Counters) {
        let Ok(cpu) = usize::try_from(cpu) else { return };
        if self.0.len() <= cpu {
            self.0.resize(cpu + 1, [0; Counter::COUNT]);
        }
        if let Some(counters) = self.0.get_mut(cpu) {
            *counters = value;
        }
    }
}

impl From<Vec<Counters>> for PerCpuCounters {
    fn from(counters: Vec<Counters>) -> Self {
        Self(counters)
    }
}
