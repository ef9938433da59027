//! Names of JIT code, from what its processes write for profilers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use profiler_profile::{
    frame::Origin,
    ledger::memory::{Cache, count},
};
use rustc_hash::FxHashMap;

use super::{jitdump::JitDump, owner::Owner, perf_map::PerfMap};
use crate::{
    process::{
        space::{Mapped, SpaceId},
        table::Process,
    },
    time_budget::TimeBudget,
};

/// Processes whose names are kept.
const LIMIT_PROCESSES: usize = 256;
/// Files without the address asked for are looked at again after this long.
const PAUSE: Duration = Duration::from_millis(200);

/// The names of all processes.
#[derive(Debug)]
pub(super) struct JitNames {
    processes: FxHashMap<u32, Names>,
    time_budget: TimeBudget,
    /// Of all of them.
    limit_bytes: usize,
    evicted: u64,
}

/// The names of a process, as last read.
#[derive(Debug)]
struct Names {
    /// The mappings with which they were.
    space: SpaceId,
    jit_dump: JitDump,
    perf_map: PerfMap,
    /// Whether all that was written has been read.
    is_all: bool,
    /// Why an address has no name.
    why: Origin,
    look_again: Instant,
}

impl Default for JitNames {
    fn default() -> Self {
        Self {
            processes: FxHashMap::default(),
            time_budget: TimeBudget::new(Instant::now()),
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
            name: "names of run-time code",
            entries: count(self.processes.len()),
            bytes: count(self.processes.values().map(Names::bytes).sum()),
            limit_bytes: Some(count(self.limit_bytes)),
            limit_entries: Some(count(LIMIT_PROCESSES)),
            evicted: self.evicted,
        }
    }

    /// Start and name of the function that holds an address, and who has named it, or why it has no
    /// name. What the process has written since is read if the address is not known, now and then.
    pub(super) fn find(
        &mut self,
        process: &Process,
        address: u64,
    ) -> Result<(u64, Arc<str>, Origin), Origin> {
        self.find_in(process.tgid, process.space.id(), process.space.mappings(), address)
    }

    fn find_in(
        &mut self,
        tgid: u32,
        space: SpaceId,
        mappings: &[Mapped],
        address: u64,
    ) -> Result<(u64, Arc<str>, Origin), Origin> {
        let kept = self.processes.get(&tgid).filter(|names| names.space == space);
        let now = Instant::now();
        if let Some(names) = kept {
            let found = names.find(address);
            if found.is_ok() || now < names.look_again {
                return found;
            }
        }
        self.make_room(tgid);
        let names = self.processes.entry(tgid).or_insert_with(|| Names::new(space, now));
        // A process that makes code maps memory all the time, and what it has named stays named. If
        // it now runs another program, or is another process, its files will say so.
        names.is_all &= names.space == space;
        names.space = space;
        let (mut now, mut is_more) = (now, true);
        while is_more && self.time_budget.is_left(now) {
            is_more = names.read_on(tgid, mappings);
            let end = Instant::now();
            self.time_budget.take(end, end.duration_since(now));
            now = end;
        }
        names.look_again = if is_more { now } else { now + PAUSE };
        names.find(address)
    }

    /// When there are too many, those without names are forgotten. If that does not help, or there is
    /// too much of them, all others are.
    fn make_room(&mut self, tgid: u32) {
        let is_full = |processes: &FxHashMap<u32, Names>| {
            processes.len() >= LIMIT_PROCESSES && !processes.contains_key(&tgid)
        };
        let before = self.processes.len();
        if is_full(&self.processes) {
            self.processes.retain(|_, names| names.bytes() > 0);
        }
        let bytes: usize = self.processes.values().map(Names::bytes).sum();
        if bytes > self.limit_bytes || is_full(&self.processes) {
            self.processes.retain(|&other, _| other == tgid);
        }
        self.evicted += count(before - self.processes.len());
    }
}

impl Names {
    fn new(space: SpaceId, now: Instant) -> Self {
        let (jit_dump, perf_map) = (JitDump::default(), PerfMap::default());
        Self { space, jit_dump, perf_map, is_all: false, why: Origin::NoMap, look_again: now }
    }

    /// Reads a step of what is new, and says whether there is more. Of a process that is gone, what
    /// was read stays.
    fn read_on(&mut self, tgid: u32, mappings: &[Mapped]) -> bool {
        let Some(owner) = Owner::of(tgid) else { return false };
        let (map_is_all, why) = match PerfMap::open(&owner) {
            Ok(file) => (self.perf_map.read_on(&file).unwrap_or(true), Origin::NoMap),
            Err(why) => {
                self.perf_map = PerfMap::default();
                (true, why)
            }
        };
        let dump_is_all = match JitDump::open(&owner, mappings) {
            Some(file) => self.jit_dump.read_on(file).unwrap_or_else(|problem| {
                tracing::debug!("cannot read the jitdump of process {tgid}: {problem}");
                true
            }),
            None => {
                self.jit_dump = JitDump::default();
                true
            }
        };
        let is_bad = self.perf_map.is_malformed() || self.jit_dump.is_malformed();
        self.why = if is_bad { Origin::BadMap } else { why };
        self.is_all = map_is_all && dump_is_all;
        !self.is_all
    }

