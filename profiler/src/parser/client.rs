//! What a thread of the agent asks its parser process.

use std::{
    fs::{self, File},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use profiler_profile::printable::printable;
use profiler_python::{image::Image, offsets::Unsupported};
use profiler_unwind::{NoTable, Standalone, report::Unreported};
use quick_cache::unsync::Cache;
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::{
    answers,
    bars::{Bars, Subject, Why},
    claims,
    message::{Answer, Request, decoded, encoded},
    patience::{NoAnswer, Patience},
    probe::Probe,
    process::{Budget, Failure},
    sandbox::Step,
    supervisor::Supervisor,
};
use crate::{process::file::FileKey, realtime::Role, stderr};

/// What a process may allocate: twice what the tables of the largest files need.
const MEMORY_BYTES: u64 = 512 << 20;
const MAX_PROBED_BYTES: usize = 64 << 10;
/// How long a file system may take for the headers of a file. A disk under load takes a part of a second.
const HEADERS_WITHIN: Duration = Duration::from_secs(2);
/// A file system that did not respond is asked about a file again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Files that are remembered for that long.
const MAX_UNANSWERED: usize = 1024;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The file was given up.
    Barred,
    /// Its file system does not respond.
    Unanswered,
    /// There is no parser process now.
    Unavailable,
}

/// What a thread asks its parser process. Belongs to one thread, with which it ends.
pub struct Parser {
    bars: Arc<Bars>,
    budget: Budget,
    processes: Supervisor,
    patience: Patience,
    /// Files whose file system did not respond, and when to ask it again.
    unanswered: Cache<Subject, Instant>,
}

impl std::fmt::Debug for Parser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parser").field("pid", &self.processes.pid()).finish_non_exhaustive()
    }
}

impl Parser {
    /// A process for a thread with this role, and a budget for each request. It is started now if possible.
    pub(crate) fn start(bars: Arc<Bars>, budget: Budget, role: Role) -> Self {
        Self::start_with(bars, budget, role, MEMORY_BYTES)
    }

    /// The same, for a process that keeps so many bytes of what it has read.
    pub(crate) fn start_holding(bars: Arc<Bars>, budget: Budget, role: Role, bytes: usize) -> Self {
        // As much again, for what is read while so much is kept.
        let memory_bytes = MEMORY_BYTES.max((bytes as u64).saturating_mul(2));
        Self::start_with(bars, budget, role, memory_bytes)
    }

    fn start_with(bars: Arc<Bars>, budget: Budget, role: Role, memory_bytes: u64) -> Self {
        let mut parser = Self::new(bars, budget, role, memory_bytes);
        parser.processes.restart();
        parser
    }

    fn new(bars: Arc<Bars>, budget: Budget, role: Role, memory_bytes: u64) -> Self {
        let processes = Supervisor::new(Arc::clone(&bars), role, memory_bytes);
        let patience = Patience::new();
        Self { bars, budget, processes, patience, unanswered: Cache::new(MAX_UNANSWERED) }
    }

    /// One that starts its process with the first question.
    #[cfg(test)]
    pub(crate) fn not_started() -> Self {
        let budget = Budget { cpu: Duration::from_secs(20), wall: Duration::from_secs(120) };
        Self::new(Arc::default(), budget, Role::Naming, MEMORY_BYTES)
    }

    /// What became of the files that were asked about.
    #[cfg(test)]
    pub(crate) fn account(&self) -> profiler_profile::ledger::parsing::Parsing {
        self.bars.account()
    }

