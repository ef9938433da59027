//! Windows that wait to be sent, on disk.
//!
//! Each is a file of its own, with a number that grows, so that their order is that in which they came whatever the clock did. A
//! file has its name when it is whole and on disk. What it holds is checked when it is read.

use std::{
    collections::VecDeque,
    fs::{self, DirBuilder, File},
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use profiler_profile::export::push::Request;
use rustix::fs::{FlockOperation, flock};
use tempfile::Builder;

use crate::error::{Error, Result};

/// What a file begins with, and with it the version of what follows.
const MAGIC: &[u8; 8] = b"PROFSPL1";
const EXTENSION: &str = ".window";
const UNFINISHED: &str = ".part";
/// Held by whoever uses the folder.
const LOCK: &str = "lock";

/// The requests of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) requests: Vec<Request>,
}

/// Why a window can't be had.
#[derive(Debug)]
pub(super) enum Unread {
    /// It never can: it is gone, damaged or of another version.
    Damaged(String),
    /// It may another time.
    Failed(io::Error),
}

/// What has become of windows when another was put there.
#[derive(Debug, Default)]
pub(super) struct Put {
    /// So many were dropped to make room, or for want of it.
    pub(super) dropped: u64,
    /// Why the new one is only in memory.
    pub(super) not_on_disk: Option<io::Error>,
}

/// Windows that wait to be sent, the oldest first.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    limit_bytes: u64,
    bytes: u64,
    waiting: VecDeque<Waiting>,
    next: u64,
    _lock: File,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    bytes: u64,
    /// The window itself, where the disk did not take it.
    in_memory: Option<Entry>,
}

impl Spool {
    /// The folder, with what an earlier run has left there.
    ///
    /// # Errors
    ///
    /// It can't be used, or another agent uses it.
    pub(super) fn open(folder: &Path, limit_bytes: u64) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::Usage(format!("--spool: cannot use {}: {error}", folder.display()))
        };
        if !folder.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        }
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK));
        let lock = lock.map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::Usage(format!("--spool: another agent uses {}", folder.display()))
        })?;
        // Whether it takes windows.
        Builder::new().prefix(".").suffix(UNFINISHED).tempfile_in(folder).map_err(failed)?;
        let mut waiting = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)?.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(UNFINISHED) {
                // Of a run that was killed while it wrote: that window is lost.
                let _ = fs::remove_file(entry.path());
            }
            let number = name.strip_suffix(EXTENSION).and_then(|it| it.parse().ok());
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file);
            if let (Some(number), Some(metadata)) = (number, metadata) {
                waiting.push(Waiting { number, bytes: metadata.len(), in_memory: None });
            }
        }
        waiting.sort_by_key(|it| it.number);
        Ok(Self {
            folder: folder.to_owned(),
            limit_bytes,
            bytes: waiting.iter().map(|it| it.bytes).sum(),
            next: waiting.last().map_or(0, |it| it.number.saturating_add(1)),
            waiting: waiting.into(),
            _lock: lock,
        })
    }

    /// How many windows wait.
    pub(super) fn len(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// What they take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Tells the oldest from all others.
    pub(super) fn first_number(&self) -> Option<u64> {
        self.waiting.front().map(|it| it.number)
    }

    /// Puts a window behind the others, and drops the oldest where there is no room for it. One that the disk does not take is
    /// kept in memory, in the place of an earlier one of these.
    pub(super) fn put(&mut self, entry: &Entry) -> Put {
        let content = encode(entry);
        let bytes = content.len() as u64;
        let mut put = Put::default();
        if bytes > self.limit_bytes {
            return Put { dropped: 1, ..put };
        }
        while self.bytes.saturating_add(bytes) > self.limit_bytes && self.remove_first() {
            put.dropped += 1;
        }
        let number = self.next;
        self.next = number.saturating_add(1);
        let mut in_memory = None;
        if let Err(error) = self.write(number, &content) {
            put.dropped += self.only_in_memory();
            self.forget_memory();
            put.not_on_disk = Some(error);
            in_memory = Some(entry.clone());
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.waiting.push_back(Waiting { number, bytes, in_memory });
        put
    }

    fn write(&self, number: u64, content: &[u8]) -> io::Result<()> {
        let mut file = Builder::new().prefix(".").suffix(UNFINISHED).tempfile_in(&self.folder)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        let path = self.path(number);
        file.persist(&path).map_err(|it| it.error)?;
        let synced = File::open(&self.folder).and_then(|it| it.sync_all());
        if synced.is_err() {
            // It is kept in memory then, and the next run would find it here beside.
            let _ = fs::remove_file(path);
        }
        synced
    }

    /// The oldest window, or what is wrong with it.
    pub(super) fn first(&self) -> Option<std::result::Result<Entry, Unread>> {
        let first = self.waiting.front()?;
        if let Some(entry) = &first.in_memory {
            return Some(Ok(entry.clone()));
        }
        Some(self.read(first))
    }

    fn read(&self, waiting: &Waiting) -> std::result::Result<Entry, Unread> {
        use io::Read as _;
        let mut content = Vec::new();
        // It has the length that it had.
        File::open(self.path(waiting.number))
            .and_then(|it| it.take(waiting.bytes.saturating_add(1)).read_to_end(&mut content))
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Unread::Damaged("it is gone".into()),
                _ => Unread::Failed(error),
            })?;
        let damaged = || Unread::Damaged("it is damaged, or of another version".into());
        decode(&content).ok_or_else(damaged)
    }

    /// Removes the oldest; whether there was one.
    pub(super) fn remove_first(&mut self) -> bool {
        let Some(first) = self.waiting.pop_front() else { return false };
        self.bytes = self.bytes.saturating_sub(first.bytes);
        if first.in_memory.is_none() {
            // If it stays, it is sent once more by the next run.
            let _ = fs::remove_file(self.path(first.number));
        }
        true
    }

    /// How many windows are only in memory.
    pub(super) fn only_in_memory(&self) -> u64 {
        self.waiting.iter().filter(|it| it.in_memory.is_some()).count() as u64
    }

    /// Drops those.
    pub(super) fn forget_memory(&mut self) {
        self.waiting.retain(|it| it.in_memory.is_none());
        self.bytes = self.waiting.iter().map(|it| it.bytes).sum();
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016}{EXTENSION}"))
    }
}

