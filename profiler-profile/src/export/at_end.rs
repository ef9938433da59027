//! Formats that are a function of the whole profile, and so are written at the end.

use std::io;

use super::{Exporter, Flushed};
use crate::{
    ledger::{Ledger, memory::Cache},
    profile::Profile,
    sample::Sample,
};

/// A format that needs all samples before it can write any.
pub trait Whole {
    /// Writes the profile.
    fn write(&mut self, profile: &Profile, ledger: &Ledger) -> io::Result<()>;
}

/// What counts samples by stack for such a format, and has it write their sums.
pub struct AtEnd<T> {
    profile: Profile,
    format: T,
}

impl<T: Whole> AtEnd<T> {
    /// Of so many distinct stacks at most.
    pub fn new(max_stacks: usize, format: T) -> Self {
        Self { profile: Profile::new(max_stacks), format }
    }
}

impl<T: Whole> Exporter for AtEnd<T> {
    fn add(&mut self, samples: &[Sample]) -> io::Result<()> {
        for sample in samples {
            self.profile.add(sample);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<Flushed> {
        Ok(Flushed::Kept)
    }

    fn finish(&mut self, ledger: &Ledger) -> io::Result<()> {
        self.format.write(&self.profile, ledger)
    }

    fn account(&self) -> Vec<Cache> {
        vec![self.profile.account()]
    }
}
