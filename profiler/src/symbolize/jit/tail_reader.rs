//! A file that another process appends to.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, MetadataExt as _},
};

/// The most that is read at once: of the shortest lines, what takes some tens of milliseconds.
pub(super) const STEP: u64 = 256 << 10;

/// How far the file has been read, and how to tell whether it is still what was read.
#[derive(Debug, Default)]
pub(super) struct TailReader {
    /// Device and inode.
    id: (u64, u64),
    /// What lies before has been read.
    pub(super) offset: u64,
    /// Some of what was read, and where it stands: a file may be written anew in its place, and be
    /// longer by now than it was.
    witness: (u64, Vec<u8>),
}

impl TailReader {
    /// Whether the file is the one that was read, and still begins with what was.
    pub(super) fn goes_on_in(&self, file: &File) -> io::Result<bool> {
        let metadata = file.metadata()?;
        let (at, witness) = &self.witness;
        let mut now = vec![0; witness.len()];
        let is_there = file.read_exact_at(&mut now, *at).is_ok();
        Ok(self.id == (metadata.dev(), metadata.ino())
            && self.offset <= metadata.len()
            && is_there
            && now == *witness)
    }

    /// Begins with another file.
    pub(super) fn begin(file: &File, offset: u64) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { id: (metadata.dev(), metadata.ino()), offset, witness: (0, Vec::new()) })
    }

    /// What comes next: shorter than [`STEP`] at the file's end.
    pub(super) fn next(&self, mut file: &File) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.offset))?;
        file.take(STEP).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Remembers bytes of the file, so that it is known again.
    pub(super) fn remember(&mut self, at: u64, bytes: &[u8]) {
        self.witness = (at, bytes.to_vec());
    }
}
