//! Names of JIT code, from what its processes write for profilers.
//!
//! The agent looks for the [files], and reads what is [new](tail_reader) in them, on a thread that it can abandon. The
//! bytes go to the parser process, which makes names of them and keeps these. What it has answered is kept
//! [here](spans), so that hot code is asked for once.

mod files;
mod names;
mod spans;
mod tail_reader;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use profiler_profile::{
    frame::Origin,
    ledger::memory::{Cache, count},
};
use quick_cache::unsync;
use rustc_hash::FxHashMap;

use self::names::{JitProcess, Names, Step};
use super::names::Names as Interned;
use crate::{parser::Parser, process::table::Process, time_budget::TimeBudget};

/// Processes whose names are kept.
const LIMIT_PROCESSES: usize = 256;
/// Files without the address asked for are looked at again after this long.
const PAUSE: Duration = Duration::from_millis(200);
/// A file system that did not respond is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Users who are remembered for that long.
const MAX_UNANSWERED: usize = 1024;

/// The names of all processes.
#[derive(Debug)]
pub(super) struct JitNames {
    processes: FxHashMap<u32, Names>,
    last_number: u64,
    time_budget: TimeBudget,
    /// When to look again for files of a user whose file system did not respond. Each process of root counts as
    /// a user.
    unanswered: unsync::Cache<(u32, u32), Instant>,
    /// Of all of them.
    limit_bytes: usize,
    evicted: u64,
}

/// What names are asked of, and where they are kept once.
pub(super) struct With<'a> {
    pub(super) parser: &'a mut Parser,
    pub(super) interned: &'a mut Interned,
}

impl Default for JitNames {
    fn default() -> Self {
        Self {
            processes: FxHashMap::default(),
            last_number: 0,
            time_budget: TimeBudget::new(Instant::now()),
            unanswered: unsync::Cache::new(MAX_UNANSWERED),
            limit_bytes: usize::MAX,
            evicted: 0,
        }
    }
}

