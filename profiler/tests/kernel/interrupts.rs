//! Interrupts that end the profiler, wherever the tests and benchmarks were started.

use std::{os::unix::process::CommandExt as _, process::Command};

/// Has a program heed them.
pub(crate) fn heed(command: &mut Command) {
    let heed = || {
        // What a script starts in the background ignores them, what `nohup` starts ignores hangups, and so would
        // the profiler.
        for signal in [libc::SIGINT, libc::SIGHUP] {
            // SAFETY: no handler is set, and nothing else here.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(heed) };
}
