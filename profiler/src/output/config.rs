//! What is written.

use std::{sync::Arc, time::Duration};

use profiler_profile::{
    export::{
        format::{Format, Processes},
        root::Root,
    },
    live::Live,
    report::table::{self, By},
};

use super::captures::Captures;
use crate::windows::Windows;

/// The outputs of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// What is written, and when; one for each sink.
    pub reports: Vec<Report>,
    /// The window that a screen shows, if one does.
    pub live: Option<Arc<Live>>,
    /// The windows of the run, if it has several.
    pub windows: Option<Parted>,
    /// Whether samples have a kernel stack.
    pub kernel_stacks: bool,
    /// Whether samples have a user stack.
    pub user_stacks: bool,
    /// Whether text says of each sample which event fired, as there are several.
    pub names_events: bool,
    /// What stacks begin with, in formats that have no other place for whose they are.
    pub root: Root,
    /// Bytes of the profile that is written at the end, and of samples that wait for that one by one.
    pub profile_bytes: usize,
    /// Bytes of stacks as they are written that are kept for the next time.
    pub rendered_bytes: usize,
}

/// A run in windows.
#[derive(Clone, Debug)]
pub struct Parted {
    /// How long one is.
    pub length: Duration,
    /// Who takes them.
    pub to: Arc<Windows>,
    /// Profiles that are asked for while it goes on.
    pub captures: Option<Arc<Captures>>,
}

/// What is written, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// What this format has of the samples.
    Samples(&'static Format),
    /// A table of the hottest functions or the like, at the end.
    Top(table::Options),
}

impl Report {
    /// Whether it says who the process of a sample is.
    pub(crate) fn has_processes(self) -> bool {
        match self {
            Self::Samples(format) => format.processes != Processes::Never,
            Self::Top(options) => [By::Container, By::Service].contains(&options.by),
        }
    }
}
