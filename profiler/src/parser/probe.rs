//! What the parser process must not be able to do, tried by a real one.

use std::{
    fmt,
    fs::{self, File},
    io,
};

use rustix::net::{AddressFamily, SocketType, socket};
use serde::{Deserialize, Serialize};

/// Something that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
// its values need no care: `run` is safe for each
#[allow(clippy::unsafe_derive_deserialize)]
pub(crate) enum Probe {
    /// Opens a file that everybody may read.
    Open,
    /// Writes to where everybody may write.
    Create,
    /// Makes a socket.
    Connect,
    /// Starts a process.
    Fork,
    /// Asks the kernel about another process.
    Kill,
    /// Maps memory as code.
    Code,
    /// What has to work: else the others would prove nothing.
    Nothing,
}

impl Probe {
    /// All that must not work.
    pub(crate) const FORBIDDEN: [Self; 6] =
        [Self::Open, Self::Create, Self::Connect, Self::Fork, Self::Kill, Self::Code];

    /// Tries it.
    pub(super) fn run(self) -> Result<(), i32> {
        let number = |error: &io::Error| error.raw_os_error().unwrap_or(0);
        match self {
            Self::Open => File::open("/").map(drop).map_err(|error| number(&error)),
            Self::Create => {
                let path = "/tmp/profiler-parser-probe";
                fs::write(path, "").map_err(|error| number(&error))?;
                let _ = fs::remove_file(path);
                Ok(())
            }
            Self::Connect => socket(AddressFamily::INET, SocketType::STREAM, None)
                .map(drop)
                .map_err(rustix::io::Errno::raw_os_error),
            // SAFETY: both processes do nothing but to end or to go on.
            Self::Fork => match unsafe { libc::fork() } {
                // SAFETY: no preconditions.
                0 => unsafe { libc::_exit(0) },
                -1 => Err(number(&io::Error::last_os_error())),
                _ => Ok(()),
            },
            // It is only asked whether a signal could be sent.
            Self::Kill => {
                let parent = rustix::process::getppid().ok_or(libc::ESRCH)?;
                rustix::process::test_kill_process(parent).map_err(rustix::io::Errno::raw_os_error)
            }
            Self::Code => {
                let (code, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
                let (null, flags) = (std::ptr::null_mut(), flags | libc::MAP_ANONYMOUS);
                // SAFETY: a new mapping, which nothing refers to.
                let at = unsafe { libc::mmap(null, 4096, code, flags, -1, 0) };
                if at == libc::MAP_FAILED {
                    return Err(number(&io::Error::last_os_error()));
                }
                Ok(())
            }
            Self::Nothing => Ok(()),
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open files",
            Self::Create => "create files",
            Self::Connect => "make sockets",
            Self::Fork => "start processes",
            Self::Kill => "send signals",
            Self::Code => "make code",
            Self::Nothing => "answer",
        })
    }
}
