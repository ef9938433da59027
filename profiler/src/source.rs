//! What the agent wants of a source of samples, whatever it is that fires.

use std::{os::fd::OwnedFd, sync::Weak};

use profiler_profile::{
    ledger::CpuEvent,
    source::{self, Rate},
};

use crate::{
    bpf::{
        gate::Gate,
        load::{Slot, SlotSettings},
    },
    error::{Error, Result},
};

/// Something that fires on the CPUs that are sampled, and has the eBPF program of its slot take a sample each
/// time. What opens it, opens it disabled.
pub trait Source {
    /// Its event, and how often that samples now.
    fn describe(&self) -> source::Source;

    /// What the program of its slot has to know.
    fn settings(&self) -> SlotSettings;

    /// What the user should know of how it was opened, a line each.
    fn notices(&self) -> &[String];

    /// Has it run the slot's program, with sampling times that are moved if that is wanted and can be.
    fn attach(&mut self, slot: Slot, dither: bool) -> Result<()>;

    /// Whether the sampling times are moved.
    fn is_dithered(&self) -> bool;

    /// Whether it fires for some tasks alone. Then it is known too late what is missing.
    fn is_of_tasks(&self) -> bool {
        false
    }

    /// Starts sampling.
    fn enable(&mut self) -> Result<()>;

    /// Stops sampling; when it returns, the program does not run any more. Of failures the first is returned.
    fn disable(&mut self) -> Result<()>;

    /// Has it sample at another rate of the same kind, also on CPUs that come.
    fn set_rate(&mut self, rate: Rate) -> Result<()>;

    /// Follows the CPUs that have come and gone since the last call; a line for each kind of change. The events on
    /// `revived` CPUs are dead, as these were away for a moment.
    fn follow_cpus(&mut self, revived: &[u32]) -> Vec<String>;

    /// Takes what the kernel has recorded of the source itself, before its room for that is full.
    fn poll(&mut self);

    /// What it has counted on each CPU, with the first error if something can't be read.
    fn account(&mut self) -> (Vec<CpuEvent>, Option<Error>);

    /// How often the kernel has left the program out since it was enabled, as far as it tells.
    fn skipped(&self) -> u64 {
        0
    }

    /// What is to be disabled at the deadline: perf events that are open now.
    fn descriptors(&self) -> Vec<Weak<OwnedFd>>;

    /// What is to be closed then.
    fn gate(&self) -> Option<Weak<Gate>> {
        None
    }
}
