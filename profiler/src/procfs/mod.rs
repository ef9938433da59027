//! What `/proc` says of processes: pure parsers of its files, and thin readers.
//!
//! The name in a file may hold anything, also what is not UTF-8, and the process may be gone at any time: what can't be
//! read is `None`.

pub mod called;
pub mod cgroup;
pub(crate) mod comm;
pub(crate) mod environment;
pub mod maps;
pub mod mounts;
pub(crate) mod stat;
pub(crate) mod status;

use std::{fs, io};

use crate::error::is_out_of_files;

/// The processes that are there.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    list_processes().into_iter().flatten()
}

/// The same; an error where no file can be opened now, so that nobody knows.
pub(crate) fn list_processes() -> io::Result<impl Iterator<Item = u32>> {
    numbers("/proc")
}

/// The threads of a process.
pub(crate) fn threads(tgid: u32) -> impl Iterator<Item = u32> {
    list_threads(tgid).into_iter().flatten()
}

/// The same; an error where no file can be opened now, so that nobody knows.
pub(crate) fn list_threads(tgid: u32) -> io::Result<impl Iterator<Item = u32>> {
    numbers(&format!("/proc/{tgid}/task"))
}

/// The entries of a folder that are numbers; none if it is gone.
fn numbers(folder: &str) -> io::Result<impl Iterator<Item = u32> + use<>> {
    let entries = known(fs::read_dir(folder))?.into_iter().flatten().flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// What was read, or `None` if it is gone; an error where no file can be opened now, so that nobody knows.
fn known<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if is_out_of_files(&error) => Err(error),
        other => Ok(other.ok()),
    }
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

    #[test]
    fn without_files_to_open_nothing_is_taken_to_be_gone() {
        let failed = |errno| known::<()>(Err(io::Error::from_raw_os_error(errno))).ok();
        assert_eq!([libc::ENOENT, libc::ESRCH, libc::EACCES].map(failed), [Some(None); 3]);
        assert_eq!([libc::EMFILE, libc::ENFILE].map(failed), [None; 2]);
    }
}
