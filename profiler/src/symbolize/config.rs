//! How addresses are named.

use super::debuginfod;
use crate::limits::budget::CacheBudget;

/// The names of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Resolve source lines and inlined functions.
    pub lines: bool,
    /// Whether there are kernel stacks to name.
    pub kernel_stacks: bool,
    /// Whom to ask for debug files; nobody if `None`.
    pub debuginfod: Option<debuginfod::Settings>,
    /// What the caches may take.
    pub budget: CacheBudget,
}