    /// The jitdump knows when code has been replaced, so it is asked first. Nothing is known before
    /// all was read, since what was read last may stand against it.
    fn find(&self, address: u64) -> Result<(u64, Arc<str>, Origin), Origin> {
        let dumped = || self.jit_dump.find(address).map(|found| (found, Origin::Jitdump));
        let mapped = || self.perf_map.find(address).map(|found| (found, Origin::PerfMap));
        let found = self.is_all.then(|| dumped().or_else(mapped)).flatten();
        found.map(|((start, name), origin)| (start, name, origin)).ok_or(self.why)
    }

    fn bytes(&self) -> usize {
        self.jit_dump.bytes() + self.perf_map.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tail_reader::STEP, *};
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

    fn find(jit: &mut JitNames, tgid: u32, address: u64) -> Option<String> {
        let found = jit.find_in(tgid, SpaceId::KERNEL, &[], address);
        found.ok().map(|(_, name, _)| name.to_string())
    }

    #[test]
    fn a_map_of_an_earlier_process_is_not_used() {
        let namer = Namer::start();
        let before = SystemTime::now() - Duration::from_secs(3600);
        let map = OpenOptions::new().append(true).open(namer.map()).unwrap();
        map.set_modified(before).unwrap();
        let mut jit = JitNames::default();
        let found = jit.find_in(namer.tgid(), SpaceId::KERNEL, &[], 0x1000);
        assert_eq!(found, Err(Origin::OldMap));
        // It writes its own in the same place.
        fs::write(namer.map(), "1000 10 own\n").unwrap();
        while find(&mut jit, namer.tgid(), 0x1000).as_deref() != Some("own") {}
    }

    #[test]
    fn what_can_not_be_read_of_a_map_is_said() {
        let namer = Namer::start();
        fs::write(namer.map(), "1000 10 first\n\n2000 0x10\n3000 10 third\n").unwrap();
        let mut jit = JitNames::default();
        let mut find = |address| {
            jit.find_in(namer.tgid(), SpaceId::KERNEL, &[], address).map(|(_, name, _)| name)
        };
        assert_eq!(find(0x1000).as_deref(), Ok("first"));
        assert_eq!(find(0x3000).as_deref(), Ok("third"));
        assert_eq!(find(0x2000), Err(Origin::BadMap));
    }

    #[test]
    fn reads_what_is_written_later() {
        let namer = Namer::start();
        let mut jit = JitNames::default();
        assert_eq!(find(&mut jit, namer.tgid(), 0x1000).as_deref(), Some("first"));
        let mut map = OpenOptions::new().append(true).open(namer.map()).unwrap();
        map.write_all(b"2000 10 second\n").unwrap();
        while find(&mut jit, namer.tgid(), 0x2000).as_deref() != Some("second") {}
        assert_eq!(find(&mut jit, namer.tgid(), 0x1000).as_deref(), Some("first"));
    }

    #[test]
    fn keeps_the_names_of_a_process_that_is_gone_and_not_those_of_another() {
        let mut namer = Namer::start();
        let mut names = Names::new(SpaceId::KERNEL, Instant::now());
        assert!(!names.read_on(namer.tgid(), &[]));
        namer.0.kill().unwrap();
        namer.0.wait().unwrap();
        names.read_on(namer.tgid(), &[]);
        assert_eq!(&*names.find(0x1000).unwrap().1, "first");
        // As if that had its pid now.
        names.read_on(std::process::id(), &[]);
        assert_eq!(names.find(0x1000), Err(Origin::NoMap));
    }

    #[test]
    fn no_name_before_all_is_read() {
        let namer = Namer::start();
        let mut text = b"1000 10 first\n".to_vec();
        text.resize(usize::try_from(STEP).unwrap(), b'\n');
        text.extend(b"1000 10 second\n");
        fs::write(namer.map(), text).unwrap();
        let mut names = Names::new(SpaceId::KERNEL, Instant::now());
        assert!(names.read_on(namer.tgid(), &[]));
        assert_eq!(names.find(0x1000), Err(Origin::NoMap));
        assert!(!names.read_on(namer.tgid(), &[]));
        assert_eq!(&*names.find(0x1000).unwrap().1, "second");
    }

    #[test]
    fn reads_nothing_when_too_much_time_was_taken() {
        let namer = Namer::start();
        let mut jit = JitNames::default();
        jit.time_budget.take(Instant::now(), Duration::from_secs(1000));
        assert_eq!(find(&mut jit, namer.tgid(), 0x1000), None);
    }

    #[test]
    fn the_processes_are_bounded() {
        let (namer, other) = (Namer::start(), Namer::start());
        let mut jit = JitNames::default();
        find(&mut jit, namer.tgid(), 0x1000);
        for tgid in 1..LIMIT_PROCESSES {
            find(&mut jit, u32::MAX - u32::try_from(tgid).unwrap(), 0x1000);
        }
        assert_eq!(jit.processes.len(), LIMIT_PROCESSES);
        find(&mut jit, other.tgid(), 0x1000);
        let mut kept: Vec<u32> = jit.processes.keys().copied().collect();
        kept.sort_unstable();
        let mut named = [namer.tgid(), other.tgid()];
        named.sort_unstable();
        assert_eq!(kept, named);
    }
}
