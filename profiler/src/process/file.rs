//! The file behind a mapping, opened and checked to be the one that was mapped.

use std::{
    fs::{File, Metadata},
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use profiler_common::build_id::BuildId;
use profiler_profile::frame::Missing;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};

use super::identity::{Found, Identity};
use crate::{
    error::is_out_of_files,
    process::fingerprint::Fingerprint,
    procfs::maps::MappedId,
    regular_file::{self, Refusal},
};

/// Where the file may be found: in which process, at which addresses, by which name.
#[derive(Clone, Debug)]
pub struct MappedAt {
    /// The process that maps it.
    pub tgid: u32,
    /// First address of the mapping.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// The path, as the process sees it.
    pub name: Arc<str>,
    /// When it was mapped, or seen to be: CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// Whether the kernel reported it as it was mapped, rather than `/proc` later.
    pub is_new: bool,
}

/// What symbols are cached by: the same for copies of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKey {
    /// Of a file that has one, and its owner: anyone can write a file with the build id of another,
    /// and must not name that one's functions.
    BuildId {
        /// What it contains.
        id: BuildId,
        /// The user id of its owner.
        owner: u32,
        /// Digest of its size, its headers and some of its code: a file that is stripped has the build id
        /// that it had before.
        content: u64,
    },
    /// Of one that has none: unique in this run.
    Number(u64),
}

/// What files with the same code have in common: build id, owner, and a digest of where the code is and of some
/// of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeKey {
    id: BuildId,
    owner: u32,
    digest: u64,
}

/// Numbers for files: no two are the same.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A file that is mapped somewhere. It may be opened only after its mapping was told.
#[derive(Debug)]
pub struct MappedFile {
    number: u64,
    /// Shared with others that have turned out to be the same file.
    opened: OnceLock<Arc<Opened>>,
    /// Why not, while it is not opened.
    missing: Mutex<Missing>,
}

/// A file that is open.
#[derive(Debug)]
pub(super) struct Opened {
    file: File,
    /// What a file without a build id is known by.
    number: u64,
    /// Whether it was seen to have been written to. That is final.
    has_changed: AtomicBool,
    /// Whether it is a file in memory, where runtimes write the code that they make.
    is_memory: bool,
    build_id: Option<BuildId>,
    /// Of one that has a build id.
    fingerprint: Option<Fingerprint>,
    /// The user id of its owner.
    pub(super) owner: u32,
    pub(super) identity: Identity,
    stamp: Stamp,
}

/// What changes when a file is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: (i64, i64),
}

/// The same file, also when the kernel has named it in two ways.
impl PartialEq for MappedFile {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number || (self.key().is_some() && self.key() == other.key())
    }
}

impl Eq for MappedFile {}

impl MappedFile {
    /// One that is not opened yet.
    pub(crate) fn new(missing: Missing) -> Self {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { number, opened: OnceLock::new(), missing: Mutex::new(missing) }
    }

    /// What its symbols are cached by; `None` while it can't be opened.
    #[must_use]
    pub fn key(&self) -> Option<FileKey> {
        let opened = self.opened.get()?;
        Some(opened.key().unwrap_or(FileKey::Number(opened.number)))
    }

    /// What it shares with all files that have the same code at the same place, such as one that was stripped.
    pub(crate) fn code(&self) -> Option<CodeKey> {
        let opened = self.opened.get()?;
        let digest = opened.fingerprint?.code;
        Some(CodeKey { id: opened.build_id?, owner: opened.owner, digest })
    }

    /// Its build id, where it could be opened and has one.
    #[must_use]
    pub fn build_id(&self) -> Option<BuildId> {
        self.opened.get()?.build_id
    }

    /// The user id of its owner, where it could be opened.
    pub(crate) fn owner(&self) -> Option<u32> {
        Some(self.opened.get()?.owner)
    }

