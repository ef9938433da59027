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

use std::fs;

/// The processes that are there.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    numbers("/proc")
}

/// The threads of a process.
pub(crate) fn threads(tgid: u32) -> impl Iterator<Item = u32> {
    numbers(&format!("/proc/{tgid}/task"))
}

/// The entries of a folder that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_there_with_its_threads() {
        let own = std::process::id();
        assert!(processes().any(|it| it == own) && threads(own).any(|it| it == own));
        assert_eq!(threads(u32::MAX).count(), 0);
    }
}
