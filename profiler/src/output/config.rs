//! What is written.

use profiler_profile::export::format::Format;

/// The outputs of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// What is written, and when; one for each sink.
    pub reports: Vec<Report>,
    /// Whether samples have a kernel stack.
    pub kernel_stacks: bool,
    /// Whether samples have a user stack.
    pub user_stacks: bool,
    /// Whether text says of each sample which event fired, as there are several.
    pub names_events: bool,
    /// Bytes of the profile that is written at the end, and of samples that wait for that one by one.
    pub profile_bytes: usize,
    /// Bytes of stacks as they are written that are kept for the next time.
    pub rendered_bytes: usize,
}

/// What is written, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// What this format has of the samples.
    Samples(&'static Format),
    /// The N hottest functions, at the end.
    Top(usize),
}
