//! Profiles that nobody has taken: of a web server and a compiler, and of a hundred thousand stacks.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
// Each test has its own copy of this, and uses a part of it.
#![allow(dead_code)]

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::tz::TimeZone;
use profiler_common::counter::Counter;
use profiler_profile::{
    address::Address,
    export::{
        about::About,
        format::{Format, Options},
        output::Output,
        root::Root,
    },
    frame::{Frame, Origin},
    ledger::{
        CpuEvent, EventCount, KernelSide, Ledger, PerCpuCount, Scope, SourceSide,
        counters::PerCpuCounters, memory::Memory,
    },
    process::Metadata,
    profile::Profile,
    sample::{Comm, Sample, Task},
    source::{Counts, Rate, Source},
    stack::Location,
    stack_end::StackEnd,
    store::Store,
};

/// What is called by what, how often, and in which file it is.
const CALLS: &str = include_str!("calls.txt");

/// The same numbers each time. <https://en.wikipedia.org/wiki/Linear_congruential_generator>, of Knuth.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// A sample's stacks by name, outermost first, with their modules. `~` stands before what was inlined.
pub(crate) struct Stacks<'a> {
    pub(crate) comm: &'a str,
    pub(crate) tgid: u32,
    pub(crate) tid: u32,
    pub(crate) frames: Vec<(&'a str, &'a str)>,
}

/// Samples of one source.
pub(crate) struct Recorder {
    store: Store,
    source: Arc<Source>,
    /// Names are kept once, as by what finds them.
    names: HashMap<String, Arc<str>>,
    pub(crate) samples: Vec<Sample>,
}

impl Recorder {
    pub(crate) fn new(slot: usize, event: &'static str, rate: Rate) -> Self {
        let source = Source { slot, name: event.into(), counts: Counts::Clock, rate };
        Self {
            store: Store::default(),
            source: Arc::new(source),
            names: HashMap::new(),
            samples: Vec::new(),
        }
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        let known = self.names.entry(name.to_owned()).or_insert_with(|| name.into());
        Arc::clone(known)
    }

    pub(crate) fn add(&mut self, of: &Stacks<'_>) {
        let mut comm = Comm::default();
        let name = &of.comm.as_bytes()[..of.comm.len().min(15)];
        comm.0[..name.len()].copy_from_slice(name);
        let mut halves = [Vec::new(), Vec::new()];
        let mut inlined = Vec::new();
        for (name, module) in of.frames.iter().rev() {
            let symbol = name.trim_start_matches('~');
            let frame = Frame {
                symbol: Some(self.name(symbol)),
                module: Some(self.name(module)),
                inlined: name.starts_with('~'),
                origin: Origin::Elf,
                ..Frame::default()
            };
            let is_inlined = frame.inlined;
            inlined.push(frame);
            if !is_inlined {
                let frames = std::mem::take(&mut inlined).into();
                let location = Location { address: Address::returned_to(4096), frames };
                halves[usize::from(*module != "[kernel]")].push(location);
            }
        }
        let [kernel, user] = halves.map(|half| self.store.intern(half));
        let command = format!("/usr/bin/{} --verbose", of.comm);
        let process = Metadata { command_line: Some(command), ..Metadata::default() };
        self.samples.push(Sample {
            source: Arc::clone(&self.source),
            time_ns: 1,
            value: 1,
            cpu: 0,
            task: Task {
                main_comm: Comm::default(),
                tgid: of.tgid,
                tid: of.tid,
                comm,
                cgroup_id: 1,
                process: Some(Arc::new(process)),
            },
            kernel,
            user,
            user_end: StackEnd::Complete,
            from_snapshot: false,
        });
    }
}

struct Graph<'a> {
    modules: HashMap<&'a str, &'a str>,
    callees: HashMap<&'a str, Vec<(&'a str, usize)>>,
}

impl<'a> Graph<'a> {
    fn read(text: &'a str) -> Self {
        let mut graph = Self { modules: HashMap::new(), callees: HashMap::new() };
        let mut module = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("# ") {
                module = name;
                continue;
            }
            let (caller, callees) = line.split_once(" => ").unwrap();
            graph.modules.insert(caller, module);
            let callees = callees.split(" | ").map(|it| {
                let (name, weight) = it.rsplit_once(' ').unwrap();
                (name, weight.parse().unwrap())
            });
            graph.callees.insert(caller, callees.collect());
        }
        graph
    }

    /// A stack from an outermost function on, as chance has it.
    fn walk(&self, random: &mut Random, start: &'a str) -> Vec<(&'a str, &'a str)> {
        let (mut frames, mut next, mut module) = (Vec::new(), Some(start), "");
        while let Some(name) = next {
            module = self.modules.get(name).copied().unwrap_or(module);
            // The table has a system call once for each purpose.
            let shown = match name.rsplit_once(':') {
                Some((shown, "send" | "recv" | "accept" | "mmap" | "open")) => shown,
                _ => name,
            };
            frames.push((shown, module));
            let callees = self.callees.get(name).map_or(&[][..], |it| it);
            let sum: usize = callees.iter().map(|(_, weight)| weight).sum();
            // Some of the time goes by in the function itself.
            let own =
                if callees.len() > 1 { name.len() % 16 } else { usize::from(frames.len() > 8) };
            let mut at = if random.below(100) < own { sum } else { random.below(sum.max(1)) };
            next = callees.iter().find_map(|(name, weight)| {
                let found = (at < *weight).then_some(*name);
                at = at.saturating_sub(*weight);
                found
            });
            if module != "[kernel]" && frames.len() > 6 && random.below(160) == 0 {
                next = Some("asm_exc_page_fault");
            }
        }
        frames
    }
}

