//! Lets a program take samples on some CPUs, or not.

use std::sync::{Mutex, PoisonError};

use aya::maps::MapError;
use profiler_profile::cpus::CpuList;

use super::periods::Periods;

/// The periods of a source whose program runs from when it is attached: it takes a sample only on CPUs that have
/// one. Once closed, the gate stays so.
pub struct Gate {
    periods: Periods,
    cpus: CpuList,
    is_closed: Mutex<bool>,
}

impl Gate {
    /// One for these CPUs, which is not open yet.
    pub fn new(periods: Periods, cpus: CpuList) -> Self {
        Self { periods, cpus, is_closed: Mutex::new(false) }
    }

    /// Has each of the CPUs take a sample every so many hits from now on, unless it was closed.
    pub fn open(&self, period: u64) -> Result<(), MapError> {
        let is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_closed { Ok(()) } else { self.set(period) }
    }

    /// Lets no run of the program that begins later take a sample.
    pub fn close(&self) -> Result<(), MapError> {
        let mut is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        *is_closed = true;
        self.set(0)
    }

    fn set(&self, period: u64) -> Result<(), MapError> {
        self.cpus.iter().try_for_each(|cpu| self.periods.set(cpu, period))
    }
}
