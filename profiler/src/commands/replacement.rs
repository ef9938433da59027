//! A file that takes the place of another when it is whole.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::process::geteuid;
use tempfile::{Builder, TempPath};

use crate::{
    error::{Error, Result},
    hardening::capabilities::{self, FILES_OF_OTHERS},
    invoker::Invoker,
    stderr,
};

/// A file under another name in the folder where it will be, which is removed unless it [takes its
/// place](Self::commit).
pub(super) struct Replacement {
    /// `None` when it has.
    temporary: Option<TempPath>,
    to: PathBuf,
}

impl Replacement {
    /// Makes the file, for its owner only: it tells what other users run. The owner is this user, if one is given.
    pub(super) fn begin(to: &Path, owner: Option<&Invoker>) -> Result<(Self, File)> {
        let what = format!("cannot write {}", to.display());
        // Without the name that nobody has typed, which the crate puts behind.
        let failed = |error: io::Error| {
            let why = error.to_string();
            Error::system(&*what, why.split(" at path ").next().unwrap_or(&why))
        };
        let name = to.file_name().ok_or_else(|| failed(io::ErrorKind::IsADirectory.into()))?;
        if to.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        let file = Builder::new().prefix(&prefix).suffix(".part").tempfile_in(folder(to));
        let (file, temporary) = file.map_err(failed)?.into_parts();
        if let Some(Err(error)) = owner.map(|owner| owner.own(&file)) {
            // As on a file system that knows no owners.
            stderr::notice(&format!("{} stays root's: {error}", to.display()));
        }
        Ok((Self { temporary: Some(temporary), to: to.to_owned() }, file))
    }

    /// Whether it can be renamed or removed only by root's rights.
    pub(super) fn needs_rights(&self) -> bool {
        const WRITABLE: u32 = 0o300;
        let is_ours =
            |it: fs::Metadata| it.uid() == geteuid().as_raw() && it.mode() & WRITABLE == WRITABLE;
        !folder(&self.to).metadata().is_ok_and(is_ours)
    }

    /// Puts it in its place.
    pub(super) fn commit(mut self) -> Result<()> {
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        let done = capabilities::having(FILES_OF_OTHERS, || {
            temporary.persist(&self.to).map_err(|it| it.error)
        });
        done.map_err(|error| Error::system(format!("cannot write {}", self.to.display()), error))
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // What can't be removed is for its owner to see.
            let _ = capabilities::having(FILES_OF_OTHERS, || temporary.close());
        }
    }
}

fn folder(of: &Path) -> &Path {
    of.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write as _, os::unix::fs::PermissionsExt as _};

    fn files(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn a_file_is_the_old_one_until_it_is_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.folded");
        fs::write(&path, "old").unwrap();
        let (replacement, mut file) = Replacement::begin(&path, None).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), files(dir.path())), ("old", 2));
        replacement.commit().unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), files(dir.path())), ("new", 1));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        drop(Replacement::begin(&path, None).unwrap());
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), files(dir.path())), ("new", 1));
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("a.folded"), dir.path().join("target"));
        fs::write(&target, "theirs").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        Replacement::begin(&path, None).unwrap().0.commit().unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
        assert!(!path.symlink_metadata().unwrap().is_symlink());
    }

    #[test]
    fn what_can_not_be_written_is_said_before() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().to_owned(), dir.path().join("none/a.folded"), PathBuf::from("/")] {
            let Err(error) = Replacement::begin(&path, None) else { panic!("{path:?}") };
            let error = error.to_string();
            assert!(error.contains("cannot write") && !error.contains(".part"), "{error}");
        }
    }
}
