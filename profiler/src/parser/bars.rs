//! The list of files that were given up, shared by all threads that parse.

use std::{
    fmt,
    fs::File,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use profiler_profile::{ledger::parsing::Parsing, printable::printable};
use quick_cache::unsync::Cache;
use rustix::fs::{AtFlags, StatxFlags, makedev, statx};

use super::process::Failure;
use crate::{bpf::own::OwnProcesses, process::file::FileKey, stderr};

/// Files on the list. When it is full, the least used ones are evicted, and may be tried once more.
const MAX_BARRED: usize = 16 << 10;
/// Time that one user's files may waste. After that no other file of that user is tried, so that nobody can
/// make the others wait. Root is exempt.
const OWNER_LIMIT: Duration = Duration::from_secs(10);
/// Users that are remembered.
const MAX_OWNERS: usize = 4096;
/// Files that are named on standard error and in the ledger.
const MAX_NAMED: usize = 10;
/// Bytes of each name.
const MAX_NAME: usize = 256;

/// Why a file was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The parser process ended twice while reading it, in this way.
    Ended(String),
    /// It took longer than its budget.
    Slow,
    /// The answer made no sense.
    Nonsense,
    /// A section claims to be larger than the file can be on disk.
    Claims,
    /// Other files of its owner have taken too long.
    Owner,
}

impl From<Failure> for Why {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Ended(how) => Self::Ended(how),
            Failure::Slow => Self::Slow,
            Failure::Nonsense => Self::Nonsense,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(how) => write!(f, "the parser process ended: {how}"),
            Self::Slow => f.write_str("parsing took longer than its budget"),
            Self::Nonsense => f.write_str("the answer of the parser process made no sense"),
            Self::Claims => f.write_str("it claims more than it has on disk"),
            Self::Owner => f.write_str("too much time went into other files of its owner"),
        }
    }
}

/// What is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A file.
    File(FileKey),
    /// The debug information of a file, whose symbols are still read.
    Lines(FileKey),
    /// A companion of another file, such as its debug file: by device and inode.
    Companion(u64, u64),
    /// The memory of a process with an interpreter, by a number of its own.
    Memory(u64),
}

impl Subject {
    /// What to blame when reading a file failed, with or without its debug info.
    pub(crate) fn read(key: FileKey, has_lines: bool) -> Self {
        if has_lines { Self::Lines(key) } else { Self::File(key) }
    }

    /// A file that belongs to another one; `None` if the file system says nothing of it.
    pub(super) fn companion(file: &File) -> Option<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(file, "", flags, StatxFlags::INO).ok()?;
        Some(Self::Companion(makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
    }
}

impl From<FileKey> for Subject {
    fn from(key: FileKey) -> Self {
        Self::File(key)
    }
}

/// The files that were given up, shared by all who parse.
#[derive(Debug, Default)]
pub struct Bars(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    given_up: Cache<Subject, Why>,
    wasted: Cache<u32, Duration>,
    pids: Vec<u32>,
    /// Filters these processes out of the samples.
    own: Option<OwnProcesses>,
    parsing: Parsing,
    told: Vec<String>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            given_up: Cache::new(MAX_BARRED),
            wasted: Cache::new(MAX_OWNERS),
            pids: Vec::new(),
            own: None,
            parsing: Parsing::default(),
            told: Vec::new(),
        }
    }
}

impl Bars {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a file may be parsed, or why not.
    pub(super) fn may_parse(&self, what: impl Into<Subject>, owner: u32) -> Result<(), Why> {
        let inner = self.inner();
        if let Some(why) = inner.given_up.get(&what.into()) {
            return Err(why.clone());
        }
        let wasted = inner.wasted.get(&owner).filter(|_| owner != 0);
        if wasted.is_some_and(|it| *it >= OWNER_LIMIT) { Err(Why::Owner) } else { Ok(()) }
    }

