//! Where files are looked for on behalf of a process, and which of them are used.
//!
//! A process may have a root of its own, with anything at any path: in a user namespace each user can make
//! such a root, and mount into it what they may not read. So no link leads out of a root, and a file there is
//! used only if the process's user could read it, and if who owns it may say what is in the program: root,
//! or the program's own owner. What names a file's functions for one process names them for all.

use std::{
    fs::{File, Metadata},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::owner::{Owner, Reader};
use crate::regular_file;

/// The root of a process and ours, for companions of one of the files that it has mapped.
#[derive(Debug)]
pub(super) struct Roots {
    folders: Vec<OwnedFd>,
    reader: Reader,
    /// The user id of the mapped file's owner.
    owner: u32,
}

impl Roots {
    /// Those of a process, and of a file of this owner. If the process is gone, only ours is left, with what
    /// everybody may read.
    pub(super) fn of(tgid: u32, owner: u32) -> Self {
        let (own, reader) = Owner::of(tgid)
            .map_or_else(|| (None, Reader::anyone()), |it| (Some(it.root), it.reader));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let ours = openat(CWD, "/", flags, Mode::empty()).ok();
        Self { folders: own.into_iter().chain(ours).collect(), reader, owner }
    }

    /// The first that is wanted of the regular files at these absolute paths, in one root after another.
    pub(super) fn find(
        &self,
        places: &[PathBuf],
        mut is_wanted: impl FnMut(&File) -> bool,
    ) -> Option<File> {
        self.folders.iter().find_map(|root| {
            let mut files = places.iter().filter_map(|place| self.open(root, place));
            files.find(&mut is_wanted)
        })
    }

    fn open(&self, root: &OwnedFd, path: &Path) -> Option<File> {
        let file =
            regular_file::open_below(root, path, true).ok().filter(|_| path.is_absolute())?;
        file.metadata().is_ok_and(|it| self.may_use(&it)).then_some(file)
    }

    fn may_use(&self, file: &Metadata) -> bool {
        [0, self.owner].contains(&file.uid()) && self.reader.could_read(file)
    }
}

#[cfg(test)]
impl Roots {
    /// Folders for roots, of a process that is ours.
    pub(super) fn in_folders(folders: &[&Path]) -> Self {
        let own = Owner::of(std::process::id()).unwrap();
        let folders = folders.iter().map(|it| File::open(it).unwrap().into()).collect();
        Self { folders, reader: own.reader, owner: own.uid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt as _, chown, symlink},
    };

    fn found(roots: &Roots, path: &str) -> bool {
        roots.find(&[path.into()], |_| true).is_some()
    }

    #[test]
    fn a_link_does_not_lead_out_of_a_root() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("file"), "").unwrap();
        symlink(outside.path().join("file"), dir.path().join("out")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        symlink("/file", dir.path().join("in")).unwrap();
        let roots = Roots::in_folders(&[dir.path()]);
        assert!(found(&roots, "/in") && found(&roots, "/file"));
        assert!(!found(&roots, "/out") && !found(&roots, "file"));
    }

    #[test]
    fn what_others_own_or_the_user_could_not_read_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let mut roots = Roots::in_folders(&[dir.path()]);
        if chown(&file, Some(1001), Some(1001)).is_err() {
            return crate::stderr::say("skipped: only root can give a file away");
        }
        let mode = |mode| fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        // Root's program, and one of another user.
        for owner in [0, 1002] {
            roots.owner = owner;
            assert!(!found(&roots, "/file"));
        }
        roots.owner = 1001;
        assert!(found(&roots, "/file"));
        // One process of another user, and one that is gone.
        roots.reader = Reader::anyone();
        assert!(found(&roots, "/file"));
        mode(0o640);
        assert!(!found(&roots, "/file"));
    }

    #[test]
    fn of_a_process_that_is_gone_ours_is_left() {
        let roots = Roots::of(u32::MAX, 0);
        assert_eq!(roots.folders.len(), 1);
        assert_eq!(Roots::of(std::process::id(), 0).folders.len(), 2);
    }
}
