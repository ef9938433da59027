//! Interrupts that end the profiler, wherever the tests and benchmarks were started.

use std::{os::unix::process::CommandExt as _, process::Command};

/// Has a program heed them.
pub(crate) fn heed(command: &mut Command) {
    let heed = || {
        // What a script starts in the background ignores them, and so would the profiler.
        // SAFETY: no handler is set, and nothing else here.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: between fork and exec only a system call is made.
    unsafe { command.pre_exec(heed) };
}
