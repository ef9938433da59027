//! A folder with a file for each window: the store of a host by itself.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use profiler_profile::export::{about::About, output::Output, pprof};
use tempfile::Builder;

use super::{Counts, Destination, Window, fates::add};
use crate::{
    error::{Error, Result},
    stderr,
};

/// Where windows are by default.
pub const DEFAULT: &str = "/var/lib/profiler";
/// How the names of windows end.
const EXTENSION: &str = ".pb.gz";
/// The time at the beginning of a name, in UTC: names sort by it.
const TIME: &str = "%Y%m%dT%H%M%S.%3fZ";

/// Windows that may have begun at one time, by the clock.
const MAX_SAME_TIME: u64 = 1000;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// For how long.
    pub age: Duration,
    /// So many bytes.
    pub bytes: u64,
}

/// A folder of windows.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    keep: Keep,
}

/// A window in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// When it began.
    pub begun: Timestamp,
    /// Its file.
    pub path: PathBuf,
    bytes: u64,
}

impl Folder {
    /// The folder, which is made if it is not there, for its owner only: windows tell what all users run.
    ///
    /// # Errors
    ///
    /// It can't be made, or nothing can be written there.
    pub fn open(path: &Path, keep: Keep) -> Result<Self> {
        let failed = |error: io::Error| {
            let what = format!("cannot write to {}", path.display());
            Error::Usage(format!("{what}: {}", why(&error)))
        };
        if !path.is_dir() {
            use std::os::unix::fs::DirBuilderExt as _;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        }
        // Gone at once, but it could be made.
        Builder::new().prefix(".").suffix(".part").tempfile_in(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), keep })
    }

    /// Writes a window to a file of its own, which has its name when it is whole.
    fn write(&self, window: &Window) -> io::Result<u64> {
        let about = About::of_run(&window.ledger, &window.options);
        let begun = begun(&about).unwrap_or_default();
        let mut bytes = Vec::new();
        Output::new(pprof::FORMAT.export, window.options.clone(), &mut bytes)
            .finish(&window.profile, &about)?;
        let mut file = Builder::new().prefix(".").suffix(".part").tempfile_in(&self.path)?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        file.persist_noclobber(self.free_name(begun)).map_err(|it| it.error)?;
        File::open(&self.path)?.sync_all()?;
        Ok(bytes.len() as u64)
    }

    /// A name of its own: where the clock was set back, another window may have the time.
    fn free_name(&self, begun: Timestamp) -> PathBuf {
        let name = |ms: u64| {
            let begun = begun.checked_add(Duration::from_millis(ms)).unwrap_or(begun);
            self.path.join(format!("{}{EXTENSION}", begun.strftime(TIME)))
        };
        (0..MAX_SAME_TIME).map(name).find(|it| !it.exists()).unwrap_or_else(|| name(0))
    }

    /// Removes the oldest windows, as long as there are too many; the newest stays.
    fn evict(&self, now: Timestamp) -> io::Result<()> {
        let mut windows = list(&self.path)?;
        let mut bytes: u64 = windows.iter().map(|it| it.bytes).sum();
        windows.pop();
        for window in windows {
            let age = Duration::try_from(now.duration_since(window.begun)).unwrap_or_default();
            if age <= self.keep.age && bytes <= self.keep.bytes {
                break;
            }
            match fs::remove_file(&window.path) {
                // Somebody else has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done?,
            }
            bytes = bytes.saturating_sub(window.bytes);
        }
        Ok(())
    }
}

impl Destination for Folder {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn take(&mut self, window: &Window, counts: &Counts) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {}", self.path.display(), why(&error));
        // What is too old makes room first. Old windows that stay cost no new one.
        let before = self.evict(Timestamp::now());
        let bytes = self.write(window).map_err(failed)?;
        if let Err(error) = before.and_then(|()| self.evict(Timestamp::now())) {
            stderr::notice(&format!("old windows stay: {}", failed(error)));
        }
        add(&counts.written, 1);
        add(&counts.bytes, bytes);
        Ok(())
    }
}

