//! A process as the owner of files that it writes for profilers.

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::{kernel, regular_file};

/// How much older than the process a file may look: the times of both have steps, and the clock on the
/// wall is set a little now and then.
const SLACK: Duration = Duration::from_secs(1);

/// What a process calls its own.
#[derive(Debug)]
pub(super) struct Owner {
    root: OwnedFd,
    uid: u32,
    began: SystemTime,
    /// Its id in its own pid namespace, which is what it knows itself by.
    pub(super) own_id: u32,
}

impl Owner {
    /// `None` if the process is gone.
    pub(super) fn of(tgid: u32) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, format!("/proc/{tgid}/root"), flags, Mode::empty()).ok()?;
        // The outermost namespace comes first.
        let own_id = kernel::status(tgid, "NSpid:")?;
        let own_id = own_id.split_ascii_whitespace().next_back()?.parse().ok()?;
        let uid = kernel::user_of(tgid)?;
        Some(Self { root, uid, began: kernel::began(tgid)?, own_id })
    }

    /// Opens a file below the process's root, which no link on the way leads out of; the path itself
    /// may not be a link. Never waits, as for a FIFO in its place.
    pub(super) fn open(&self, path: &str) -> Option<File> {
        let file = regular_file::open_below(&self.root, Path::new(path), false);
        file.ok().filter(|file| self.owns(file))
    }

    /// Whether it is a regular file that belongs to the process's user, or to root: others may write
    /// to `/tmp`, too.
    pub(super) fn owns(&self, file: &File) -> bool {
        let metadata = file.metadata();
        metadata.is_ok_and(|it| it.is_file() && [self.uid, 0].contains(&it.uid()))
    }

    /// Whether a file was last written to before the process began: one that had its id was it.
    pub(super) fn is_younger_than(&self, file: &File) -> bool {
        let written = file.metadata().and_then(|it| it.modified());
        written.is_ok_and(|written| written + SLACK < self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{chown, symlink},
    };

    /// We ourselves, with another folder for a root.
    fn owner_in(root: &std::path::Path) -> Owner {
        let root = File::open(root).unwrap().into();
        Owner { root, ..Owner::of(std::process::id()).unwrap() }
    }

    #[test]
    fn opens_its_own_regular_files_only() {
        let root = tempfile::tempdir().unwrap();
        let owner = owner_in(root.path());
        assert_eq!(owner.own_id, std::process::id());
        fs::write(root.path().join("own"), "").unwrap();
        assert!(owner.open("/own").is_some());
        assert!(owner.open("/none").is_none());
        fs::create_dir(root.path().join("folder")).unwrap();
        assert!(owner.open("/folder").is_none());
        let fifo = std::process::Command::new("mkfifo").arg(root.path().join("fifo")).status();
        assert!(fifo.unwrap().success());
        // It would never return if it waited.
        assert!(owner.open("/fifo").is_none());
        symlink("own", root.path().join("link")).unwrap();
        assert!(owner.open("/link").is_none());
    }

    #[test]
    fn a_link_does_not_lead_out_of_the_root() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), "").unwrap();
        let root = tempfile::tempdir().unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        fs::create_dir(root.path().join("real")).unwrap();
        fs::write(root.path().join("real/file"), "").unwrap();
        symlink("/real", root.path().join("inside")).unwrap();
        let owner = owner_in(root.path());
        assert!(owner.open("/out/file").is_none());
        assert!(owner.open("/inside/file").is_some());
    }

    #[test]
    fn is_younger_than_what_was_there_before_it() {
        let file = tempfile::tempfile().unwrap();
        let owner = Owner::of(std::process::id()).unwrap();
        assert!(!owner.is_younger_than(&file));
        file.set_modified(owner.began).unwrap();
        assert!(!owner.is_younger_than(&file));
        file.set_modified(owner.began - 2 * SLACK).unwrap();
        assert!(owner.is_younger_than(&file));
    }

    #[test]
    fn another_users_file_is_not_its_own() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let owner = Owner { uid: 12345, ..owner_in(root.path()) };
        let is_root = fs::metadata(&file).unwrap().uid() == 0;
        assert_eq!(owner.open("/file").is_some(), is_root);
        // Only root may give a file away.
        if chown(&file, Some(54321), None).is_ok() {
            assert!(owner.open("/file").is_none());
            chown(&file, Some(12345), None).unwrap();
            assert!(owner.open("/file").is_some());
        }
    }

    #[test]
    fn a_process_that_is_gone_owns_nothing() {
        assert!(Owner::of(u32::MAX).is_none());
    }
}
