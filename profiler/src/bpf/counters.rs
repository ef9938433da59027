//! Reading what the eBPF program has counted.

use aya::maps::{MapData, PerCpuArray};
use profiler_common::counter::{Counter, Counters};

use super::load::CountersPod;
use crate::error::{Error, Result};

/// The counters of each possible CPU, by its number.
#[derive(Clone, Debug, Default)]
pub struct PerCpuCounters(Vec<Counters>);

impl PerCpuCounters {
    /// Reads them from the kernel, which has them for each possible CPU.
    pub fn read(map: &PerCpuArray<MapData, CountersPod>) -> Result<Self> {
        let values = map
            .get(&0, 0)
            .map_err(|error| Error::system("cannot read the program's counters", error))?;
        Ok(Self(values.iter().map(|counters| counters.0).collect()))
    }

    /// One counter of one CPU.
    #[must_use]
    pub fn get(&self, cpu: u32, counter: Counter) -> u64 {
        let counters = usize::try_from(cpu).ok().and_then(|cpu| self.0.get(cpu));
        counters.and_then(|counters| counters.get(counter as usize)).copied().unwrap_or(0)
    }
}

impl From<Vec<Counters>> for PerCpuCounters {
    fn from(counters: Vec<Counters>) -> Self {
        Self(counters)
    }
}
