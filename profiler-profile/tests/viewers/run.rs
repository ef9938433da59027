//! Samples as a run takes them, and what the formats make of them.

use std::{sync::Arc, time::Duration};

use jiff::tz::TimeZone;
use profiler_common::{build_id::BuildId, counter::Counter};
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
    process::{Container, Metadata},
    profile::Profile,
    sample::{Comm, Sample, Task},
    source::{Counts, Rate, Source},
    stack::{Location, Stack},
    stack_end::StackEnd,
    store::Store,
};

/// What a format makes of the samples of these sources.
pub(crate) fn export(format: &str, sources: &[&Arc<Source>], samples: &[Sample]) -> Vec<u8> {
    export_within(1 << 20, format, sources, samples)
}

/// The same with so many bytes for the profile.
pub(crate) fn export_within(
    limit_bytes: usize,
    format: &str,
    sources: &[&Arc<Source>],
    samples: &[Sample],
) -> Vec<u8> {
    let (mut written, ledger) = (Vec::new(), ledger(sources, samples));
    let options = options(sources);
    let about = About::of_run(&ledger, &options);
    let export = Format::find(format).unwrap().export;
    let mut output = Output::new(export, options.clone(), &mut written);
    let mut profile = Profile::new(limit_bytes);
    profile.extend(samples);
    output.add(samples).unwrap();
    output.finish(&profile, &about).unwrap();
    drop(output);
    written
}

/// What is the same for all formats.
pub(crate) fn options(sources: &[&Arc<Source>]) -> Options {
    Options {
        kernel_stacks: true,
        user_stacks: true,
        names_events: sources.len() > 1,
        begun_ns: 5_000_000_000,
        producer: "profiler 1.2.3",
        real_time_ahead_ns: 1_700_000_000_000_000_000,
        zone: TimeZone::UTC,
        rendered_bytes: 64 << 20,
        timeline_bytes: 1 << 30,
        root: Root::default(),
    }
}

/// The ledger of ten seconds, in which three samples of each source were lost.
pub(crate) fn ledger(sources: &[&Arc<Source>], samples: &[Sample]) -> Ledger {
    let delivered = PerCpuCount::new(sources.len(), 1);
    let none = PerCpuCount::new(sources.len(), 1);
    let sides = sources.iter().enumerate().map(|(slot, source)| {
        let of_source = samples.iter().filter(|it| it.source.slot == slot).count();
        (0..of_source).for_each(|_| delivered.add(slot, 0));
        let mut counters = [0; Counter::COUNT];
        counters[Counter::Fired as usize] = of_source as u64 + 3;
        counters[Counter::RingFull as usize] = 3;
        let event = CpuEvent {
            cpu: 0,
            count: EventCount::default(),
            events: 1,
            whole: true,
            refused: false,
            throttled: 0,
            idle: Duration::ZERO,
        };
        SourceSide {
            source: (***source).clone(),
            skipped: 0,
            dithered: false,
            lowered: None,
            events: vec![event],
            counters: PerCpuCounters::from(vec![counters]),
        }
    });
    let kernel = KernelSide {
        sources: sides.collect(),
        duration: Duration::from_secs(10),
        pids: Vec::new(),
        children: None,
        filters: Vec::new(),
        scope: Scope::default(),
        strangers: Arc::new(PerCpuCount::new(sources.len(), 1)),
        sideband_lost: 0,
        sideband_malformed: 0,
        unwinding: None,
        memory: Memory::default(),
    };
    let mut ledger = Ledger::settle(&kernel, &delivered, &none);
    ledger.user_ends = [("complete", 3), ("no_unwind_info", 1)].into();
    ledger
}

/// The clock, sampled 100 times a second.
pub(crate) fn cpu_clock() -> Arc<Source> {
    let (name, rate) = ("cpu-clock".into(), Rate::Frequency(100));
    Arc::new(Source { slot: 0, name, counts: Counts::Clock, rate })
}

/// Page faults, each sampled.
pub(crate) fn page_faults(slot: usize) -> Arc<Source> {
    let (name, rate) = ("page-faults".into(), Rate::Period(1));
    Arc::new(Source { slot, name, counts: Counts::Events, rate })
}

/// A function at an offset in a file with a build id.
pub(crate) fn function(name: &str, file: &str, offset: u64) -> Frame {
    let (symbol, module) = (Some(Arc::from(name)), Some(Arc::from(file)));
    let build_id = BuildId::from_slice(&[0xab, file.len().try_into().unwrap()]);
    Frame { symbol, module, offset, build_id, origin: Origin::Elf, ..Frame::default() }
}

/// The same with the place in the source.
pub(crate) fn at_line(frame: Frame, file: &str, line: u32) -> Frame {
    Frame { source: Some((Arc::from(file), Some(line))), origin: Origin::Dwarf, ..frame }
}

/// The same where it is inlined.
pub(crate) fn inlined(frame: Frame) -> Frame {
    Frame { inlined: true, ..frame }
}

/// Code of a file that has no symbol there.
pub(crate) fn unnamed(file: &str, offset: u64) -> Frame {
    let origin = Origin::NoSymbol;
    Frame { symbol: None, origin, ..function("", file, offset) }
}

/// Code that lies in no known mapping.
pub(crate) fn unmapped() -> Frame {
    Frame::default()
}

/// A function of the kernel.
pub(crate) fn kernel(name: &str) -> Frame {
    let symbol = Some(Arc::from(name));
    Frame { symbol, offset: 0x10, origin: Origin::Kallsyms, ..Frame::default() }
}

/// Half a stack of addresses with these functions, innermost first.
pub(crate) fn stack(store: &mut Store, addresses: &[&[Frame]]) -> Arc<Stack> {
    let location = |(at, frames): (u64, &&[Frame])| Location {
        address: Address::returned_to(0x40_0000 + 0x10 * at),
        frames: Arc::from(*frames),
    };
    store.intern((0..).zip(addresses).map(location).collect())
}

/// A thread of a process in a container.
pub(crate) fn task(tgid: u32, tid: u32, comm: &str) -> Task {
    let mut bytes = Comm::default();
    for (to, byte) in bytes.0.iter_mut().zip(comm.bytes().take(15)) {
        *to = byte;
    }
    let container = Container { id: "c0ffee".repeat(10) + "c0ff", runtime: Some("docker") };
    let process = Metadata {
        cgroup: Some(format!("/system.slice/{comm}.service")),
        container: Some(container),
        ..Metadata::default()
    };
    Task {
        tgid,
        tid,
        comm: bytes,
        main_comm: Comm::default(),
        cgroup_id: 1,
        process: Some(Arc::new(process)),
    }
}

/// A sample.
pub(crate) fn sample(
    source: &Arc<Source>,
    task: &Task,
    value: u64,
    [kernel, user]: [&Arc<Stack>; 2],
) -> Sample {
    Sample {
        source: Arc::clone(source),
        time_ns: 7_123_456_789,
        value,
        cpu: 3,
        task: task.clone(),
        kernel: Arc::clone(kernel),
        user: Arc::clone(user),
        user_end: StackEnd::Complete,
        from_snapshot: false,
    }
}
