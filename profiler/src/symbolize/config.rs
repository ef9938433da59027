//! How addresses are named.

use super::{debuginfod, interpreted::View};
use crate::limits::budget::CacheBudget;

/// The names of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Resolve source lines and inlined functions.
    pub lines: bool,
    /// How stacks of Python are shown.
    pub python: View,
    /// Whether there are kernel stacks to name.
    pub kernel_stacks: bool,
    /// Whom to ask for debug files; nobody if `None`.
    pub debuginfod: Option<debuginfod::Settings>,
    /// What the caches may take.
    pub budget: CacheBudget,
}