/// The magic, a checksum of what follows, and each request: its samples, its length and its body.
fn encode(entry: &Entry) -> Vec<u8> {
    let mut content = Vec::new();
    for Request { body, samples } in &entry.requests {
        content.extend(samples.to_le_bytes());
        content.extend((body.len() as u64).to_le_bytes());
        content.extend(body);
    }
    let checksum = crc32fast::hash(&content);
    [&MAGIC[..], &checksum.to_le_bytes(), &content].concat()
}

fn decode(content: &[u8]) -> Option<Entry> {
    let content = content.strip_prefix(MAGIC)?;
    let (checksum, mut content) = content.split_first_chunk()?;
    if crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let mut requests = Vec::new();
    while !content.is_empty() {
        let (samples, rest) = content.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (body, rest) = rest.split_at_checked(len)?;
        requests.push(Request { body: body.to_vec(), samples: u64::from_le_bytes(*samples) });
        content = rest;
    }
    Some(Entry { requests })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(byte: u8) -> Entry {
        let request = |samples| Request { body: vec![byte; 100], samples };
        Entry { requests: vec![request(1), request(2)] }
    }

    fn first(spool: &Spool) -> u8 {
        spool.first().unwrap().unwrap().requests[0].body[0]
    }

    #[test]
    fn windows_outlive_a_run_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/otlp");
        let mut spool = Spool::open(&path, 1 << 20).unwrap();
        (1..=12).for_each(|it| assert_eq!(spool.put(&entry(it)).dropped, 0));
        assert!(spool.remove_first());
        let bytes = spool.bytes();
        // Another can't have it meanwhile.
        let error = Spool::open(&path, 1 << 20).unwrap_err().to_string();
        assert!(error.contains("another agent"), "{error}");
        drop(spool);
        // One that was killed while it wrote.
        fs::write(path.join(".abc.part"), "half").unwrap();
        let mut spool = Spool::open(&path, 1 << 20).unwrap();
        assert_eq!((spool.len(), spool.bytes()), (11, bytes));
        assert!(!path.join(".abc.part").exists());
        spool.put(&entry(13));
        for expected in 2..=13 {
            assert_eq!(spool.first().unwrap().unwrap(), entry(expected));
            spool.remove_first();
        }
        assert!(spool.first().is_none());
        assert_eq!((spool.bytes(), spool.remove_first()), (0, false));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    }

    #[test]
    fn the_oldest_are_dropped_where_there_is_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = encode(&entry(0)).len() as u64;
        let mut spool = Spool::open(dir.path(), 3 * bytes).unwrap();
        let dropped: Vec<u64> = (1..=5).map(|it| spool.put(&entry(it)).dropped).collect();
        assert_eq!((dropped, spool.len(), first(&spool)), (vec![0, 0, 0, 1, 1], 3, 3));
        let large = Entry { requests: vec![Request { body: vec![0; 4000], samples: 1 }] };
        assert_eq!((spool.put(&large).dropped, spool.len()), (1, 3));
    }

    #[test]
    fn what_is_damaged_is_told() {
        let content = encode(&entry(7));
        assert_eq!(decode(&content), Some(entry(7)));
        for at in 0..content.len() {
            let mut damaged = content.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "{at}");
            assert_eq!(decode(&content[..at]), None, "{at}");
        }
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(dir.path(), 1 << 20).unwrap();
        spool.put(&entry(1));
        spool.put(&entry(2));
        fs::write(spool.path(0), "PROFSPL9").unwrap();
        let is_damaged = |it: &Spool| matches!(it.first(), Some(Err(Unread::Damaged(_))));
        assert!(is_damaged(&spool));
        fs::remove_file(spool.path(0)).unwrap();
        assert!(is_damaged(&spool));
        // What can't be read now may be there all the same.
        fs::create_dir(spool.path(0)).unwrap();
        assert!(matches!(spool.first(), Some(Err(Unread::Failed(_)))));
        spool.remove_first();
        assert_eq!(first(&spool), 2);
    }

    #[test]
    fn one_window_is_kept_in_memory_where_the_disk_takes_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let mut spool = Spool::open(&path, 1 << 20).unwrap();
        spool.put(&entry(1));
        fs::remove_dir_all(&path).unwrap();
        for (byte, dropped) in [(2, 0), (3, 1)] {
            let put = spool.put(&entry(byte));
            assert_eq!((put.dropped, put.not_on_disk.is_some()), (dropped, true));
        }
        assert_eq!((spool.len(), spool.only_in_memory()), (2, 1));
        spool.remove_first();
        assert_eq!(first(&spool), 3);
        spool.forget_memory();
        assert_eq!((spool.len(), spool.bytes()), (0, 0));
    }
}
