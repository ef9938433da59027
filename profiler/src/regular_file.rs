//! Opening files whose paths others choose: a regular file or nothing, and without waiting.
//!
//! To open a device can do something (a watchdog starts, a tape rewinds), to open a FIFO waits, and to open a
//! file whose owner holds a write lease (`F_SETLEASE` in `fcntl(2)`) waits for `fs.lease-break-time`, 45 s. So
//! what stands at a path is looked at before it is opened for reading, and then opened with `O_NONBLOCK`.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2},
    io::Errno,
};

/// Why there is no file.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Something else than a regular file is there.
    Special,
    /// It is leased by its owner, who has been told to give that up: to be tried again some time later.
    Leased,
    /// It can't be opened.
    Failed(io::Error),
}

/// Opens what a path leads to, over links, too.
pub(crate) fn open(path: &Path) -> Result<File, Refusal> {
    read(&openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens what a path leads to below a folder, which no link on the way leads out of. With `follow`,
/// the path itself may be a link. Needs Linux 5.6.
pub(crate) fn open_below(root: impl AsFd, path: &Path, follow: bool) -> Result<File, Refusal> {
    let mut flags = OFlags::PATH | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, !follow);
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    read(&openat2(root, path, flags, Mode::empty(), resolve)?)
}

/// Opens what a place is for reading. It stays the same file: what is put in its place meanwhile does not
/// matter.
fn read(place: &OwnedFd) -> Result<File, Refusal> {
    if FileType::from_raw_mode(fstat(place)?.st_mode) != FileType::RegularFile {
        return Err(Refusal::Special);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(CWD, format!("/proc/self/fd/{}", place.as_raw_fd()), flags, Mode::empty());
    // Reading it is not affected: a regular file is always ready.
    file.map(File::from).map_err(|error| match error {
        Errno::WOULDBLOCK => Refusal::Leased,
        _ => Refusal::Failed(error.into()),
    })
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    /// From `linux/fcntl.h`; libc has it for other systems only.
    const F_SETSIG: i32 = 10;

    #[test]
    fn a_device_is_not_opened() {
        assert!(matches!(open(Path::new("/dev/null")), Err(Refusal::Special)));
        assert!(matches!(open(Path::new("/nowhere")), Err(Refusal::Failed(_))));
        assert!(open(Path::new("/proc/self/exe")).is_ok());
    }

    #[test]
    fn a_leased_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        let holder = File::open(&path).unwrap();
        let lease = |kind: libc::c_int| {
            // The signal by which the lease is asked back would be SIGIO, which kills.
            // SAFETY: no preconditions, and the descriptor is open.
            unsafe {
                assert_eq!(libc::fcntl(holder.as_raw_fd(), F_SETSIG, libc::SIGURG), 0);
                libc::fcntl(holder.as_raw_fd(), libc::F_SETLEASE, kind)
            }
        };
        if lease(libc::F_WRLCK) != 0 {
            return crate::stderr::say("skipped: the file system has no leases");
        }
        // It would come back after 45 s if it waited, and then not be refused.
        assert!(matches!(open(&path), Err(Refusal::Leased)));
        let root = File::open(dir.path()).unwrap();
        assert!(matches!(open_below(&root, Path::new("/file"), false), Err(Refusal::Leased)));
        assert_eq!(lease(libc::F_UNLCK), 0);
        assert!(open(&path).is_ok());
    }

    #[test]
    fn a_link_does_not_lead_out_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "inside").unwrap();
        symlink("/file", dir.path().join("link")).unwrap();
        symlink("/dev/null", dir.path().join("null")).unwrap();
        let root = File::open(dir.path()).unwrap();
        let text = |path: &str, follow| {
            open_below(&root, Path::new(path), follow)
                .map(|file| std::io::read_to_string(file).unwrap())
        };
        assert_eq!(text("/link", true).unwrap(), "inside");
        assert_eq!(text("/../file", true).unwrap(), "inside");
        assert!(text("/link", false).is_err() && text("/null", true).is_err());
    }
}
