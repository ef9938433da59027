//! What the eBPF program is told, and how large its maps are.

use super::{features::EntryRegisters, memory::WalkMemory};
use crate::filter::Filter;

/// The program of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose samples the program keeps.
    pub filter: Filter,
    /// Keep the idle task.
    pub idle: bool,
    /// Drop what samples the profiler's own processes. In another pid namespace than the initial one the program
    /// sees other ids than ours, and would drop whoever has them.
    pub exclude_own: bool,
    /// Take kernel stacks.
    pub kernel_stacks: bool,
    /// Take user stacks; else only samples that hit the kernel are kept.
    pub user_stacks: bool,
    /// Frames of each half of a stack, at most.
    pub frame_limit: u32,
    /// How user stacks are walked.
    pub user_walk: UserWalk,
    /// Size of the ring in bytes: a power of two, at least a page.
    pub ring_bytes: u32,
    /// How much the program logs: 0 nothing, 2 losses, 3 each sample.
    pub log_level: u8,
}

/// How user stacks are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserWalk {
    /// By the kernel, which follows frame pointers.
    Kernel,
    /// By our own program.
    Own {
        /// How it finds where user code was when it entered the kernel.
        registers: EntryRegisters,
        /// The unwind information that it follows; frame pointers only if `None`.
        tables: Option<Tables>,
    },
}

/// The walk by unwind information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Whether frame pointers are followed where there is none.
    pub or_frame_pointers: bool,
    /// What its maps may take.
    pub memory: WalkMemory,
}

impl UserWalk {
    /// The walk by unwind information, if it is that.
    #[must_use]
    pub fn tables(&self) -> Option<Tables> {
        match self {
            Self::Kernel => None,
            Self::Own { tables, .. } => *tables,
        }
    }
}
