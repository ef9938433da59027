//! Processes that have begun lately, also those that were never sampled.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use profiler_common::sample::COMM_LEN;
use rustc_hash::{FxHashMap, FxHashSet};

use super::snapshot::Span;
use crate::{
    ledger::memory::{Cache, count},
    process::Metadata,
    sample::Comm,
};

/// So many processes are known one by one: ten seconds of 1,600 a second.
const MAX_SPAWNS: usize = 16_384;
/// So many kinds of processes are told apart once they are too old for that.
const MAX_KINDS: usize = 1024;
/// So many containers and units have their names once.
const MAX_GROUPS: usize = 1024;
/// As much of a command line is kept.
const COMMAND_BYTES: usize = 128;

/// A process that has begun.
#[derive(Clone, Debug)]
pub struct Spawn {
    /// Its id.
    pub tgid: u32,
    /// That of the process that forked it.
    pub parent: u32,
    /// What it is.
    pub kind: SpawnKind,
    /// As much of its command line as is worth showing, if that was known before it ended.
    pub command: Option<Arc<str>>,
    /// When it began; CLOCK_MONOTONIC, in nanoseconds.
    pub began_ns: u64,
    /// For how long it lived, if it has ended.
    pub lived: Option<Duration>,
}

/// What processes are that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpawnKind {
    /// The program that it has executed last, or if it has not, that of its parent, of which it is a copy.
    pub name: Comm,
    /// Whether it has executed a program.
    pub has_executed: bool,
    /// What its parent was called when it forked.
    pub parent: Comm,
    /// The container, by its id, or the systemd unit.
    pub group: Option<Arc<str>>,
}

/// Processes of one kind that have begun.
#[derive(Clone, Debug, Default)]
pub struct Spawned {
    /// How many.
    pub count: u64,
    /// How many of them have ended, and for how long these lived together.
    pub ended: u64,
    /// See there.
    pub lived: Duration,
    /// The command line of one of them, the last that is known.
    pub command: Option<Arc<str>>,
}

impl Spawned {
    pub(super) fn add(&mut self, spawn: &Spawn) {
        self.count = self.count.saturating_add(1);
        if let Some(lived) = spawn.lived {
            self.ended = self.ended.saturating_add(1);
            self.lived = self.lived.saturating_add(lived);
        }
        if spawn.command.is_some() {
            self.command.clone_from(&spawn.command);
        }
    }
}

/// What has begun in a span.
#[derive(Clone, Debug, Default)]
pub struct Begun {
    /// Those that are known one by one, the oldest first.
    pub spawns: Vec<Spawn>,
    /// With [`Span::Start`], those before them, by kind.
    pub before: Vec<(SpawnKind, Spawned)>,
    /// The time that all of them are of.
    pub time: Duration,
}

/// The processes that have begun in a window, and how many since the start.
#[derive(Debug)]
pub struct Spawns {
    length_ns: u64,
    begun_ns: u64,
    /// All after this time are known one by one.
    since_ns: u64,
    known: VecDeque<Spawn>,
    /// The number of the first of them, and those of the last with each pid.
    first: u64,
    by_pid: FxHashMap<u32, u64>,
    before: FxHashMap<SpawnKind, Spawned>,
    groups: FxHashSet<Arc<str>>,
    evicted: u64,
}

impl Spawns {
    /// Of a window of this length, which begins now (CLOCK_MONOTONIC, in nanoseconds).
    #[must_use]
    pub fn new(length: Duration, now_ns: u64) -> Self {
        Self {
            length_ns: u64::try_from(length.as_nanos()).unwrap_or(u64::MAX),
            begun_ns: now_ns,
            since_ns: now_ns,
            known: VecDeque::new(),
            first: 0,
            by_pid: FxHashMap::default(),
            before: FxHashMap::default(),
            groups: FxHashSet::default(),
            evicted: 0,
        }
    }

    pub(super) fn begin_at(&mut self, now_ns: u64) {
        *self = Self::new(Duration::from_nanos(self.length_ns), now_ns);
    }

    /// A process has forked another, which is a copy of it, in the same container or unit.
    pub fn forked(
        &mut self,
        (tgid, parent): (u32, u32),
        name: Comm,
        process: Option<&Metadata>,
        time_ns: u64,
    ) {
        if time_ns < self.begun_ns {
            return;
        }
        self.forget(time_ns);
        if self.known.len() >= MAX_SPAWNS {
            self.since_ns = self.known.front().map_or(time_ns, |it| it.began_ns.saturating_add(1));
            self.evicted += 1;
            self.forget_first();
        }
        let group = process.and_then(Metadata::group).map(|it| self.group(it));
        let kind = SpawnKind { name, has_executed: false, parent: name, group };
        let number = self.first.saturating_add(count(self.known.len()));
        let spawn = Spawn { tgid, parent, kind, command: None, began_ns: time_ns, lived: None };
        self.known.push_back(spawn);
        self.by_pid.insert(tgid, number);
    }