    /// Why it can't be read, where it could not be opened.
    pub(crate) fn missing(&self) -> Missing {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn opened(&self) -> Option<&Arc<Opened>> {
        self.opened.get()
    }

    /// What was opened first stays.
    pub(super) fn set_opened(&self, opened: Arc<Opened>) {
        drop(self.opened.set(opened));
    }

    pub(super) fn set_missing(&self, why: Missing) {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// The file, where it could be opened.
    pub(crate) fn file(&self) -> Option<&File> {
        Some(&self.opened.get()?.file)
    }

    /// The file, or why it can't be used: also if it was written to since it was first seen mapped.
    pub(crate) fn unchanged(&self) -> Result<&File, Missing> {
        self.opened.get().ok_or_else(|| self.missing())?.unchanged()
    }

    /// Whether it is a file in memory (memfd, shared anonymous memory), as runtimes use for code they make.
    pub(crate) fn is_memory(&self) -> bool {
        self.opened.get().is_some_and(|it| it.is_memory)
    }
}

/// Whether the kernel gives that name to files in memory, which a process shares with itself or others and may
/// run code in: a memfd, by which some runtimes write code where they may not both write and run it, or
/// what stands for shared anonymous memory and huge pages. perf treats them as anonymous memory, too:
/// <https://github.com/torvalds/linux/blob/v6.12/tools/perf/util/map.c>.
pub(crate) fn is_memory_name(name: &str) -> bool {
    ["/memfd:", "/dev/zero", "/anon_hugepage", "/SYSV"].iter().any(|it| name.starts_with(it))
}

#[cfg(test)]
impl MappedFile {
    /// One that is open.
    pub(crate) fn of(file: File) -> Self {
        let mapped = Self::new(Missing::Gone);
        mapped.set_opened(Arc::new(known(Ok(file), "").unwrap()));
        mapped
    }
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self { bytes: file.size(), modified: (file.mtime(), file.mtime_nsec()) }
    }
}

/// The process's own link to the mapped file always leads to the right one. When the process is
/// gone, the path may still: in its root, or in ours.
pub(super) fn open(id: MappedId, place: &MappedAt) -> Result<Opened, Missing> {
    let MappedAt { tgid, start, end, name, since_ns, .. } = place;
    let link = format!("/proc/{tgid}/map_files/{start:x}-{end:x}");
    match known(regular_file::open(Path::new(&link)), name) {
        Ok(opened) if opened.identity.is(id, Found::ByLink) => return Ok(opened),
        Err(Missing::Leased) => return Err(Missing::Leased),
        _ => {}
    }
    let mut why = Missing::Gone;
    let in_root = |root: &str| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, root, flags, Mode::empty())?;
        regular_file::open_below(&root, Path::new(&**name), true)
    };
    let by_path = Found::ByPath { mapped_ns: *since_ns };
    for root in [&*format!("/proc/{tgid}/root"), "/"] {
        match known(in_root(root), name) {
            Ok(opened) if opened.identity.is(id, by_path) => return Ok(opened),
            Ok(_) => why = Missing::Replaced,
            Err(Missing::Gone) => {}
            Err(other) => why = other,
        }
    }
    Err(why)
}

impl Opened {
    /// Whether its contents are those of another file that nobody has tampered with: copies in
    /// containers have their times, too.
    pub(super) fn is_copy_of(&self, other: &Self) -> bool {
        self.key().is_some() && self.key() == other.key() && self.stamp == other.stamp
    }

    /// The file, unless it was written to since it was opened. It does not wait for the file system.
    pub(super) fn unchanged(&self) -> Result<&File, Missing> {
        if !self.has_changed.load(Ordering::Relaxed) {
            // As far as it is known here: a file system that does not answer is not asked.
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let fields = StatxFlags::SIZE | StatxFlags::MTIME;
            let now = statx(&self.file, "", flags, fields).map_err(|_| Missing::Gone)?;
            let modified = (now.stx_mtime.tv_sec, now.stx_mtime.tv_nsec.into());
            if (Stamp { bytes: now.stx_size, modified }) == self.stamp {
                return Ok(&self.file);
            }
            self.has_changed.store(true, Ordering::Relaxed);
        }
        Err(Missing::Changed)
    }

    /// Whether it is the same file, and was not written to in between.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.identity.place() == other.identity.place() && self.stamp == other.stamp
    }

    /// Whether another mapping of this file may have other contents: it was seen to have been written to. Files
    /// in memory are not looked at again: runtimes map and write them all the time.
    pub(super) fn is_outdated(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed) && !self.is_memory
    }

    /// What its contents are known by, where they have a build id.
    pub(super) fn key(&self) -> Option<FileKey> {
        let content = self.fingerprint?.content;
        Some(FileKey::BuildId { id: self.build_id?, owner: self.owner, content })
    }
}

/// What is known of an open file, which was mapped by this name.
fn known(file: Result<File, Refusal>, name: &str) -> Result<Opened, Missing> {
    let file = file.map_err(|refusal| match refusal {
        Refusal::Special => Missing::Special,
        Refusal::Leased => Missing::Leased,
        Refusal::Failed(error) if is_out_of_files(&error) => Missing::TooMany,
        Refusal::Failed(_) => Missing::Gone,
    })?;
    let metadata = file.metadata().map_err(|_| Missing::Gone)?;
    let (build_id, owner) = (profiler_elf::build_id(&file), metadata.uid());
    let identity = Identity::of(&file, &metadata);
    let fingerprint = build_id.map(|_| Fingerprint::of(&file));
    Ok(Opened {
        file,
        number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
        has_changed: AtomicBool::new(false),
        is_memory: is_memory_name(name),
        build_id,
        fingerprint,
        owner,
        identity,
        stamp: Stamp::of(&metadata),
    })
}