    /// Kills the process, as anybody may.
    #[cfg(test)]
    pub(crate) fn kill(&mut self) {
        let pid = self.processes.pid().and_then(|it| i32::try_from(it).ok()).unwrap();
        // SAFETY: no preconditions; the process is our child and was not waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }

    /// The unwind table of a file.
    pub(crate) fn table(
        &mut self,
        key: FileKey,
        file: &File,
    ) -> Result<Result<Standalone, NoTable>, Refusal> {
        self.ask(key, file, &Request::Table, answers::MAX_TABLE_BYTES, answers::table)
    }

    /// Whether a file is a Python interpreter, and if so, what is to be known of it.
    pub(crate) fn python(
        &mut self,
        key: FileKey,
        file: &File,
    ) -> Result<Result<Option<Image>, Unsupported>, Refusal> {
        self.ask(key, file, &Request::Python, answers::MAX_LOADED_BYTES, answers::python)
    }

    /// What `profiler unwind-info` says of a file with this name, or why it can't be parsed.
    pub(crate) fn report(
        &mut self,
        file: &File,
        name: &str,
        at: Option<u64>,
    ) -> Result<Result<String, Unreported>, Why> {
        if !claims::are_plausible(file) {
            return Err(Why::Claims);
        }
        let request = Request::Report { name: name.to_owned(), at };
        let limit = answers::MAX_REPORT_BYTES;
        let asked = self.ask_twice(&request, &[file.as_fd()], limit, answers::report);
        match asked {
            Ok(answered) => answered.map_err(Why::from),
            Err(_) => Err(Why::Ended("it can't be started".into())),
        }
    }

    /// Whether a file, its debug information or a companion may be parsed: it was not given up, and does not
    /// claim more than it has on disk.
    pub(crate) fn check(&mut self, what: impl Into<Subject>, file: &File) -> Result<(), Refusal> {
        let (what, owner) = (what.into(), owner_of(file));
        self.bars.may_parse(what, owner).map_err(|_| Refusal::Barred)?;
        if self.unanswered.get(&what).is_some_and(|again| Instant::now() < *again) {
            return Err(Refusal::Unanswered);
        }
        let copy = file.try_clone().map_err(|_| Refusal::Unavailable)?;
        let are_plausible = move || claims::are_plausible(&copy);
        let name = || name_of(file);
        match self.ask_file_system(owner, HEADERS_WITHIN, name, are_plausible) {
            Some(true) => Ok(()),
            Some(false) => {
                self.bars.bar(what, owner, Duration::ZERO, Why::Claims, &name_of(file));
                Err(Refusal::Barred)
            }
            None => {
                self.unanswered.insert(what, Instant::now() + ASK_AGAIN);
                Err(Refusal::Unanswered)
            }
        }
    }

    /// Has a thread that may have to wait for a file system find something out about files of an owner, which people
    /// know by this name. `None`, of which the user is told, if it takes longer than this, or slow answers about files
    /// of this owner have taken too long together.
    pub(crate) fn ask_file_system<T: Send + 'static>(
        &mut self,
        owner: u32,
        within: Duration,
        name: impl FnOnce() -> String,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        match self.patience.ask(owner, within, question) {
            Ok(answer) => Some(answer),
            Err(NoAnswer::Late) => {
                let name = name();
                let name = printable(&name);
                self.tell(&format!("the file system of {name} is not responding"));
                None
            }
            Err(NoAnswer::Unasked) => {
                self.bars.unasked();
                self.tell(&format!(
                    "files of user {owner} are left out for now, since file systems respond too slowly"
                ));
                None
            }
        }
    }

    /// How long slow answers of file systems have taken so far.
    pub(crate) fn slow_time(&self) -> Duration {
        self.patience.slow_time()
    }

    /// Says once why names may be missing.
    fn tell(&self, why: &str) {
        let line = format!("names may be missing: {why}");
        if self.bars.is_news(&line) {
            stderr::notice(&line);
        }
    }

    /// A companion of a file, if it may be parsed.
    pub(crate) fn checked_companion(&mut self, companion: Option<File>) -> Option<File> {
        companion
            .filter(|it| Subject::companion(it).is_some_and(|what| self.check(what, it).is_ok()))
    }

