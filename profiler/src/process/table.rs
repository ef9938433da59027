//! The processes that samples come from, with their mappings as last read.
//!
//! A process is looked up by pid and told apart by when it started and which program it runs. Its
//! mappings are read from `/proc` when its first sample is read, and again when a sample points
//! outside of them. A process that is gone keeps what was read; one that was gone before has none.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    time::{Duration, Instant},
};

use profiler_common::sample::COMM_LEN;
use rustc_hash::FxHashMap;

use super::maps::{self, Mapping};

/// A process's mappings are read again at most this often, and at most for one part in
/// [`REREAD_SHARE`] of the time.
const REREAD_MIN: Duration = Duration::from_millis(100);
const REREAD_SHARE: u32 = 50;
/// How often we look whether a pid is still the same process running the same program.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Processes kept; the ones sampled least recently go.
const LIMIT: usize = 4096;

/// Which mappings an address belongs to: another number when they have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(u64);

impl SpaceId {
    /// The kernel's addresses.
    pub const KERNEL: Self = Self(0);

    /// As part of a key.
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0.to_ne_bytes()
    }
}

/// When a process started and which file it runs: what tells it from another with its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    start_ticks: u64,
    program: Option<(u64, u64)>,
}

/// One process.
#[derive(Debug)]
pub struct Process {
    /// Its id.
    pub tgid: u32,
    /// Its mappings' number.
    pub space: SpaceId,
    /// Its executable mappings, ordered by address; none if it was gone before they could be read.
    pub mappings: Vec<Mapping>,
    identity: Option<Identity>,
    comm: Option<[u8; COMM_LEN]>,
    checked: Instant,
    read: Instant,
    read_took: Duration,
    used: u64,
}

/// All processes seen lately.
#[derive(Debug, Default)]
pub struct Processes {
    by_tgid: FxHashMap<u32, Process>,
    spaces: u64,
    clock: u64,
}

impl Processes {
    /// The process that has this pid now, its mappings read. `comm` is the name of its main thread,
    /// where that is the one that was sampled.
    pub fn get(&mut self, tgid: u32, comm: Option<&[u8; COMM_LEN]>) -> &mut Process {
        self.clock += 1;
        let now = Instant::now();
        if !self.by_tgid.contains_key(&tgid) && self.by_tgid.len() >= LIMIT {
            self.evict();
        }
        let (spaces, clock) = (&mut self.spaces, self.clock);
        let process = self.by_tgid.entry(tgid).or_insert_with(|| {
            let mut process = Process {
                tgid,
                space: SpaceId::KERNEL,
                mappings: Vec::new(),
                identity: identity(tgid),
                comm: comm.copied(),
                checked: now,
                read: now,
                read_took: Duration::ZERO,
                used: 0,
            };
            process.read(now, spaces);
            process
        });
        process.used = clock;
        // A process that calls exec nearly always changes its name by it, and the thread that called
        // becomes the main one.
        let renamed = comm.is_some_and(|comm| process.comm.is_some_and(|before| before != *comm));
        process.comm = comm.copied().or(process.comm);
        if renamed || now.duration_since(process.checked) >= CHECK_INTERVAL {
            process.checked = now;
            if let Some(identity) = identity(tgid)
                && process.identity != Some(identity)
            {
                // Nothing of what was known holds, also if there is nothing to be read.
                process.identity = Some(identity);
                process.mappings.clear();
                process.space = SpaceId::KERNEL;
                process.read(now, spaces);
            }
        }
        process
    }

    /// Reads the process's mappings again because an address lies outside of them, unless that has
    /// just been done. Returns the process if they have changed.
    pub fn reread(&mut self, tgid: u32) -> Option<&Process> {
        let now = Instant::now();
        let process = self.by_tgid.get_mut(&tgid)?;
        let pause = REREAD_MIN.max(process.read_took.saturating_mul(REREAD_SHARE));
        if now.duration_since(process.read) < pause {
            return None;
        }
        let before = process.space;
        process.read(now, &mut self.spaces);
        (process.space != before).then_some(process)
    }

    fn evict(&mut self) {
        let mut used: Vec<u64> = self.by_tgid.values().map(|process| process.used).collect();
        let (_, &mut median, _) = used.select_nth_unstable(LIMIT / 4);
        self.by_tgid.retain(|_, process| process.used > median);
    }
}

impl Process {
    /// Reads the mappings, and gives them a new number if they differ. Those of a process that has
    /// gone stay as they are.
    fn read(&mut self, now: Instant, spaces: &mut u64) {
        let text = fs::read(format!("/proc/{}/maps", self.tgid)).unwrap_or_default();
        self.read = now;
        let mappings = maps::parse(&text);
        self.read_took = now.elapsed();
        let first = self.space == SpaceId::KERNEL;
        if first || (!text.is_empty() && mappings != self.mappings) {
            self.mappings = mappings;
            *spaces += 1;
            self.space = SpaceId(*spaces);
        }
    }

    /// The mapping that holds an address.
    #[must_use]
    pub fn mapping(&self, address: u64) -> Option<&Mapping> {
        maps::find(&self.mappings, address)
    }
}

/// `None` if there is no such process (any more).
fn identity(tgid: u32) -> Option<Identity> {
    let stat = fs::read_to_string(format!("/proc/{tgid}/stat")).ok()?;
    // The name in parentheses may itself hold blanks and parentheses. Behind it comes field 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let start_ticks = fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()?;
    let program = fs::metadata(format!("/proc/{tgid}/exe")).ok();
    Some(Identity { start_ticks, program: program.map(|file| (file.dev(), file.ino())) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_own_mappings() {
        let mut processes = Processes::default();
        let process = processes.get(std::process::id(), None);
        let here = knows_its_own_mappings as fn() as usize as u64;
        let program = std::env::current_exe().unwrap();
        assert_eq!(process.mapping(here).map(|it| &*it.name), program.to_str());
        assert_ne!(process.space, SpaceId::KERNEL);
    }

    #[test]
    fn a_process_that_is_gone_keeps_what_was_read() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut processes = Processes::default();
        let before =
            processes.get(child.id(), Some(b"sleep\0\0\0\0\0\0\0\0\0\0\0")).mappings.clone();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!before.is_empty());
        assert_eq!(processes.get(child.id(), Some(b"another\0\0\0\0\0\0\0\0\0")).mappings, before);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut processes = Processes::default();
        // Far above the largest pid, so there is nothing to read.
        let pids: Vec<u32> = (0..u32::MAX).rev().take(LIMIT + 10).collect();
        for pid in &pids {
            processes.get(*pid, None);
        }
        assert!(processes.by_tgid.len() <= LIMIT);
        assert!(processes.by_tgid.contains_key(pids.last().unwrap()));
    }
}
