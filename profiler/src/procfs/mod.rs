//! What `/proc` says of processes: pure parsers of its files, and thin readers.
//!
//! The name in a file may hold anything, also what is not UTF-8, and the process may be gone at any time: what can't be
//! read is `None`.

pub mod called;
pub mod cgroup;
pub(crate) mod comm;
pub mod maps;
pub mod mounts;
pub(crate) mod stat;
pub(crate) mod status;

use std::{fs, io};

/// The processes that are there.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    numbers("/proc")
}

/// The threads of a process; none of one that can't be looked at.
pub(crate) fn threads(tgid: u32) -> impl Iterator<Item = u32> {
    numbers(&format!("/proc/{tgid}/task"))
}

/// The threads of a process; none of one that has ended.
///
/// # Errors
///
/// There is no `/proc`, or it can't be read.
pub(crate) fn try_threads(tgid: u32) -> io::Result<Vec<u32>> {
    let mut threads = Vec::new();
    let is_gone =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
    let entries = match fs::read_dir(format!("/proc/{tgid}/task")) {
        Err(error) if is_gone(&error) => return Ok(threads),
        entries => entries?,
    };
    for entry in entries {
        match entry {
            Err(error) if is_gone(&error) => break,
            entry => threads.extend(number(&entry?)),
        }
    }
    Ok(threads)
}

/// The entries of a folder that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| number(&entry))
}

fn number(entry: &fs::DirEntry) -> Option<u32> {
    entry.file_name().to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_there_with_its_threads() {
        let own = std::process::id();
        assert!(processes().any(|it| it == own) && threads(own).any(|it| it == own));
        assert_eq!(threads(u32::MAX).count(), 0);
        assert!(try_threads(own).unwrap().contains(&own));
        assert!(try_threads(u32::MAX).unwrap().is_empty());
    }
}
