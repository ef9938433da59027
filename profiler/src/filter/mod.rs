//! Whose samples are kept: filters that the eBPF program applies before it takes a stack.

mod cgroups;
pub(crate) mod comm;
pub(crate) mod users;

use std::path::PathBuf;

use profiler_common::comm_patterns::States;

pub use self::{cgroups::CgroupName, comm::CommPattern};

/// What a sample has to be of to be kept. Of each list one has to fit; an empty one fits everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Processes.
    pub pids: Vec<u32>,
    /// Threads.
    pub tids: Vec<u32>,
    /// Real user ids.
    pub uids: Vec<u32>,
    /// Patterns of threads' names, as [`profiler_common::comm_patterns`] has them.
    pub comms: Vec<States>,
    /// Folders of cgroups; what is below them fits, too.
    pub cgroups: Vec<PathBuf>,
}
