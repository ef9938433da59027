//! Samples counted by source and CPU.

use std::sync::atomic::{AtomicU64, Ordering};

/// Samples counted by source and CPU number, from any thread.
#[derive(Debug)]
pub struct PerCpuCount {
    /// By source, and then by CPU.
    counts: Vec<AtomicU64>,
    cpus: usize,
}

impl PerCpuCount {
    /// Zero for each source with a slot below `sources`, on each CPU below `cpus`.
    #[must_use]
    pub fn new(sources: usize, cpus: usize) -> Self {
        let counts = (0..sources.saturating_mul(cpus)).map(|_| AtomicU64::new(0)).collect();
        Self { counts, cpus }
    }

    /// Counts one sample of the source in this slot, on a CPU.
    pub fn add(&self, slot: usize, cpu: u32) {
        if let Some(count) = self.at(slot, cpu) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Subtracts what was counted too much.
    pub fn take_back(&self, other: &Self) {
        for (count, other) in self.counts.iter().zip(&other.counts) {
            count.fetch_sub(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Zero for each source and CPU that this one counts.
    #[must_use]
    pub fn zeroed(&self) -> Self {
        let counts = self.counts.iter().map(|_| AtomicU64::new(0)).collect();
        Self { counts, cpus: self.cpus }
    }

    /// The samples of all sources and CPUs.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The samples of the source in this slot, on a CPU.
    #[must_use]
    pub fn get(&self, slot: usize, cpu: u32) -> u64 {
        self.at(slot, cpu).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn at(&self, slot: usize, cpu: u32) -> Option<&AtomicU64> {
        let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < self.cpus)?;
        self.counts.get(slot.checked_mul(self.cpus)?.checked_add(cpu)?)
    }
}