    /// A process executes a program.
    pub fn executed(&mut self, tgid: u32, name: Comm) {
        if let Some(spawn) = self.of(tgid) {
            (spawn.kind.name, spawn.kind.has_executed, spawn.command) = (name, true, None);
        }
    }

    /// What is known of a process since.
    pub fn described(&mut self, tgid: u32, process: &Metadata) {
        let group = process.group().map(|it| self.group(it));
        let Some(spawn) = self.of(tgid) else { return };
        if group.is_some() {
            spawn.kind.group = group;
        }
        spawn.command = process.command_line.as_deref().map(|it| beginning(it).into());
    }

    /// A process has ended.
    pub fn ended(&mut self, tgid: u32, time_ns: u64) {
        if let Some(spawn) = self.of(tgid) {
            spawn.lived = Some(Duration::from_nanos(time_ns.saturating_sub(spawn.began_ns)));
        }
    }

    /// The last that had this pid, unless it has ended.
    fn of(&mut self, tgid: u32) -> Option<&mut Spawn> {
        let place = self.by_pid.get(&tgid)?.checked_sub(self.first)?;
        self.known.get_mut(usize::try_from(place).ok()?).filter(|it| it.lived.is_none())
    }

    /// The name of a container or unit, once.
    fn group(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.groups.get(name) {
            return Arc::clone(known);
        }
        if self.groups.len() >= MAX_GROUPS {
            self.groups.retain(|it| Arc::strong_count(it) > 1);
        }
        let new: Arc<str> = name.into();
        if self.groups.len() < MAX_GROUPS {
            self.groups.insert(Arc::clone(&new));
        }
        new
    }

    /// Takes those out that are too old for the window.
    fn forget(&mut self, now_ns: u64) {
        let oldest = now_ns.saturating_sub(self.length_ns);
        self.since_ns = self.since_ns.max(oldest);
        while self.known.front().is_some_and(|it| it.began_ns < oldest) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some(spawn) = self.known.pop_front() else { return };
        if self.by_pid.get(&spawn.tgid) == Some(&self.first) {
            self.by_pid.remove(&spawn.tgid);
        }
        self.first = self.first.saturating_add(1);
        let is_known = self.before.len() < MAX_KINDS || self.before.contains_key(&spawn.kind);
        let kind = if is_known { spawn.kind.clone() } else { SpawnKind::OTHERS };
        self.before.entry(kind).or_default().add(&spawn);
    }

    /// What has begun until now (CLOCK_MONOTONIC, in nanoseconds).
    pub fn snapshot(&mut self, span: Span, now_ns: u64) -> Begun {
        self.forget(now_ns);
        let (before, from_ns) = match span {
            Span::Window => (Vec::new(), self.since_ns),
            Span::Start => {
                let before = self.before.iter().map(|(kind, it)| (kind.clone(), it.clone()));
                (before.collect(), self.begun_ns)
            }
        };
        let time = Duration::from_nanos(now_ns.saturating_sub(from_ns));
        Begun { spawns: self.known.iter().cloned().collect(), before, time }
    }

    /// How many processes begin a second, in the window that ends now (CLOCK_MONOTONIC, in nanoseconds).
    pub fn rate(&mut self, now_ns: u64) -> f64 {
        self.forget(now_ns);
        let time = Duration::from_nanos(now_ns.saturating_sub(self.since_ns)).as_secs_f64();
        if time > 0.0 { self.known.len() as f64 / time } else { 0.0 }
    }

    /// What it holds.
    #[must_use]
    pub fn account(&self) -> Cache {
        let spawns = self.known.len();
        let commands: usize =
            self.known.iter().filter_map(|it| it.command.as_ref()).map(|it| it.len() + 16).sum();
        let of_kind = size_of::<(SpawnKind, Spawned)>() + COMMAND_BYTES;
        let bytes = spawns * (size_of::<Spawn>() + size_of::<(u32, u64)>() + 16)
            + commands
            + self.before.len() * of_kind;
        Cache {
            name: "processes begun",
            entries: count(spawns),
            bytes: count(bytes),
            limit_bytes: None,
            limit_entries: Some(count(MAX_SPAWNS)),
            evicted: self.evicted,
        }
    }
}

impl SpawnKind {
    /// Those of kinds that there are too many of.
    pub const OTHERS: Self = Self {
        name: Comm(*b"(others)\0\0\0\0\0\0\0\0"),
        has_executed: true,
        parent: Comm([0; COMM_LEN]),
        group: None,
    };
}