    /// Asks about a file. Whatever comes of it, the next question finds a process.
    fn ask<T>(
        &mut self,
        key: FileKey,
        file: &File,
        request: &Request,
        limit: usize,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, Refusal> {
        self.check(key, file)?;
        let start = Instant::now();
        match self.ask_twice(request, &[file.as_fd()], limit, parse)? {
            Ok(answer) => Ok(answer),
            Err(failure) => {
                self.bar(key.into(), file, start.elapsed(), failure);
                Err(Refusal::Barred)
            }
        }
    }

    /// Gives up a file, or what is in it, after this failure.
    pub(crate) fn bar(&self, what: Subject, file: &File, took: Duration, failure: Failure) {
        self.bars.bar(what, owner_of(file), took, failure.into(), &name_of(file));
    }

    /// Whether what is not a mapped file may be parsed: it was not given up, nor was this user.
    pub(crate) fn may_parse(&self, what: Subject, owner: u32) -> bool {
        self.bars.may_parse(what, owner).is_ok()
    }

    /// Gives up what is not a mapped file and has this name, after this failure.
    pub(crate) fn give_up(
        &self,
        what: Subject,
        owner: u32,
        took: Duration,
        failure: Failure,
        name: &str,
    ) {
        self.bars.bar(what, owner, took, failure.into(), name);
    }

    /// The number of the process that runs now, counted from the first one. What an earlier one held is gone
    /// with it.
    pub(crate) fn generation(&mut self) -> Result<u64, Refusal> {
        self.processes.generation().ok_or(Refusal::Unavailable)
    }

    /// Asks, and asks another process if this one ends: whoever has ended it need not have been the file.
    pub(super) fn ask_twice<T>(
        &mut self,
        request: &Request,
        files: &[BorrowedFd<'_>],
        limit: usize,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Result<T, Failure>, Refusal> {
        match self.ask_process(request, files, limit, &parse)? {
            Err(Failure::Ended(_)) => self.ask_process(request, files, limit, &parse),
            answered => Ok(answered),
        }
    }

    /// Asks the process that is there, or was started for it. If it fails, another one is started.
    pub(super) fn ask_process<T>(
        &mut self,
        request: &Request,
        files: &[BorrowedFd<'_>],
        limit: usize,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Result<T, Failure>, Refusal> {
        self.ask_within(self.budget, request, files, limit, parse)
    }

    /// The same, with a budget of its own.
    pub(super) fn ask_within<T>(
        &mut self,
        budget: Budget,
        request: &Request,
        files: &[BorrowedFd<'_>],
        limit: usize,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Result<T, Failure>, Refusal> {
        let failure = match self.ask_once(budget, request, files, limit)? {
            Ok(bytes) => match parse(&bytes) {
                Some(answer) => return Ok(Ok(answer)),
                None => Failure::Nonsense,
            },
            Err(failure) => failure,
        };
        self.processes.restart();
        Ok(Err(failure))
    }

    fn ask_once(
        &mut self,
        budget: Budget,
        request: &Request,
        files: &[BorrowedFd<'_>],
        limit: usize,
    ) -> Result<Result<Vec<u8>, Failure>, Refusal> {
        let request = encoded(request).ok_or(Refusal::Unavailable)?;
        self.processes.ask(&request, files, budget, limit).ok_or(Refusal::Unavailable)
    }

    /// What the process could not give up, and why.
    pub(crate) fn lacks(&self) -> &[(Step, String)] {
        self.processes.lacks()
    }

    /// Whether the process has ended, or an error was in its way, when it tried this.
    pub(crate) fn prevents(&mut self, probe: Probe) -> Result<bool, Refusal> {
        let answer = self.ask_once(self.budget, &Request::Probe(probe), &[], MAX_PROBED_BYTES)?;
        let is_prevented = match answer.map(|bytes| decoded(&bytes)) {
            Ok(Some(Answer::Probed(result))) => result.is_err(),
            _ => {
                self.processes.restart();
                true
            }
        };
        Ok(is_prevented)
    }
}

/// The user id of a file's owner, as far as it is known here: a file system that does not respond is not asked.
fn owner_of(file: &File) -> u32 {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, StatxFlags::UID).map_or(0, |it| it.stx_uid)
}

/// The path of an open file, for people.
fn name_of(file: &File) -> String {
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.map_or_else(|_| "a file".into(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::{super::message::Misbehaviour, *};
    use profiler_testing::elf::sparse_with_symbols;
    use profiler_unwind::{Rules, Table};
    use std::os::unix::fs::MetadataExt as _;

    const BUDGET: Budget = Budget { cpu: Duration::from_secs(20), wall: Duration::from_secs(120) };
    const SHORT: Budget = Budget { cpu: Duration::from_millis(200), ..BUDGET };

    fn own() -> File {
        File::open("/proc/self/exe").unwrap()
    }

    fn parser(budget: Budget) -> Parser {
        // A program with debug information takes more than others.
        let parser = Parser::start(Arc::default(), budget, Role::Tables);
        assert!(parser.processes.pid().is_some(), "it is started");
        parser
    }

    /// What becomes of a file that makes the process behave so.
    fn barred(parser: &mut Parser, number: u64, how: Misbehaviour) -> Why {
        let (key, file) = (FileKey::Number(number), own());
        let request = Request::Misbehave(how);
        let answer = parser.ask(key, &file, &request, 1 << 20, |_| None::<()>);
        assert_eq!(answer, Err(Refusal::Barred), "{how:?}");
        // The other files keep going, at once.
        assert!(parser.processes.pid().is_some(), "{how:?}");
        let other = parser.table(FileKey::Number(u64::MAX), &tempfile::tempfile().unwrap());
        assert_eq!(other, Ok(Err(NoTable::NotElf)), "{how:?}");
        let owner = file.metadata().unwrap().uid();
        let why = parser.bars.may_parse(key, owner).unwrap_err();
        // It is not asked about again.
        let answer = parser.ask(key, &file, &request, 1 << 20, |_| None::<()>);
        assert_eq!(answer, Err(Refusal::Barred), "{how:?}");
        why
    }

    #[test]
    fn a_table_is_the_same_as_without_a_process() {
        let (file, mut rules) = (own(), Rules::new());
        let table = Standalone::new(Table::of_file(&file, &mut rules).unwrap(), &rules);
        let answer = parser(BUDGET).table(FileKey::Number(1), &file).unwrap().unwrap();
        assert!(answer == table);
        let text = tempfile::tempfile().unwrap();
        let answer = parser(BUDGET).table(FileKey::Number(1), &text);
        assert_eq!(answer, Ok(Err(NoTable::NotElf)));
    }

    #[test]
    fn what_a_file_can_do_to_the_process_costs_that_file_only() {
        let mut short = parser(SHORT);
        assert_eq!(barred(&mut short, 1, Misbehaviour::Spin), Why::Slow);
        let mut parser = parser(BUDGET);
        assert_eq!(barred(&mut parser, 1, Misbehaviour::Nonsense), Why::Nonsense);
        assert_eq!(barred(&mut parser, 2, Misbehaviour::Endless), Why::Nonsense);
        for (number, how) in
            (3..).zip([Misbehaviour::Die, Misbehaviour::Overflow, Misbehaviour::Grow])
        {
            let why = barred(&mut parser, number, how);
            assert!(matches!(why, Why::Ended(_)), "{how:?}: {why:?}");
        }
        let account = parser.bars.account();
        assert_eq!((account.barred, account.barred_files.len()), (5, 5), "{account:?}");
        // Twice for those that end the process.
        assert_eq!(account.restarts, 2 + 3 * 2, "{account:?}");
    }

    #[test]
    fn a_panic_costs_the_answer_only() {
        let mut parser = parser(BUDGET);
        let request = Request::Misbehave(Misbehaviour::Panic);
        let is_panic = |bytes: &[u8]| matches!(decoded(bytes)?, Answer::Panicked).then_some(());
        let answer = parser.ask(FileKey::Number(1), &own(), &request, 1 << 20, is_panic);
        assert_eq!(
            (answer, parser.bars.account()),
            (Ok(()), profiler_profile::ledger::parsing::Parsing::default())
        );
    }

    #[test]
    fn a_process_that_others_have_killed_is_no_fault_of_a_file() {
        let mut parser = parser(BUDGET);
        let file = own();
        let before = parser.table(FileKey::Number(1), &file).unwrap().unwrap();
        for restarts in 1..=3 {
            let [pid] = parser.bars.pids()[..] else { panic!("one process") };
            // SAFETY: no preconditions; the process is our child and was not waited for.
            unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
            let after = parser.table(FileKey::Number(1), &file).unwrap().unwrap();
            assert!(after == before);
            let account = parser.bars.account();
            assert_eq!((account.restarts, account.barred), (restarts, 0));
        }
    }

    #[test]
    fn a_process_ends_with_who_has_started_it() {
        let bars = Arc::<Bars>::default();
        let parser = Parser::start(Arc::clone(&bars), BUDGET, Role::Tables);
        assert_eq!(bars.pids().len(), 1);
        drop(parser);
        assert_eq!(bars.pids(), [0; 0]);
    }

    #[test]
    fn what_a_sparse_file_claims_is_not_read() {
        let mut parser = parser(BUDGET);
        for (number, claimed) in [(1, 20 << 30), (2, 4 << 40)] {
            let file = tempfile::tempfile().unwrap();
            sparse_with_symbols(&file, claimed);
            assert_eq!(parser.table(FileKey::Number(number), &file), Err(Refusal::Barred));
        }
        let account = parser.bars.account();
        assert_eq!((account.restarts, account.barred), (0, 2));
        assert!(account.barred_files[0].contains("claims"), "{account:?}");
    }

    #[test]
    fn nothing_else_works_in_the_process() {
        let mut parser = parser(BUDGET);
        assert_eq!(parser.prevents(Probe::Nothing), Ok(false));
        for probe in Probe::FORBIDDEN {
            assert_eq!(parser.prevents(probe), Ok(true), "{probe}");
        }
    }
}
