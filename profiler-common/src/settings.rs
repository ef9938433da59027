//! What the agent tells the eBPF program before it is loaded.
//!
//! Each setting is a read-only global of the program, patched by name in the object. The verifier
//! sees constants and drops the branches that a run does not need.

/// Sources of samples that a run can have. Each has a slot, a number below this, by which the program has
/// settings, scratch, cache and counters for it.
pub const MAX_SOURCES: usize = SLOTS as usize;
const SLOTS: u32 = 4;

/// Names of the globals, as they stand in the object's symbol table.
pub mod global {
    /// `[u32; MAX_SOURCES]`: bits of [`super::flag`], by slot.
    pub const FLAGS: &str = "FLAGS";
    /// `u32`: bits of [`super::walk`].
    pub const WALK: &str = "WALK";
    /// `u32`: how many frames each half of a stack may have, at most
    /// [`MAX_FRAMES`](crate::sample::MAX_FRAMES).
    pub const FRAME_LIMIT: &str = "FRAME_LIMIT";
    /// `u32`: where a `task_struct` has the address of its kernel stack; 0 to ask a helper for the
    /// registers with which a task entered the kernel (Linux 5.15).
    pub const TASK_STACK: &str = "TASK_STACK";
    /// `u32`: where these registers are on that stack.
    pub const TASK_REGISTERS: &str = "TASK_REGISTERS";
    /// `u64`: size of the ring's data area in bytes.
    pub const RING_BYTES: &str = "RING_BYTES";
    /// `u64`: unread bytes in the ring from which on the reader is woken.
    pub const WAKE_BYTES: &str = "WAKE_BYTES";
    /// `u32`: how many cgroups are in the `CGROUPS` map, at most [`MAX_CGROUPS`](super::MAX_CGROUPS).
    pub const CGROUP_COUNT: &str = "CGROUP_COUNT";
}

/// Processes that the profiler may consist of: entries of the `OWN` map.
pub const MAX_OWN: u32 = 16;

/// Cgroups that samples can be filtered by: each sample is compared with one after another.
pub const MAX_CGROUPS: u32 = 32;

/// Where the `PERIODS` map has the period of a source on a CPU: in ns where the agent moves it, and in hits where
/// tracepoints or probes are sampled. There, 0 means that the CPU is not sampled, or not yet, or not any more.
#[inline]
#[must_use]
pub const fn period_index(cpu: u32, slot: u32) -> u32 {
    cpu.wrapping_mul(SLOTS).wrapping_add(slot)
}

/// The programs that a source can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Leaves the user stack to the kernel.
    Sample,
    /// Walks it.
    SampleWalk,
    /// For hits of tracepoints, of which the kernel takes programs of another type; leaves the user stack to the
    /// kernel.
    Tracepoint,
    /// Walks it.
    TracepointWalk,
    /// For hits of probes, of a third type; leaves the user stack to the kernel.
    Probe,
    /// Walks it.
    ProbeWalk,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Sample,
        Self::SampleWalk,
        Self::Tracepoint,
        Self::TracepointWalk,
        Self::Probe,
        Self::ProbeWalk,
    ];

    /// Its names, by slot.
    #[must_use]
    pub const fn names(self) -> [&'static str; MAX_SOURCES] {
        match self {
            Self::Sample => ["sample_0", "sample_1", "sample_2", "sample_3"],
            Self::SampleWalk => {
                ["sample_walk_0", "sample_walk_1", "sample_walk_2", "sample_walk_3"]
            }
            Self::Tracepoint => ["tracepoint_0", "tracepoint_1", "tracepoint_2", "tracepoint_3"],
            // The kernel keeps 15 letters of a name.
            Self::TracepointWalk => ["tp_walk_0", "tp_walk_1", "tp_walk_2", "tp_walk_3"],
            Self::Probe => ["probe_0", "probe_1", "probe_2", "probe_3"],
            Self::ProbeWalk => ["probe_walk_0", "probe_walk_1", "probe_walk_2", "probe_walk_3"],
        }
    }
}

/// Bits of the `WALK` global: how user stacks are walked, of all sources.
pub mod walk {
    /// By unwind information, not by frame pointers.
    pub const TABLES: u32 = 1 << 0;
    /// And by frame pointers where there is no unwind information.
    pub const OR_FRAME_POINTERS: u32 = 1 << 1;
}

/// Bits of the `FLAGS` global: what a source's samples have.
pub mod flag {
    /// Keep samples of the idle task.
    pub const IDLE: u32 = 1 << 0;
    /// Take the kernel stack.
    pub const KERNEL_STACK: u32 = 1 << 1;
    /// Take the user stack.
    pub const USER_STACK: u32 = 1 << 2;
    /// Keep only the processes in the `PIDS` map.
    pub const ONLY_PIDS: u32 = 1 << 3;
    /// Skip the processes in the `OWN` map.
    pub const EXCLUDE_OWN: u32 = 1 << 4;
    /// Skip what hits user code.
    pub const KERNEL_ONLY: u32 = 1 << 5;
    /// The agent may move the periods: they stand in the `PERIODS` map.
    pub const MOVED: u32 = 1 << 6;
    /// Keep only the threads in the `TIDS` map.
    pub const ONLY_TIDS: u32 = 1 << 7;
    /// Keep only the users in the `UIDS` map.
    pub const ONLY_UIDS: u32 = 1 << 8;
    /// Keep only threads whose names match the patterns in the `COMMS` map.
    pub const ONLY_COMMS: u32 = 1 << 9;
    /// Keep only what is in or below one of the cgroups in the `CGROUPS` map.
    pub const ONLY_CGROUPS: u32 = 1 << 10;
    /// The hits are those of a probe in user code, whose registers the program is given.
    pub const USER_PROBE: u32 = 1 << 11;
    /// Only hits of a tracepoint whose fields are as the slot's part of the `HIT_FILTERS` map says count.
    pub const HIT_FILTER: u32 = 1 << 12;
}