    /// Gives up a file with this name, or its debug info, after it took this long.
    pub(super) fn bar(
        &self,
        what: impl Into<Subject>,
        owner: u32,
        took: Duration,
        why: Why,
        name: &str,
    ) {
        let what = what.into();
        let mut inner = self.inner();
        let wasted = inner.wasted.get(&owner).copied().unwrap_or_default();
        inner.wasted.insert(owner, wasted.saturating_add(took));
        let cut = name.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_NAME);
        let name = printable(name.get(..cut.unwrap_or(name.len())).unwrap_or_default());
        let (line, cost) = match what {
            Subject::File(_) => (format!("{name}: {why}"), "its frames are shown without names"),
            Subject::Lines(_) => (
                format!("the debug information of {name}: {why}"),
                "its frames are shown without source lines",
            ),
            Subject::Companion(..) => (format!("{name}: {why}"), "it is not used"),
            Subject::Memory(_) => {
                (format!("{name}: {why}"), "its Python code is shown without names")
            }
        };
        let is_new = !inner.given_up.contains_key(&what);
        inner.given_up.insert(what, why);
        if !is_new {
            return;
        }
        inner.parsing.barred += 1;
        if inner.parsing.barred_files.len() < MAX_NAMED {
            inner.parsing.barred_files.push(line.clone());
            drop(inner);
            stderr::notice(&format!("can't parse {line}; {cost}"));
        }
    }

    /// A question about a file was not asked, since file systems respond too slowly for its owner's files.
    pub(super) fn unasked(&self) {
        self.inner().parsing.unasked += 1;
    }

    /// Has samples of the parser processes filtered out, including those started later.
    pub fn exclude_from(&self, mut own: OwnProcesses) {
        let mut inner = self.inner();
        let refused = inner.pids.iter().find_map(|pid| own.add(*pid).err());
        inner.own = Some(own);
        drop(inner);
        if let Some(error) = refused {
            stderr::notice(&error.to_string());
        }
    }

    /// A process was started, possibly to replace another one.
    pub(super) fn started(&self, pid: u32, is_another: bool) {
        let mut inner = self.inner();
        inner.parsing.restarts += u64::from(is_another);
        inner.pids.push(pid);
        // There is room for as many as there can be.
        let _ = inner.own.as_mut().map(|own| own.add(pid));
    }

    /// The process is gone.
    pub(super) fn ended(&self, pid: u32) {
        let mut inner = self.inner();
        inner.pids.retain(|it| *it != pid);
        if let Some(own) = &mut inner.own {
            own.remove(pid);
        }
    }

    /// The parser processes that run now.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.inner().pids.clone()
    }

    /// The account for the ledger.
    #[must_use]
    pub fn account(&self) -> Parsing {
        self.inner().parsing.clone()
    }

    /// Whether this line was not printed before.
    pub(super) fn is_news(&self, line: &str) -> bool {
        let mut inner = self.inner();
        let is_news = inner.told.len() < MAX_NAMED && inner.told.iter().all(|it| it != line);
        if is_news {
            inner.told.push(line.to_owned());
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stays_barred_and_is_counted_once() {
        let bars = Bars::default();
        let (one, other) = (FileKey::Number(1), FileKey::Number(2));
        assert_eq!(bars.may_parse(one, 7), Ok(()));
        for _ in 0..2 {
            bars.bar(one, 7, Duration::ZERO, Why::Slow, "/tmp/one\x1b]0;forged\n");
        }
        assert_eq!(bars.may_parse(one, 7), Err(Why::Slow));
        assert_eq!(bars.may_parse(other, 7), Ok(()));
        let account = bars.account();
        assert_eq!(account.barred, 1);
        let line = &account.barred_files[0];
        assert!(line.starts_with("/tmp/one") && !line.contains(char::is_control), "{line:?}");
    }

    #[test]
    fn the_files_of_one_user_do_not_hold_up_those_of_others() {
        let bars = Bars::default();
        for number in 0..5 {
            assert_eq!(bars.may_parse(FileKey::Number(number), 7), Ok(()));
            let took = OWNER_LIMIT / 5;
            bars.bar(FileKey::Number(number), 7, took, Why::Slow, "x");
            bars.bar(FileKey::Number(100 + number), 0, took, Why::Slow, "x");
        }
        assert_eq!(bars.may_parse(FileKey::Number(50), 7), Err(Why::Owner));
        assert_eq!(bars.may_parse(FileKey::Number(50), 8), Ok(()));
        assert_eq!(bars.may_parse(FileKey::Number(50), 0), Ok(()));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let bars = Bars::default();
        for number in 0..2 * MAX_BARRED as u64 {
            let owner = u32::try_from(number).unwrap();
            bars.bar(FileKey::Number(number), owner, Duration::ZERO, Why::Slow, "x");
        }
        let inner = bars.inner();
        assert!(inner.given_up.len() <= MAX_BARRED && inner.wasted.len() <= MAX_OWNERS);
        assert_eq!(inner.parsing.barred_files.len(), MAX_NAMED);
    }
}