/// Samples of a busy machine.
pub(crate) fn samples(slot: usize, event: &'static str, rate: Rate, count: usize) -> Vec<Sample> {
    let graph = Graph::read(CALLS);
    let mut random = Random(20 + slot as u64);
    let mut recorder = Recorder::new(slot, event, rate);
    for _ in 0..count {
        let (comm, start, tgid, tid) = match random.below(100) {
            0..45 => ("nginx", "_start", 812, 812),
            45..58 => ("nginx", "_start", 813, 813),
            58..92 => {
                let thread = random.below(5);
                let comm = if thread == 0 { "rustc" } else { "opt cgu" };
                let tid = 4243 + u32::try_from(thread).unwrap();
                (comm, "__clone3", 4242, tid)
            }
            92..97 => ("kworker/u16:3-events_unbound", "ret_from_fork_asm", 91, 91),
            _ => ("kswapd0", "ret_from_fork_asm", 77, 77),
        };
        let frames = graph.walk(&mut random, start);
        recorder.add(&Stacks { comm, tgid, tid, frames });
    }
    recorder.samples
}

/// So many distinct stacks of 10 to 60 frames out of 5,000 functions.
pub(crate) fn distinct(count: usize) -> Vec<Sample> {
    let mut random = Random(1);
    let names: Vec<String> = (0..5000)
        .map(|it| {
            format!("crate_{}::module_{}::Type{}<T>::method_{it}", it % 40, it % 300, it % 900)
        })
        .collect();
    let modules: Vec<String> = (0..40).map(|it| format!("/usr/lib/lib{it}.so")).collect();
    let mut recorder = Recorder::new(0, "cpu-clock", Rate::Frequency(99));
    let mut path: Vec<usize> = Vec::new();
    let mut seen = HashSet::new();
    while seen.len() < count {
        // Stacks share their outer part, as calls do.
        let keep = path.len().min(random.below(44));
        path.truncate(keep);
        let depth = 10 + random.below(50);
        while path.len() < depth.max(keep + 1) {
            // Most calls go the same way.
            let spread = 2 + path.len() / 2;
            let way = random.below(spread) & random.below(spread) & random.below(spread);
            path.push((path.last().copied().unwrap_or(0) * 31 + way * 17 + 7) % 5000);
        }
        if !seen.insert(path.clone()) {
            continue;
        }
        let frames =
            path.iter().map(|it| (names[*it].as_str(), modules[it % 40].as_str())).collect();
        let thread = u32::try_from(random.below(64)).unwrap();
        let tgid = 1000 + thread / 8;
        recorder.add(&Stacks { comm: "server", tgid, tid: tgid + thread % 8, frames });
    }
    recorder.samples
}

/// The account of a run that delivered these samples, and lost a few.
pub(crate) fn ledger(samples: &[Sample]) -> Ledger {
    let slots = samples.iter().map(|it| it.source.slot + 1).max().unwrap_or(1);
    let delivered = PerCpuCount::new(slots, 1);
    let sources = (0..slots).map(|slot| {
        let of_slot: Vec<&Sample> = samples.iter().filter(|it| it.source.slot == slot).collect();
        for _ in &of_slot {
            delivered.add(slot, 0);
        }
        let count = of_slot.len() as u64;
        let period = match of_slot.first().map(|it| it.source.rate) {
            Some(Rate::Period(period)) => period,
            _ => 10_101_010,
        };
        let mut counters = [0; Counter::COUNT];
        counters[Counter::Fired as usize] = count + 58 + 3;
        counters[Counter::FilteredIdle as usize] = 51;
        counters[Counter::FilteredSelf as usize] = 7;
        counters[Counter::RingFull as usize] = 3;
        counters[Counter::PeriodSum as usize] = (count + 61) * period;
        let passed = (count + 63) * period;
        let event = CpuEvent {
            cpu: 0,
            count: EventCount { count: passed, enabled_ns: passed, running_ns: passed },
            events: 1,
            whole: true,
            refused: false,
            throttled: 0,
            idle: Duration::ZERO,
        };
        let none = Source {
            slot,
            name: "cpu-clock".into(),
            counts: Counts::Clock,
            rate: Rate::Frequency(99),
        };
        SourceSide {
            source: of_slot.first().map_or(none, |it| (*it.source).clone()),
            skipped: 0,
            dithered: false,
            lowered: None,
            events: vec![event],
            counters: PerCpuCounters::from(vec![counters]),
        }
    });
    let kernel = KernelSide {
        sources: sources.collect(),
        duration: Duration::from_secs(10),
        pids: Vec::new(),
        children: None,
        filters: Vec::new(),
        scope: Scope::default(),
        strangers: Arc::new(PerCpuCount::new(slots, 1)),
        sideband_lost: 0,
        sideband_malformed: 0,
        unwinding: None,
        memory: Memory::default(),
    };
    Ledger::settle(&kernel, &delivered, &PerCpuCount::new(slots, 1))
}

/// The samples in a format.
pub(crate) fn export(format: &str, samples: &[Sample]) -> String {
    let options = Options {
        kernel_stacks: true,
        user_stacks: true,
        names_events: false,
        begun_ns: 0,
        producer: "profiler 0.1.0",
        real_time_ahead_ns: 1_750_000_000_000_000_000,
        zone: TimeZone::UTC,
        rendered_bytes: 1 << 20,
        timeline_bytes: 1 << 30,
        root: Root::default(),
    };
    let (mut written, ledger) = (Vec::new(), ledger(samples));
    let about = About::of_run(&ledger, &options);
    let mut output = Output::new(Format::find(format).unwrap().export, options, &mut written);
    let mut profile = Profile::new(1 << 30);
    profile.extend(samples);
    output.add(samples).unwrap();
    output.finish(&profile, &about).unwrap();
    drop(output);
    String::from_utf8(written).unwrap()
}
