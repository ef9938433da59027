//! What can stop the profiler, in words for the person who reads them.

use std::{fmt::Display, io, path::Path};

/// Why a run could not start or go on. Its text says what failed and why; [`advice`](Error::advice) is
/// what to try next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was typed can't be meant; nothing has been done.
    #[error("{0}")]
    Usage(String),
    /// What was typed can mean several things; nothing has been done.
    #[error("{why}")]
    Choice {
        /// What can't be told apart, and how to.
        why: String,
        /// What it can mean, a line each.
        choices: String,
    },
    /// The kernel, the machine or a file refused.
    #[error("{what}: {why}")]
    System {
        /// The syscall or file, with its object.
        what: String,
        /// The kernel's or the library's reason.
        why: String,
        /// What to try next; may be empty.
        next: String,
    },
    /// The command to sample can't be started.
    #[error("{why}")]
    Command {
        /// What shells exit with then.
        code: i32,
        /// The command, and what is wrong with it.
        why: String,
    },
    /// The run ended, but samples were lost and `--strict` was given.
    #[error("{0} samples were lost, and --strict was given")]
    Lost(u64),
    /// A condition that must not hold does.
    #[error("{0}: this holds")]
    Condition(String),
    /// Whoever should read the output does not, and the run is over.
    #[error(
        "{to} takes no more, since nobody reads it: what was not written is counted as undelivered"
    )]
    Blocked {
        /// The output.
        to: String,
    },
    /// A second signal came while the run was ending.
    #[error("interrupted before the run had ended; what was sampled last is not printed")]
    Interrupted,
    /// Whoever read standard output has closed it: a quiet end.
    #[error("standard output was closed")]
    BrokenPipe,
}

/// The result of what can stop the profiler.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whether no file could be opened, whichever it was: this process or the machine has as many open as it may. Such an
/// error says nothing of the file.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl Error {
    /// A failed syscall or library call.
    pub fn system(what: impl Into<String>, why: impl Display) -> Self {
        Self::System { what: what.into(), why: why.to_string(), next: String::new() }
    }

    /// The same, with what to try next.
    pub(crate) fn system_with(
        what: impl Into<String>,
        why: impl Display,
        next: impl Into<String>,
    ) -> Self {
        Self::System { what: what.into(), why: why.to_string(), next: next.into() }
    }

    /// A failure to write the output.
    pub(crate) fn write(to: &Path, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::BrokenPipe;
        }
        Self::system(format!("cannot write {}", to.display()), error)
    }

    /// What to try next, where there is something; may have several lines.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        match self {
            Self::System { next, .. } => Some(&**next).filter(|next| !next.is_empty()),
            Self::Choice { choices, .. } => Some(choices),
            _ => None,
        }
    }

    /// The process's exit code: 1 the machine said no, 2 the command line makes no sense, 3 samples
    /// were lost under `--strict`, 4 a condition of `diff` holds, 126 and 127 as shells have them for a command, 130 ended by a second signal, 0 a closed pipe.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::BrokenPipe => 0,
            Self::System { .. } | Self::Blocked { .. } => 1,
            Self::Usage(_) | Self::Choice { .. } => 2,
            Self::Lost(_) => 3,
            Self::Condition(_) => 4,
            Self::Command { code, .. } => u8::try_from(*code).unwrap_or(1),
            Self::Interrupted => 130,
        }
    }
}
