//! Tracefs, which tests of tracepoints mount where nobody has, and leave as it was.

use std::{path::Path, process::Command};

use profiler::stderr;

const FOLDER: &str = "/sys/kernel/tracing";

/// Tracefs, for as long as this lives.
pub(crate) struct Tracefs {
    was_mounted: bool,
}

impl Tracefs {
    /// Tracefs with this tracepoint (`group:name`); `None`, and the reason printed, where it can't be had.
    pub(crate) fn with(tracepoint: &str) -> Option<Self> {
        let is_there =
            |event: &str| Path::new(FOLDER).join("events").join(event.replace(':', "/")).exists();
        let was_mounted = is_there("");
        if !was_mounted {
            let mount = Command::new("mount").args(["-t", "tracefs", "nodev", FOLDER]).status();
            if !mount.is_ok_and(|it| it.success()) {
                stderr::say("skipped: tracefs can't be mounted");
                return None;
            }
        }
        let mounted = Self { was_mounted };
        if !is_there(tracepoint) {
            stderr::say(&format!("skipped: this kernel has no tracepoint {tracepoint}"));
            return None;
        }
        Some(mounted)
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if !self.was_mounted {
            let unmounted = Command::new("umount").arg(FOLDER).status();
            assert!(
                std::thread::panicking() || unmounted.is_ok_and(|it| it.success()),
                "{FOLDER} is still in use"
            );
        }
    }
}