/// Without the name of a file that is there for a moment.
fn why(error: &io::Error) -> String {
    let why = error.to_string();
    why.split(" at path ").next().unwrap_or(&why).to_owned()
}

fn begun(about: &About<'_>) -> Option<Timestamp> {
    Timestamp::from_nanosecond(about.begun_ns?).ok()
}

/// The windows of a folder, the oldest first. Other files are none of them.
///
/// # Errors
///
/// The folder can't be read.
pub fn list(folder: &Path) -> io::Result<Vec<Stored>> {
    let mut windows = Vec::new();
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let time = name.to_str().and_then(|it| it.strip_suffix(EXTENSION)).and_then(parse_time);
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file);
        if let (Some(begun), Some(metadata)) = (time, metadata) {
            windows.push(Stored { begun, path: entry.path(), bytes: metadata.len() });
        }
    }
    windows.sort_by_key(|it| it.begun);
    Ok(windows)
}

fn parse_time(text: &str) -> Option<Timestamp> {
    let zoned = format!("{}+00:00", text.strip_suffix('Z')?);
    Timestamp::strptime("%Y%m%dT%H%M%S.%f%:z", zoned).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::tests::window;

    const KEEP: Keep = Keep { age: Duration::from_secs(u32::MAX as u64), bytes: u64::MAX };

    fn names(folder: &Path) -> Vec<String> {
        let name = |it: Stored| it.path.file_name().unwrap().to_str().unwrap().to_owned();
        list(folder).unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn a_window_is_a_file_that_sorts_by_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let mut folder = Folder::open(&path, KEEP).unwrap();
        let counts = Counts::default();
        folder.take(&window(), &counts).unwrap();
        let bytes = counts.read(false).bytes;
        let mut later = window();
        later.options.begun_ns = 61_001_000_000;
        folder.take(&later, &counts).unwrap();
        let expected = ["20231114T221320.123Z.pb.gz", "20231114T221421.124Z.pb.gz"];
        assert_eq!(names(&path), expected);
        let first = fs::read(path.join(expected[0])).unwrap();
        assert_eq!(first.len() as u64, bytes);
        // Packed.
        assert!(first.starts_with(&[0x1f, 0x8b]));
        // The clock was set back.
        folder.take(&window(), &counts).unwrap();
        assert_eq!(counts.read(false).written, 3);
        assert_eq!(names(&path)[1], "20231114T221320.124Z.pb.gz");
        fs::remove_file(path.join("20231114T221320.124Z.pb.gz")).unwrap();
        // Nothing else is left, and what others put there is no window.
        fs::write(path.join("notes.pb.gz"), "x").unwrap();
        assert_eq!((fs::read_dir(&path).unwrap().count(), names(&path).len()), (3, 2));
    }

    #[test]
    fn the_oldest_go_by_age_and_by_bytes_and_the_newest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let fill = |ages_s: &[i64], now: Timestamp| {
            for age in ages_s {
                let begun = now - Duration::from_secs(age.unsigned_abs());
                let name = format!("{}{EXTENSION}", begun.strftime(TIME));
                fs::write(dir.path().join(name), [0; 100]).unwrap();
            }
        };
        let now = Timestamp::now();
        let left = |keep| {
            fill(&[500, 400, 300, 200], now);
            Folder::open(dir.path(), keep).unwrap().evict(now).unwrap();
            names(dir.path()).len()
        };
        assert_eq!(left(KEEP), 4);
        assert_eq!(left(Keep { age: Duration::from_secs(350), ..KEEP }), 2);
        assert_eq!(left(Keep { bytes: 250, ..KEEP }), 2);
        assert_eq!(left(Keep { bytes: 1, ..KEEP }), 1);
        assert_eq!(left(Keep { age: Duration::ZERO, bytes: 0 }), 1);
    }

    #[test]
    fn a_folder_that_can_not_be_written_is_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below"), PathBuf::from("/proc/windows")] {
            let error = Folder::open(&path, KEEP).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
    }
}
