//! Files that profiles are written to, and their formats.

use std::{
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use profiler_profile::export::format::{FORMATS, Format};

use super::{file_of, refuse_terminal, replacement::Replacement};
use crate::{
    error::{Error, Result},
    invoker::Invoker,
    output::Sink,
    stderr,
};

/// A file to write, and how.
pub(super) struct Destination {
    pub(super) format: &'static Format,
    /// Standard output if `None`.
    pub(super) path: Option<PathBuf>,
}

impl Destination {
    /// Says where the profile is.
    pub(super) fn tell(&self) {
        if let Some(path) = &self.path {
            let (path, viewers) = (path.display(), self.format.viewers);
            stderr::notice(&format!("wrote {path}, for {viewers}"));
        }
    }

    /// Opens it for a profile of this owner. The replacement is committed when the file is whole.
    pub(super) fn open(&self, owner: Option<&Invoker>) -> Result<(Sink, Option<Replacement>)> {
        refuse_terminal(self.format, self.path.as_deref())?;
        open(self.path.as_deref(), owner)
    }
}

/// Opens a file of this owner to be written, or standard output. The replacement is committed when the file is whole.
pub(super) fn open(
    path: Option<&Path>,
    owner: Option<&Invoker>,
) -> Result<(Sink, Option<Replacement>)> {
    match path {
        Some(path) if !is_special(path) => {
            let (replacement, file) = Replacement::begin(path, owner)?;
            Ok((Sink::of(file, path), Some(replacement)))
        }
        Some(path) => Ok((Sink::of(open_special(path)?, path), None)),
        None => Ok((Sink::open(None)?, None)),
    }
}

/// Whether there is something to write to which must not be replaced: `/dev/null`, a pipe with a name, or what stands
/// for a descriptor, as `/dev/stdout` and `/proc/self/fd/1`.
fn is_special(path: &Path) -> bool {
    let folder = path.parent().and_then(|it| it.canonicalize().ok());
    let is_of_kernel = folder.is_some_and(|it| {
        it == Path::new("/dev") || it.starts_with("/dev/fd") || it.starts_with("/proc")
    });
    path.metadata().is_ok_and(|it| !it.is_dir() && (is_of_kernel || !it.is_file()))
}

/// Opens what is there, and waits for nobody.
fn open_special(path: &Path) -> Result<File> {
    let failed =
        |error: io::Error| Error::system(format!("cannot write {}", path.display()), error);
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => failed(io::Error::other("nobody reads it")),
            _ => failed(error),
        })?;
    // From here on a reader that is slow is waited for.
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|error| failed(error.into()))?;
    let blocking = flags.difference(rustix::fs::OFlags::NONBLOCK);
    rustix::fs::fcntl_setfl(&file, blocking).map_err(|error| failed(error.into()))?;
    Ok(file)
}

/// What is written where. `option` is what stands before each path on the command line.
pub(super) fn resolve(
    paths: Vec<PathBuf>,
    format: Option<&'static Format>,
    option: &str,
) -> Result<Vec<Destination>> {
    let mut outputs: Vec<Destination> = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = file_of(path);
        let format = format
            .or_else(|| Format::of_file(&name))
            .ok_or_else(|| unknown(path.as_deref(), option))?;
        if outputs.iter().any(|it| it.path == path) {
            let shown = path.as_deref().unwrap_or(Path::new("-")).display();
            return Err(Error::Usage(format!("{option}{shown}: this file was given twice")));
        }
        outputs.push(Destination { format, path });
    }
    Ok(outputs)
}

/// No format is known for a file.
fn unknown(path: Option<&Path>, option: &str) -> Error {
    let Some(path) = path else {
        let why = "standard output has no extension: add --format";
        return Error::Usage(format!("{option}-: {why}"));
    };
    let extensions = FORMATS.iter().filter_map(|it| it.extensions.first());
    let known: Vec<String> = extensions.map(|it| format!(".{it}")).collect();
    Error::Usage(format!(
        "{option}{}: no format has this extension; there are {}; --format takes any name",
        path.display(),
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[&str], format: Option<&str>) -> Result<Vec<&'static str>> {
        let paths = paths.iter().map(PathBuf::from).collect();
        let format = format.and_then(Format::find);
        Ok(resolve(paths, format, "-o ")?.iter().map(|it| it.format.name).collect())
    }

    #[test]
    fn the_extension_says_the_format() {
        assert_eq!(names(&["a.folded", "b.jsonl"], None).unwrap(), ["folded", "json"]);
        assert_eq!(names(&["x/a.b.compact.jsonl"], None).unwrap(), ["json-compact"]);
        assert_eq!(names(&["-", "b.png"], Some("text")).unwrap(), ["text", "text"]);
    }

    #[test]
    fn what_is_the_kernels_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a.folded"), dir.path().join("b.folded"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("a.folded", &link).unwrap();
        for special in ["/dev/null", "/dev/stdout", "/proc/self/fd/1"] {
            assert!(is_special(Path::new(special)), "{special}");
        }
        for other in [&file, &link, &dir.path().join("none.folded"), dir.path()] {
            assert!(!is_special(other), "{}", other.display());
        }
    }

    #[test]
    fn what_has_no_format_is_refused_with_those_there_are() {
        for (paths, part) in [
            (&["a.png"][..], ".folded"),
            (&["folded"], ".folded"),
            (&["-"], "--format"),
            (&["a.folded", "a.folded"], "twice"),
        ] {
            let Err(Error::Usage(message)) = names(paths, None) else { panic!("{paths:?}") };
            assert!(message.contains(part), "{message}");
        }
    }
}
