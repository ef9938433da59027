//! What was counted on the way to the agent's queue.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use super::{
    event_count::EventCount, memory::Memory, per_cpu_count::PerCpuCount,
    source_account::SourceSide, unwinding::Unwinding,
};
use crate::source::Rate;

/// What the events were opened on, and so what the accounts are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// CPUs: all that runs there.
    #[default]
    Machine,
    /// Tasks: nothing else fires.
    Tasks,
    /// Cgroups: as of tasks.
    Cgroups,
}

impl Scope {
    /// Whether it is the whole machine.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
    pub(super) fn is_machine(&self) -> bool {
        *self == Self::Machine
    }
}

/// What the kernel side has counted when the events are disabled and the ring is empty.
#[derive(Debug)]
pub struct KernelSide {
    /// Each source of samples, by slot.
    pub sources: Vec<SourceSide>,
    /// What they were opened on.
    pub scope: Scope,
    /// For how long the events were enabled.
    pub duration: Duration,
    /// The processes that were asked for; all if empty.
    pub pids: Vec<u32>,
    /// And their descendants, if these were asked for.
    pub children: Option<Children>,
    /// What else a sample had to be of, as it was typed.
    pub filters: Vec<String>,
    /// Samples of other processes that the agent has dropped.
    pub strangers: Arc<PerCpuCount>,
    /// Records of mappings that did not fit into their rings; and those of the kernel's code, or for a screen, for
    /// which the naming thread had no room.
    pub sideband_lost: u64,
    /// Records of the sideband that could not be read.
    pub sideband_malformed: u64,
    /// What the walk by unwind information had; `None` without such a walk.
    pub unwinding: Option<Unwinding>,
    /// What the agent and its parser processes have in RAM.
    pub memory: Memory,
}

/// The descendants of the processes that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Children {
    /// How many were sampled whenever they ran.
    pub followed: u64,
    /// How many were not, since there were too many at a time: see `--max-processes`.
    pub not_followed: u64,
}

/// A rate that the machine could not carry was lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lowered {
    /// How often.
    pub times: u64,
    /// Samples a second on each CPU at the end, if a frequency was asked for.
    pub frequency: Option<u64>,
    /// Counts of the event a sample at the end, if a period was asked for.
    pub period: Option<u64>,
}

impl Lowered {
    /// Lowered so often, at last to this.
    #[must_use]
    pub fn new(times: u64, rate: Rate) -> Self {
        match rate {
            Rate::Frequency(hz) => Self { times, frequency: Some(hz), period: None },
            Rate::Period(period) => Self { times, frequency: None, period: Some(period) },
        }
    }
}

/// What one CPU's events have done: one, unless the CPU was offline or refused.
#[derive(Clone, Copy, Debug)]
pub struct CpuEvent {
    /// The CPU.
    pub cpu: u32,
    /// What they have counted together.
    pub count: EventCount,
    /// How many there were.
    pub events: u64,
    /// Whether it was one, from the start to the end.
    pub whole: bool,
    /// Whether one could not be opened while the CPU was online.
    pub refused: bool,
    /// How often the kernel has throttled them.
    pub throttled: u64,
    /// For how long the CPU was idle meanwhile.
    pub idle: Duration,
}
