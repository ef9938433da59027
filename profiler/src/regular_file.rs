//! Opening files whose paths others choose: a regular file or nothing.
//!
//! To open a device can do something (a watchdog starts, a tape rewinds), and to open a FIFO waits. So
//! what stands at a path is looked at before it is opened for reading.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};

/// Why there is no file.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Something else than a regular file is there.
    Special,
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

fn read(place: &OwnedFd) -> Result<File, Refusal> {
    if FileType::from_raw_mode(fstat(place)?.st_mode) != FileType::RegularFile {
        return Err(Refusal::Special);
    }
    File::open(format!("/proc/self/fd/{}", place.as_raw_fd())).map_err(Refusal::Failed)
}

impl From<rustix::io::Errno> for Refusal {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Failed(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn a_device_is_not_opened() {
        assert!(matches!(open(Path::new("/dev/null")), Err(Refusal::Special)));
        assert!(matches!(open(Path::new("/nowhere")), Err(Refusal::Failed(_))));
        assert!(open(Path::new("/proc/self/exe")).is_ok());
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
