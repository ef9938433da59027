//! A process as the owner of files that it writes for profilers.

use std::{
    fs::{File, Metadata},
    io::Read as _,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::{
    kernel,
    regular_file::{self, Refusal},
};

/// How much older than the process a file may look: the times of both have steps, and the clock on the
/// wall is set a little now and then.
const SLACK: Duration = Duration::from_secs(1);
/// The most of `/proc/PID/status` that is read: a process may be in 65,536 groups.
const STATUS_BYTES: u64 = 1 << 20;

/// What a process calls its own.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) root: OwnedFd,
    pub(super) uid: u32,
    pub(super) reader: Reader,
    began: SystemTime,
    /// Its id in its own pid namespace, which is what it knows itself by.
    pub(super) own_id: u32,
}

impl Owner {
    /// `None` if the process is gone.
    pub(super) fn of(tgid: u32) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // An open folder stays that of this process, also when its pid is given to another: the root of one
        // must not be read with the rights of the other.
        let folder = openat(CWD, format!("/proc/{tgid}"), flags, Mode::empty()).ok()?;
        let root = openat(&folder, "root", flags, Mode::empty()).ok()?;
        let status =
            openat(&folder, "status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = Vec::new();
        File::from(status).take(STATUS_BYTES).read_to_end(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text);
        let reader = Reader::in_status(&text)?;
        // The outermost namespace comes first.
        let own_id = field(&text, "NSpid:")?.next_back()?.parse().ok()?;
        Some(Self { root, uid: reader.uid, reader, began: kernel::began(tgid)?, own_id })
    }

    /// Opens a file below the process's root, which no link on the way leads out of; the path itself
    /// may not be a link. Never waits, as for a FIFO in its place.
    pub(super) fn open(&self, path: &str) -> Result<File, Refusal> {
        let file = regular_file::open_below(&self.root, Path::new(path), false)?;
        if self.owns(&file) { Ok(file) } else { Err(Refusal::Special) }
    }

    /// Whether it is a regular file that belongs to the process's user, or to root, and that the user could
    /// read: others may write to `/tmp`, too, and in a namespace of theirs users mount there what is not
    /// meant for them.
    pub(super) fn owns(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|it| {
            it.is_file() && [self.uid, 0].contains(&it.uid()) && self.reader.could_read(&it)
        })
    }

    /// Whether a file was last written to before the process began: one that had its id was it.
    pub(super) fn is_younger_than(&self, file: &File) -> bool {
        let written = file.metadata().and_then(|it| it.modified());
        written.is_ok_and(|written| written + SLACK < self.began)
    }
}

/// A user, as one who reads files.
#[derive(Debug)]
pub(super) struct Reader {
    uid: u32,
    gids: Vec<u32>,
}

impl Reader {
    /// One who may only read what everybody may.
    pub(super) fn anyone() -> Self {
        Self { uid: u32::MAX, gids: Vec::new() }
    }

    /// The real user and groups in `/proc/PID/status`, as our own user namespace numbers them.
    fn in_status(status: &str) -> Option<Self> {
        let uid = field(status, "Uid:")?.next()?.parse().ok()?;
        let gids = field(status, "Gid:")?.take(1).chain(field(status, "Groups:")?);
        Some(Self { uid, gids: gids.filter_map(|gid| gid.parse().ok()).collect() })
    }

    /// Whether the mode of a file lets its user read it. The kernel's own rule also knows access lists and
    /// what is mounted how; it is asked of a process only, and not for one.
    pub(super) fn could_read(&self, file: &Metadata) -> bool {
        let bit = if self.uid == file.uid() {
            0o400
        } else if self.gids.contains(&file.gid()) {
            0o040
        } else {
            0o004
        };
        self.uid == 0 || file.mode() & bit != 0
    }
}

/// The words of a field in `/proc/PID/status`.
fn field<'a>(
    status: &'a str,
    name: &str,
) -> Option<impl DoubleEndedIterator<Item = &'a str> + use<'a>> {
    let field = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(field.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, chown, symlink},
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
        assert!(owner.open("/own").is_ok());
        assert!(owner.open("/none").is_err());
        fs::create_dir(root.path().join("folder")).unwrap();
        assert!(owner.open("/folder").is_err());
        let fifo = std::process::Command::new("mkfifo").arg(root.path().join("fifo")).status();
        assert!(fifo.unwrap().success());
        // It would never return if it waited.
        assert!(owner.open("/fifo").is_err());
        symlink("own", root.path().join("link")).unwrap();
        assert!(owner.open("/link").is_err());
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
        assert!(owner.open("/out/file").is_err());
        assert!(owner.open("/inside/file").is_ok());
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
        let reader = Reader { uid: 12345, gids: vec![7] };
        let owner = Owner { uid: 12345, reader, ..owner_in(root.path()) };
        let is_root = fs::metadata(&file).unwrap().uid() == 0;
        assert_eq!(owner.open("/file").is_ok(), is_root);
        // Only root may give a file away.
        if chown(&file, Some(54321), None).is_ok() {
            assert!(owner.open("/file").is_err());
            chown(&file, Some(12345), None).unwrap();
            assert!(owner.open("/file").is_ok());
        }
    }

    #[test]
    fn what_its_user_could_not_read_is_not_its_own() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let reader = Reader { uid: 12345, gids: vec![7] };
        let owner = Owner { uid: 12345, reader, ..owner_in(root.path()) };
        if chown(&file, Some(0), Some(7)).is_err() {
            return crate::stderr::say("skipped: only root can give a file away");
        }
        for (mode, is_own) in [(0o600, false), (0o640, true), (0o604, false), (0o644, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(owner.open("/file").is_ok(), is_own, "{mode:o}");
        }
        chown(&file, Some(0), Some(8)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
        assert!(owner.open("/file").is_ok());
    }

    #[test]
    fn real_ids_are_read() {
        let status = "Name:\ta\nUid:\t1000\t0\t0\t0\nGid:\t100\t0\t0\t0\nGroups:\t4 24 \n";
        let Reader { uid, gids } = Reader::in_status(status).unwrap();
        assert_eq!((uid, &*gids), (1000, &[100, 4, 24][..]));
    }

    #[test]
    fn a_process_that_is_gone_owns_nothing() {
        assert!(Owner::of(u32::MAX).is_none());
    }
}
