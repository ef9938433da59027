//! Limits that whoever starts the agent has set for it.

pub mod budget;
pub mod memory;

use std::thread::available_parallelism;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    error::{Error, Result},
    kernel,
};

/// Files that every run has open: outputs, maps, programs, epoll and signals (some 30), and room to open others.
const FILES: u64 = 56;
/// Files for each CPU: its event, its sideband, and what starting either takes.
const FILES_PER_CPU: u64 = 4;

/// Files that are held open since they are mapped somewhere, at most.
pub(crate) const MAX_MAPPED_FILES: usize = 2048;
/// Open files that names may take besides: debug files, split DWARF, and the folders where they are looked for.
const FILES_FOR_NAMES: u64 = 160;

/// Raises the limit of open files as far as that needs no privilege, and fails if the start can't do with it. To be
/// called before anything is opened, since each part of the start would fail in its own way.
pub fn require_open_files() -> Result<()> {
    let (limit, least) = (open_files(), least_open_files());
    if limit >= least {
        return Ok(());
    }
    Err(Error::system_with(
        "cannot start",
        format!("open files are limited to {limit}: at least {least} are needed here"),
        format!("ulimit -n {least}"),
    ))
}

/// Raises the limit of open files to the hard one: each CPU takes some, and so does each file that is mapped
/// somewhere. Returns it.
pub(crate) fn open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let limit = setrlimit(Resource::Nofile, raised).map_or(limit, |()| raised);
    limit.current.unwrap_or(u64::MAX)
}

/// How many open files a run needs on this machine, to start and to name a little.
pub(crate) fn least_open_files() -> u64 {
    // Not even the list of CPUs can be opened where too few files are allowed.
    let cpus = kernel::cpus("online").map(|cpus| cpus.len());
    let cpus = cpus.or_else(|_| available_parallelism().map(usize::from)).unwrap_or(1);
    FILES.saturating_add(FILES_PER_CPU.saturating_mul(cpus as u64))
}

/// How many mapped files may be held open: what the limit of open files leaves beside what the run itself needs,
/// so that nothing which others map can keep it from reading its counters at the end.
pub(crate) fn max_mapped_files() -> usize {
    mapped_of(open_files(), least_open_files())
}

fn mapped_of(limit: u64, least: u64) -> usize {
    let left = limit.saturating_sub(least).saturating_sub(FILES_FOR_NAMES).max(limit / 8);
    usize::try_from(left).unwrap_or(usize::MAX).min(MAX_MAPPED_FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_leave_room_for_the_run() {
        assert_eq!(mapped_of(u64::MAX, 64), MAX_MAPPED_FILES);
        assert_eq!(mapped_of(1 << 20, 64), MAX_MAPPED_FILES);
        assert_eq!(mapped_of(1024, 64), 800);
        assert_eq!(mapped_of(256, 64), 32);
        assert_eq!(mapped_of(64, 64), 8);
    }
}
