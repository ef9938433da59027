//! Opening the file behind a mapping: the very file, also when its path now leads elsewhere.

use std::{
    collections::hash_map::Entry,
    fs::{File, OpenOptions},
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::PathBuf,
};

use rustc_hash::FxHashMap;

use crate::process::maps::{FileId, Mapping};

/// Files held open.
const LIMIT: usize = 512;

/// The files that symbols are read from, held open so that their identity stays theirs.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: FxHashMap<FileId, File>,
}

impl Files {
    /// Whether the next file would be one too many.
    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= LIMIT
    }

    /// Closes all.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    /// A path that opens the file mapped in this process; `None` if it can't be had.
    pub(crate) fn path(&mut self, id: FileId, mapping: &Mapping, tgid: u32) -> Option<PathBuf> {
        let file = match self.open.entry(id) {
            Entry::Occupied(file) => file.into_mut(),
            // That it can't be had in one process says nothing of the next.
            Entry::Vacant(entry) => entry.insert(open(id, mapping, tgid)?),
        };
        Some(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))
    }
}

/// The process's own link to the mapped file always leads to the right one. When the process is
/// gone, the path may still: in its root, or in ours.
fn open(id: FileId, mapping: &Mapping, tgid: u32) -> Option<File> {
    let link = format!("/proc/{tgid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let in_its_root = format!("/proc/{tgid}/root{}", mapping.name);
    open_regular(&link).or_else(|| {
        [&in_its_root, &*mapping.name]
            .into_iter()
            .filter_map(open_regular)
            .find(|file| file.metadata().is_ok_and(|found| is_same(id, found.dev(), found.ino())))
    })
}

fn is_same(id: FileId, dev: u64, inode: u64) -> bool {
    id.inode == inode && id.major == libc::major(dev) && id.minor == libc::minor(dev)
}

/// Opens a regular file only, and never waits: a FIFO in its place would.
fn open_regular(path: impl AsRef<std::path::Path>) -> Option<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}
