//! Where output goes: a file or standard output.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    error::{Error, Result},
    kernel,
};

const STDOUT: &str = "standard output";

/// How much is written by one system call, so that a reader that is slow is told from one that does not
/// read at all.
const WRITE_BYTES: usize = 16 << 10;

/// Where the output goes: a file or standard output.
pub struct Sink {
    to: BufWriter<Watched>,
    path: PathBuf,
    blocked: Blocked,
}

/// Since when the output is in one system call: see [`Sink::blocked`].
#[derive(Clone, Debug)]
pub struct Blocked {
    /// CLOCK_MONOTONIC; 0 while nothing is written.
    since_ns: Arc<AtomicU64>,
    /// What the user calls it.
    pub to: String,
}

impl Blocked {
    /// For how long the output has taken nothing.
    #[must_use]
    pub fn time(&self) -> Duration {
        match self.since_ns.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since_ns => Duration::from_nanos(kernel::monotonic_ns().saturating_sub(since_ns)),
        }
    }
}

/// A file that can be seen to block.
struct Watched {
    file: File,
    since_ns: Arc<AtomicU64>,
}

impl io::Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.since_ns.store(kernel::monotonic_ns(), Ordering::Relaxed);
        let written = self.file.write(bytes.get(..WRITE_BYTES).unwrap_or(bytes));
        self.since_ns.store(0, Ordering::Relaxed);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Sink {
    /// Opens the file, or standard output if there is none.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let (file, path) = match path {
            // What it holds is kept until there is something to put in its place. It tells what other users
            // run, so a new one is for its owner only.
            Some(path) => {
                let options = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .open(path);
                (options, path.to_owned())
            }
            None => (
                std::io::stdout().as_fd().try_clone_to_owned().map(File::from),
                PathBuf::from(STDOUT),
            ),
        };
        let file = file
            .map_err(|error| Error::Usage(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self::of(file, &path))
    }

    /// A file that is open, and what the user calls it.
    #[must_use]
    pub fn of(file: File, path: &Path) -> Self {
        let path = path.to_owned();
        let blocked = Blocked { since_ns: Arc::default(), to: path.display().to_string() };
        let file = Watched { file, since_ns: Arc::clone(&blocked.since_ns) };
        Self { to: BufWriter::with_capacity(64 << 10, file), path, blocked }
    }

    /// What tells whether the output takes anything, for another thread to look at.
    #[must_use]
    pub fn blocked(&self) -> Blocked {
        self.blocked.clone()
    }

    /// Empties the file: the run has begun.
    pub fn begin(&mut self) -> Result<()> {
        let file = &self.to.get_ref().file;
        let is_ours = self.path != Path::new(STDOUT);
        match file.metadata() {
            Ok(metadata) if is_ours && metadata.is_file() => {
                file.set_len(0).map_err(|error| Error::write(&self.path, &error))
            }
            _ => Ok(()),
        }
    }

    /// What the user calls it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn a_new_file_is_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        fs::write(&old, "").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o644)).unwrap();
        for (path, mode) in [(new, 0o600), (old, 0o644)] {
            Sink::open(Some(&path)).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
    }
}