/// As much of it as is kept.
fn beginning(text: &str) -> &str {
    let end = (0..=COMMAND_BYTES).rev().find(|end| text.is_char_boundary(*end));
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn unit(name: &str) -> Metadata {
        Metadata { unit: Some(name.into()), ..Metadata::default() }
    }

    fn names(begun: &Begun) -> Vec<String> {
        begun.spawns.iter().map(|it| it.kind.name.text().into_owned()).collect()
    }

    #[test]
    fn a_process_is_what_it_executes_last() {
        let mut spawns = Spawns::new(Duration::from_secs(10), 0);
        let cron = unit("cron.service");
        spawns.forked((7, 3), Comm::of("storm.sh"), Some(&cron), SECOND);
        spawns.executed(7, Comm::of("env"));
        spawns.executed(7, Comm::of("expr"));
        let line = Some("expr 1 + 2".into());
        spawns.described(7, &Metadata { command_line: line, ..Metadata::default() });
        spawns.ended(7, SECOND + SECOND / 100);
        // It is not this one that is told of any more.
        spawns.executed(7, Comm::of("cat"));
        spawns.forked((7, 3), Comm::of("storm.sh"), Some(&cron), SECOND + SECOND / 2);
        // Nobody has seen it begin.
        spawns.executed(9, Comm::of("ls"));
        let begun = spawns.snapshot(Span::Window, 2 * SECOND);
        let [one, copy] = &begun.spawns[..] else { panic!("{begun:?}") };
        let kind = SpawnKind {
            name: Comm::of("expr"),
            has_executed: true,
            parent: Comm::of("storm.sh"),
            group: Some("cron.service".into()),
        };
        assert_eq!((&one.kind, one.command.as_deref()), (&kind, Some("expr 1 + 2")));
        assert_eq!((one.parent, one.lived), (3, Some(Duration::from_millis(10))));
        let name = Comm::of("storm.sh");
        assert_eq!(copy.kind, SpawnKind { name, has_executed: false, ..kind });
        assert_eq!(begun.time, Duration::from_secs(2));
    }

    #[test]
    fn the_window_moves_and_all_are_counted_since_the_start() {
        let mut spawns = Spawns::new(Duration::from_secs(5), 0);
        for at in 0..20_u32 {
            spawns.forked((at, 1), Comm::of("sh"), None, u64::from(at) * SECOND);
        }
        let now = 20 * SECOND;
        assert_eq!(names(&spawns.snapshot(Span::Window, now)), ["sh"; 5]);
        let start = spawns.snapshot(Span::Start, now);
        let before: u64 = start.before.iter().map(|(_, it)| it.count).sum();
        assert_eq!((before, start.time), (15, Duration::from_secs(20)));
        assert!((0.99..1.01).contains(&spawns.rate(now)), "{}", spawns.rate(now));
        assert_eq!((names(&spawns.snapshot(Span::Window, 2 * now)).len(), spawns.first), (0, 20));
        assert!(spawns.by_pid.is_empty());
    }

    #[test]
    fn however_many_begin_they_are_bounded_and_the_rate_is_theirs() {
        let mut spawns = Spawns::new(Duration::from_secs(3600), 0);
        let begun = 2 * MAX_SPAWNS as u64;
        for at in 0..begun {
            let name = format!("p{}", at / 8);
            let process = unit(&format!("u{at}.service"));
            let tgid = u32::try_from(at).unwrap();
            spawns.forked((tgid, 1), Comm::of(&name), Some(&process), at * SECOND / 1000);
        }
        let now = (begun - 1) * SECOND / 1000;
        let account = spawns.account();
        assert_eq!((account.entries, account.evicted), (MAX_SPAWNS as u64, MAX_SPAWNS as u64));
        assert!(spawns.before.len() <= MAX_KINDS + 1 && spawns.groups.len() <= MAX_GROUPS);
        assert!((999.0..1001.0).contains(&spawns.rate(now)), "{}", spawns.rate(now));
        let start = spawns.snapshot(Span::Start, now);
        let before: u64 = start.before.iter().map(|(_, it)| it.count).sum();
        assert_eq!(before + start.spawns.len() as u64, begun);
        assert!(start.before.iter().any(|(kind, _)| *kind == SpawnKind::OTHERS));
    }

    #[test]
    fn a_long_command_line_is_cut_between_characters() {
        assert_eq!(beginning("a b"), "a b");
        let long = "é".repeat(COMMAND_BYTES);
        assert_eq!(beginning(&format!("x{long}")).len(), COMMAND_BYTES - 1);
    }
}