impl JitNames {
    /// Sets how many bytes all names may take.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.limit_bytes = bytes;
    }

    /// What it holds.
    pub(super) fn account(&self) -> Cache {
        Cache {
            name: "names of JIT code",
            entries: count(self.processes.len()),
            bytes: count(self.processes.values().map(Names::bytes).sum()),
            limit_bytes: Some(count(self.limit_bytes)),
            limit_entries: Some(count(LIMIT_PROCESSES)),
            evicted: self.evicted,
        }
    }

    /// Asks at once for all addresses of a stack that lie in JIT code: a question costs two changes of process.
    pub(super) fn prefetch(&mut self, with: With<'_>, process: &Process, addresses: &[u64]) {
        if !addresses.is_empty() {
            self.look_up(with, &JitProcess::of(process), addresses);
        }
    }

    /// Start and name of the function that holds an address, and who has named it, or why it has no
    /// name. What the process has written since is read if the address is not known, now and then.
    pub(super) fn find(
        &mut self,
        with: With<'_>,
        process: &Process,
        address: u64,
    ) -> Result<(u64, Arc<str>, Origin), Origin> {
        self.find_in(with, &JitProcess::of(process), address)
    }

    fn find_in(
        &mut self,
        with: With<'_>,
        process: &JitProcess<'_>,
        address: u64,
    ) -> Result<(u64, Arc<str>, Origin), Origin> {
        let known = self.processes.get(&process.tgid).filter(|it| it.space == process.space);
        if let Some(found) = known.and_then(|names| names.find(address).ok()) {
            return Ok(found);
        }
        self.look_up(with, process, &[address]);
        self.processes.get(&process.tgid).map_or(Err(Origin::NoMap), |names| names.find(address))
    }

    /// Asks for what is not known of the addresses, after reading what the process has written since.
    fn look_up(&mut self, mut with: With<'_>, process: &JitProcess<'_>, addresses: &[u64]) {
        let now = Instant::now();
        let tgid = process.tgid;
        if let Some(names) = self.processes.get_mut(&tgid).filter(|it| it.space == process.space) {
            names.ask(&mut with, addresses);
            let are_named = addresses.iter().all(|address| names.find(*address).is_ok());
            if are_named || names.is_held(with.parser) && now < names.look_again {
                return;
            }
        }
        self.make_room(with.parser, tgid);
        let names = self.processes.entry(tgid).or_insert_with(|| {
            self.last_number += 1;
            Names::new(self.last_number, process.space, now)
        });
        // A process that makes code maps memory all the time, and what it has named stays named. If
        // it now runs another program, or is another process, its files will say so.
        names.is_all &= names.space == process.space;
        names.space = process.space;
        let (mut now, mut is_more) = (now, true);
        while is_more && self.time_budget.is_left(now) {
            let is_silent = |user| self.unanswered.get(&user).is_some_and(|until| now < *until);
            let slow_before = with.parser.slow_time();
            let step = names.read_on(with.parser, process, is_silent);
            let end = Instant::now();
            is_more = matches!(step, Step::More);
            // What others do to a file system does not count as time for reading.
            let slow = with.parser.slow_time().saturating_sub(slow_before);
            self.time_budget.take(end, end.duration_since(now).saturating_sub(slow));
            if let Step::Unanswered(user) = step {
                self.unanswered.insert(user, end + ASK_AGAIN);
            }
            now = end;
        }
        names.look_again = if is_more { now } else { now + PAUSE };
        names.ask(&mut with, addresses);
    }

    /// When there are too many, those without names are forgotten. If that does not help, or there is
    /// too much of them, all others are.
    fn make_room(&mut self, parser: &mut Parser, tgid: u32) {
        let is_full = |processes: &FxHashMap<u32, Names>| {
            processes.len() >= LIMIT_PROCESSES && !processes.contains_key(&tgid)
        };
        let mut forgotten = Vec::new();
        let mut retain = |processes: &mut FxHashMap<u32, Names>,
                          is_kept: &dyn Fn(u32, &Names) -> bool| {
            processes.retain(|tgid, names| {
                let is_kept = is_kept(*tgid, names);
                forgotten.extend((!is_kept).then(|| names.number()));
                is_kept
            });
        };
        if is_full(&self.processes) {
            retain(&mut self.processes, &|_, names| names.bytes() > 0);
        }
        let bytes: usize = self.processes.values().map(Names::bytes).sum();
        if bytes > self.limit_bytes || is_full(&self.processes) {
            retain(&mut self.processes, &|other, _| other == tgid);
        }
        self.evicted += count(forgotten.len());
        parser.forget_jit(forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parser::JIT_STEP, process::space::SpaceId};
    use std::{
        fs::{self, OpenOptions},
        io::Write as _,
        process::{Child, Command},
        time::SystemTime,
    };

    /// A process that has named a function at 0x1000.
    struct Namer(Child);

    impl Namer {
        fn start() -> Self {
            let namer = Self(Command::new("sleep").arg("600").spawn().unwrap());
            fs::write(namer.map(), "1000 10 first\n").unwrap();
            namer
        }

        fn tgid(&self) -> u32 {
            self.0.id()
        }

        fn map(&self) -> String {
            format!("/tmp/perf-{}.map", self.tgid())
        }
    }

    impl Drop for Namer {
        fn drop(&mut self) {
            let _ = (self.0.kill(), self.0.wait(), fs::remove_file(self.map()));
        }
    }

    /// Names, with a parser process.
    struct Jit {
        names: JitNames,
        parser: Parser,
        interned: Interned,
    }

    impl Jit {
        fn new() -> Self {
            let (names, interned) = (JitNames::default(), Interned::default());
            Self { names, parser: Parser::not_started(), interned }
        }

        fn find(&mut self, tgid: u32, address: u64) -> Result<String, Origin> {
            let with = With { parser: &mut self.parser, interned: &mut self.interned };
            let found = self.names.find_in(with, &process(tgid), address);
            found.map(|(_, name, _)| name.to_string())
        }

        /// What `names` holds at an address, as far as it is known by now.
        fn of(&mut self, names: &mut Names, address: u64) -> Result<String, Origin> {
            let mut with = With { parser: &mut self.parser, interned: &mut self.interned };
            names.ask(&mut with, &[address]);
            names.find(address).map(|(_, name, _)| name.to_string())
        }

        fn read_on(&mut self, names: &mut Names, tgid: u32) -> Step {
            names.read_on(&mut self.parser, &process(tgid), |_| false)
        }
    }

    fn process(tgid: u32) -> JitProcess<'static> {
        JitProcess { tgid, space: SpaceId::KERNEL, mappings: &[] }
    }

    fn names() -> Names {
        Names::new(1, SpaceId::KERNEL, Instant::now())
    }

    #[test]
    fn a_map_of_an_earlier_process_is_not_used() {
        let namer = Namer::start();
        let before = SystemTime::now() - Duration::from_secs(3600);
        let map = OpenOptions::new().append(true).open(namer.map()).unwrap();
        map.set_modified(before).unwrap();
        let mut jit = Jit::new();
        assert_eq!(jit.find(namer.tgid(), 0x1000), Err(Origin::OldMap));
        // It writes its own in the same place.
        fs::write(namer.map(), "1000 10 own\n").unwrap();
        while jit.find(namer.tgid(), 0x1000).as_deref() != Ok("own") {}
    }

    #[test]
    fn what_can_not_be_read_of_a_map_is_said() {
        let namer = Namer::start();
        fs::write(namer.map(), "1000 10 first\n\n2000 0x10\n3000 10 third\n").unwrap();
        let mut jit = Jit::new();
        assert_eq!(jit.find(namer.tgid(), 0x1000).as_deref(), Ok("first"));
        assert_eq!(jit.find(namer.tgid(), 0x3000).as_deref(), Ok("third"));
        assert_eq!(jit.find(namer.tgid(), 0x2000), Err(Origin::BadMap));
    }

    #[test]
    fn reads_what_is_written_later() {
        let namer = Namer::start();
        let mut jit = Jit::new();
        assert_eq!(jit.find(namer.tgid(), 0x1000).as_deref(), Ok("first"));
        let mut map = OpenOptions::new().append(true).open(namer.map()).unwrap();
        map.write_all(b"2000 10 second\n").unwrap();
        while jit.find(namer.tgid(), 0x2000).as_deref() != Ok("second") {}
        assert_eq!(jit.find(namer.tgid(), 0x1000).as_deref(), Ok("first"));
    }

    #[test]
    fn keeps_the_names_of_a_process_that_is_gone_and_not_those_of_another() {
        let mut namer = Namer::start();
        let (mut jit, mut names) = (Jit::new(), names());
        assert_eq!(jit.read_on(&mut names, namer.tgid()), Step::End);
        namer.0.kill().unwrap();
        namer.0.wait().unwrap();
        jit.read_on(&mut names, namer.tgid());
        assert_eq!(jit.of(&mut names, 0x1000).as_deref(), Ok("first"));
        // As if that had its pid now.
        jit.read_on(&mut names, std::process::id());
        assert_eq!(jit.of(&mut names, 0x1000), Err(Origin::NoMap));
    }

    #[test]
    fn no_name_before_all_is_read() {
        let namer = Namer::start();
        let mut text = b"1000 10 first\n".to_vec();
        text.resize(JIT_STEP, b'\n');
        text.extend(b"1000 10 second\n");
        fs::write(namer.map(), text).unwrap();
        let (mut jit, mut names) = (Jit::new(), names());
        assert_eq!(jit.read_on(&mut names, namer.tgid()), Step::More);
        assert_eq!(jit.of(&mut names, 0x1000), Err(Origin::NoMap));
        assert_eq!(jit.read_on(&mut names, namer.tgid()), Step::End);
        assert_eq!(jit.of(&mut names, 0x1000).as_deref(), Ok("second"));
    }

    #[test]
    fn reads_nothing_when_too_much_time_was_taken() {
        let namer = Namer::start();
        let mut jit = Jit::new();
        jit.names.time_budget.take(Instant::now(), Duration::from_secs(1000));
        assert_eq!(jit.find(namer.tgid(), 0x1000), Err(Origin::NoMap));
    }

    #[test]
    fn a_parser_process_that_ends_costs_no_names() {
        let (mut namer, other) = (Namer::start(), Namer::start());
        let mut jit = Jit::new();
        for tgid in [namer.tgid(), other.tgid()] {
            fs::write(format!("/tmp/perf-{tgid}.map"), "1000 10 first\n2000 10 second\n").unwrap();
            while jit.find(tgid, 0x1000).as_deref() != Ok("first") {}
        }
        namer.0.kill().unwrap();
        namer.0.wait().unwrap();
        jit.parser.kill();
        // What was asked for is known; of what was not, only a process that is there can be read again.
        assert_eq!(jit.find(namer.tgid(), 0x1000).as_deref(), Ok("first"));
        while jit.find(other.tgid(), 0x2000).as_deref() != Ok("second") {}
        assert_eq!(jit.find(other.tgid(), 0x1000).as_deref(), Ok("first"));
        assert_eq!(jit.find(namer.tgid(), 0x2000), Err(Origin::NoMap));
        assert_eq!(jit.find(namer.tgid(), 0x1000).as_deref(), Ok("first"));
        assert_eq!(jit.parser.account().barred, 0);
    }

    #[test]
    fn a_map_that_ends_the_parser_process_twice_is_given_up() {
        let namer = Namer::start();
        let mut jit = Jit::new();
        assert_eq!(jit.find(namer.tgid(), 0x1000).as_deref(), Ok("first"));
        for _ in 0..2 {
            let mut names = jit.names.processes.remove(&namer.tgid()).unwrap();
            let failure = crate::parser::Failure::Ended("as a test wants".into());
            names.blame_all(&jit.parser, Duration::ZERO, &failure);
            jit.names.processes.insert(namer.tgid(), names);
        }
        fs::write(namer.map(), "1000 10 first\n2000 10 second\n").unwrap();
        while jit.find(namer.tgid(), 0x2000) != Err(Origin::Barred) {}
        let account = jit.parser.account();
        assert_eq!(account.barred, 1, "{account:?}");
        assert!(account.barred_files[0].starts_with(&namer.map()), "{account:?}");
    }

    #[test]
    fn who_does_not_respond_is_not_asked_for_a_while() {
        let namer = Namer::start();
        let mut jit = Jit::new();
        let (uid, later) = (rustix::process::getuid().as_raw(), Instant::now() + ASK_AGAIN);
        let user = (uid, if uid == 0 { namer.tgid() } else { 0 });
        jit.names.unanswered.insert(user, later);
        let why = Origin::NoFile(profiler_profile::frame::Missing::Unanswered);
        assert_eq!(jit.find(namer.tgid(), 0x1000), Err(why));
    }

    #[test]
    fn the_processes_are_bounded() {
        let (namer, other) = (Namer::start(), Namer::start());
        let mut jit = Jit::new();
        while jit.find(namer.tgid(), 0x1000).is_err() {}
        for tgid in 1..LIMIT_PROCESSES {
            jit.find(u32::MAX - u32::try_from(tgid).unwrap(), 0x1000).unwrap_err();
        }
        assert_eq!(jit.names.processes.len(), LIMIT_PROCESSES);
        while jit.find(other.tgid(), 0x1000).is_err() {}
        let mut kept: Vec<u32> = jit.names.processes.keys().copied().collect();
        kept.sort_unstable();
        let mut named = [namer.tgid(), other.tgid()];
        named.sort_unstable();
        assert_eq!(kept, named);
        // All of it is freed where too much is held.
        jit.names.limit(0);
        let third = Namer::start();
        while jit.find(third.tgid(), 0x1000).is_err() {}
        assert_eq!(jit.names.processes.len(), 1);
        let freed = jit.parser.find_jit(1, vec![0x1000]);
        assert!(matches!(freed, Ok(Ok(None))), "{freed:?}");
    }
}
