//! Which processes are sampled, and what is remembered of them.

/// Processes that are remembered by default.
pub const DEFAULT_LIMIT: u32 = 32_768;

/// The processes of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The processes that are kept; all if empty.
    pub pids: Vec<u32>,
    /// The threads that are kept; all if empty.
    pub tids: Vec<u32>,
    /// What else a sample must be of, for people to read.
    pub filters: Vec<String>,
    /// And their descendants.
    pub children: bool,
    /// Processes that are remembered.
    pub limit: usize,
    /// Say of each sample's process who it is.
    pub metadata: bool,
}
