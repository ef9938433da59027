//! How the agent unwinds stack snapshots.

/// The agent's own walk of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Frames of a stack, at most.
    pub frame_limit: u32,
    /// Whether frame pointers are followed where there is no unwind information.
    pub or_frame_pointers: bool,
    /// What its tables may take.
    pub cache_bytes: usize,
}
