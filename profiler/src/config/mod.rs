//! What the command line means on this machine: a config for each stage, with every default filled in.
//!
//! Pure but for `--debuginfod`, which asks the environment: what the kernel says is in [`Machine`].

pub(crate) mod events;
mod filter;
mod machine;
pub(crate) mod process_names;
mod target;

use std::time::Duration;

use profiler_common::sample::MAX_FRAMES;
use profiler_profile::{cpus::CpuList, source::Rate};
use rustix::thread::CapabilitySet;

pub use self::machine::Machine;
use crate::{
    bpf::{
        self,
        config::{Tables, UserWalk},
        features::EntryRegisters,
        load::SlotSettings,
        memory::WalkMemory,
    },
    cli::{CallGraph, Root, SamplingArgs},
    error::{Error, Result},
    hardening::capabilities::USER_PROBES,
    limits::{
        budget::{CacheBudget, WITH_LINES_BYTES},
        memory,
    },
    output::{self, config::Report},
    perf::{self, config::EventChoice},
    process,
    symbolize::{self, debuginfod},
    units::Frequency,
    unwind, worker,
};
use profiler_profile::{export::format::Format, profile};

const DEFAULT_HZ: u64 = 99;
/// What the kernel allows by default, where it doesn't say: `DEFAULT_MAX_SAMPLE_RATE` in
/// <https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c>.
const KERNELS_MAX_HZ: u64 = 100_000;
/// What the kernel uses where `perf_event_max_stack` can't be read.
const DEFAULT_FRAMES: i64 = 127;
const RING_BYTES_PER_CPU: u64 = 512 << 10;
const RING_BYTES_MIN: u64 = 4 << 20;
/// Where the cgroup's memory is limited, they get one part in so many, and the ring one in so many.
const UNWIND_SHARE: u64 = 8;
const PROFILE_SHARE: u64 = 8;
const RING_SHARE: u64 = 64;
/// The kernel's limit for a ring, on 64-bit machines far above this: a size in a `u32`.
const RING_BYTES_MAX: u64 = 1 << 31;

/// A sampling run, ready to start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The events.
    pub perf: perf::config::Config,
    /// The eBPF program.
    pub program: bpf::config::Config,
    /// The processes.
    pub process: process::config::Config,
    /// The thread that names samples and writes them.
    pub worker: worker::Config,
    /// Bytes of samples that may wait for it.
    pub queue_bytes: usize,
    /// Capabilities that are kept beside what sampling needs, and are not in effect but for moments.
    pub set_aside: CapabilitySet,
    /// Show how the run goes on, where standard error is a terminal.
    pub shows_status: bool,
    /// End after this long.
    pub duration: Option<Duration>,
    /// Give the threads that must be in time priority.
    pub realtime: bool,
    /// What the user should know before the run starts, a line each.
    pub notices: Vec<String>,
}

impl Config {
    /// Checks and completes what was typed.
    pub fn resolve(
        args: &SamplingArgs,
        reports: Vec<Report>,
        verbose: u8,
        machine: &Machine,
    ) -> Result<Self> {
        let mut notices = Vec::new();
        let Sizes { budget, unwind_bytes, ring_bytes, profile_bytes } =
            Sizes::fit(args, machine, &mut notices);
        let rate = resolve_rate(args.frequency, args.period, machine.max_sample_rate, &mut notices);
        let has = |what: fn(&Format) -> bool| {
            reports.iter().any(|it| matches!(it, Report::Samples(format) if what(format)))
        };
        check_formats(args, reports.iter().any(|it| it.has_processes()), has(Format::has_roots))?;
        let pids = filter::processes(args, machine, &mut notices)?;
        let mut filter = filter::resolve(args, &pids, machine)?;
        let (filters, tids) = (filter::describe(args), filter::threads(args));
        let target = target::resolve(args, &pids, &tids, &mut filter)?;
        let (cpus, cpus_named) = resolve_cpus(args.cpus.clone(), &machine.online)?;
        let frame_limit = match (args.call_graph, kernel_frames(machine.max_stack, &mut notices)) {
            (Some(CallGraph::None), _) => 1,
            (_, frames) => frames.clamp(1, MAX_FRAMES),
        };
        let limit = args.max_processes.unwrap_or(process::config::DEFAULT_LIMIT);
        let events = events::resolve(args, machine)?;
        target::check(&target, &events)?;
        let names_events = events.len() > 1;
        let user_walk = if args.kernel_only {
            UserWalk::Kernel
        } else {
            let walk = resolve_walk(args.call_graph, machine.registers.clone(), &mut notices)?;
            let memory =
                || resolve_memory(unwind_bytes, limit, machine.possible_cpus, events.len());
            walk.into_config(memory)?
        };
        let probes_user_code = |it: &EventChoice| matches!(it, EventChoice::Traced(it) if it.settings() == SlotSettings::UserProbe);
        let set_aside =
            if events.iter().any(probes_user_code) { USER_PROBES } else { CapabilitySet::empty() };
        let (kernel_stacks, user_stacks) = (!args.user_only, !args.kernel_only);
        let debuginfod = args.debuginfod.then(|| debuginfod::Settings::from_env(&mut notices));
        let process = process::config::Config {
            pids,
            tids,
            filters,
            children: args.children,
            limit: limit as usize,
            metadata: args.metadata,
        };
        Ok(Self {
            program: bpf::config::Config {
                filter,
                idle: args.idle,
                exclude_own: !args.include_self && machine.in_initial_pid_namespace,
                kernel_stacks,
                user_stacks,
                frame_limit,
                user_walk,
                ring_bytes: resolve_ring(ring_bytes, cpus.len(), machine.page_bytes)?,
                log_level: log_level(args.bpf_log, verbose),
            },
            perf: perf::config::Config {
                events,
                rate,
                dither: !args.no_dither,
                cpus,
                cpus_named,
                target,
            },
            worker: worker::Config {
                shows_names: verbose > 0 || has(|it| it.has_ledger),
                names: symbolize::config::Config {
                    lines: args.lines,
                    python: args.python.into(),
                    kernel_stacks,
                    debuginfod: debuginfod.transpose()?,
                    budget,
                },
                walk: user_walk.tables().map(|tables| unwind::config::Config {
                    frame_limit,
                    or_frame_pointers: tables.or_frame_pointers,
                    cache_bytes: budget.tables,
                }),
                output: output::config::Config {
                    reports,
                    live: None,
                    windows: None,
                    kernel_stacks,
                    user_stacks,
                    rendered_bytes: budget.rendered,
                    names_events,
                    root: args.root.into(),
                    profile_bytes,
                },
                process: process.clone(),
            },
            process,
            queue_bytes: budget.queue,
            set_aside,
            shows_status: false,
            duration: args.duration,
            realtime: !args.no_realtime,
            notices,
        })
    }
}

/// How much the eBPF program logs.
fn log_level(is_wanted: bool, verbose: u8) -> u8 {
    match (is_wanted, verbose) {
        (false, _) => 0,
        (true, 0) => 2,
        (true, _) => 3,
    }
}

/// Refuses what no format has a place for that is written.
fn check_formats(args: &SamplingArgs, has_processes: bool, has_roots: bool) -> Result<()> {
    if args.metadata && !has_processes {
        let why = "this format has no place for it: give -f json, json-compact, pprof or html";
        return Err(Error::Usage(format!("--metadata: {why}")));
    }
    if args.root != Root::default() && !has_roots {
        let why = "this format has places of its own for processes and threads: give folded or svg";
        return Err(Error::Usage(format!("--root: {why}")));
    }
    Ok(())
}

/// The CPUs to sample, and whether they were named.
fn resolve_cpus(named: Option<CpuList>, online: &CpuList) -> Result<(CpuList, bool)> {
    let Some(cpus) = named else { return Ok((online.clone(), false)) };
    let offline = cpus.without(online);
    if !offline.is_empty() {
        return Err(Error::Usage(format!(
            "-C {cpus}: CPU {offline} is not online; online are {online}"
        )));
    }
    Ok((cpus, true))
}

/// The frames that the kernel's own walk may find.
fn kernel_frames(max_stack: Option<i64>, notices: &mut Vec<String>) -> u32 {
    let frames = u32::try_from(max_stack.unwrap_or(DEFAULT_FRAMES)).unwrap_or(0);
    if frames > MAX_FRAMES {
        notices.push(format!(
            "kernel.perf_event_max_stack is {frames}; stacks are cut at {MAX_FRAMES} frames"
        ));
    }
    frames
}

/// How user stacks are to be walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    Kernel,
    FramePointers(EntryRegisters),
    Tables { registers: EntryRegisters, or_frame_pointers: bool },
}

impl Walk {
    /// With the memory that its maps may take, if it needs any.
    fn into_config(self, memory: impl FnOnce() -> Result<WalkMemory>) -> Result<UserWalk> {
        Ok(match self {
            Self::Kernel => UserWalk::Kernel,
            Self::FramePointers(registers) => UserWalk::Own { registers, tables: None },
            Self::Tables { registers, or_frame_pointers } => UserWalk::Own {
                registers,
                tables: Some(Tables { or_frame_pointers, memory: memory()? }),
            },
        })
    }
}

/// How user stacks are walked, by what this kernel has or lacks for our own walk.
fn resolve_walk(
    asked: Option<CallGraph>,
    registers: Result<EntryRegisters, String>,
    notices: &mut Vec<String>,
) -> Result<Walk> {
    let or_frame_pointers = asked != Some(CallGraph::Dwarf);
    match (asked, registers) {
        (None | Some(CallGraph::Auto | CallGraph::Dwarf), Ok(registers)) => {
            Ok(Walk::Tables { registers, or_frame_pointers })
        }
        (Some(CallGraph::Fp | CallGraph::None), Ok(registers)) => {
            Ok(Walk::FramePointers(registers))
        }
        (Some(CallGraph::Dwarf), Err(lacks)) => Err(Error::Usage(format!(
            "--call-graph dwarf: this kernel lacks {lacks}; --call-graph fp follows frame pointers"
        ))),
        (Some(CallGraph::Fp | CallGraph::None), Err(_)) => Ok(Walk::Kernel),
        (None | Some(CallGraph::Auto), Err(lacks)) => {
            notices.push(format!(
                "user stacks are walked by frame pointers only, since this kernel lacks {lacks}: \
                 those of programs built without them are cut short"
            ));
            Ok(Walk::Kernel)
        }
    }
}

/// What caches, unwind tables and the ring may take.
struct Sizes {
    budget: CacheBudget,
    unwind_bytes: u64,
    /// Of the ring; its default if `None`.
    ring_bytes: Option<u64>,
    /// Of the profile that is written at the end.
    profile_bytes: usize,
}

impl Sizes {
    /// What was asked for; the rest fits into what the cgroup allows.
    fn fit(args: &SamplingArgs, machine: &Machine, notices: &mut Vec<String>) -> Self {
        let limit = machine.memory_bytes;
        let mut budget = CacheBudget::within(limit);
        let mut shrinks = budget.is_small();
        if let Some(bytes) = args.symbol_cache {
            budget.symbols = usize::try_from(bytes).unwrap_or(usize::MAX);
        } else if args.lines && !budget.is_small() {
            budget.symbols = WITH_LINES_BYTES;
        }
        let default = bpf::memory::DEFAULT_BYTES;
        let unwind_bytes = args.max_unwind_memory.unwrap_or_else(|| {
            let bytes = memory::at_most(default, limit, UNWIND_SHARE);
            shrinks |= bytes < default;
            bytes
        });
        let default = default_ring(machine.online.len());
        let small = memory::at_most(default, limit, RING_SHARE);
        let ring_bytes = args.buffer_size.or_else(|| {
            // Rounded up to a power of two later.
            (small < default).then(|| small.next_power_of_two() / 2)
        });
        shrinks |= args.buffer_size.is_none() && small < default;
        if let Some(limit) = limit.filter(|_| shrinks) {
            notices.push(format!(
                "memory is limited to {}M: smaller caches for symbols ({}M) and unwind tables ({}M); \
                 names may be missing, and stacks cut short",
                limit >> 20,
                budget.symbols >> 20,
                unwind_bytes >> 20
            ));
        }
        // What it has no room for is told at the end.
        let profile_bytes = args
            .max_memory
            .unwrap_or_else(|| memory::at_most(profile::DEFAULT_BYTES, limit, PROFILE_SHARE));
        let profile_bytes = usize::try_from(profile_bytes).unwrap_or(usize::MAX);
        Self { budget, unwind_bytes, ring_bytes, profile_bytes }
    }
}

fn resolve_memory(bytes: u64, processes: u32, cpus: usize, sources: usize) -> Result<WalkMemory> {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let share = WalkMemory::share(bytes, processes, number(cpus), number(sources));
    share.map_err(|least| {
        Error::Usage(format!(
            "--max-unwind-memory {bytes}: at least {}M on this machine, which can have {cpus} CPUs; \
             --call-graph fp needs little of it",
            least.div_ceil(1 << 20)
        ))
    })
}

fn resolve_rate(
    frequency: Option<Frequency>,
    period: Option<u64>,
    max_rate: Option<i64>,
    notices: &mut Vec<String>,
) -> Rate {
    if let Some(period) = period {
        return Rate::Period(period);
    }
    let max = max_rate.and_then(|rate| u64::try_from(rate).ok()).filter(|&rate| rate > 0);
    let hz = match frequency {
        None => DEFAULT_HZ,
        Some(Frequency::Hz(hz)) => hz,
        Some(Frequency::Max) => max.unwrap_or(KERNELS_MAX_HZ),
    };
    match max {
        Some(max) if hz > max => {
            // The kernel takes no larger number.
            let raise = match i32::try_from(hz) {
                Ok(hz) => {
                    format!(". To raise it: sudo sysctl kernel.perf_event_max_sample_rate={hz}")
                }
                Err(_) => String::new(),
            };
            notices.push(format!(
                "{hz} Hz is above kernel.perf_event_max_sample_rate; sampling at {max} Hz{raise}"
            ));
            Rate::Frequency(max)
        }
        _ => Rate::Frequency(hz),
    }
}

fn default_ring(cpus: usize) -> u64 {
    let default = RING_BYTES_PER_CPU.saturating_mul(cpus as u64).max(RING_BYTES_MIN);
    default.min(RING_BYTES_MAX)
}

fn resolve_ring(asked: Option<u64>, cpus: usize, page_bytes: u64) -> Result<u32> {
    let bytes = asked.unwrap_or(default_ring(cpus));
    if bytes > RING_BYTES_MAX {
        return Err(Error::Usage(format!("--buffer-size {bytes}: at most {RING_BYTES_MAX} (2G)")));
    }
    let rounded = bytes.max(page_bytes).next_power_of_two();
    u32::try_from(rounded).map_err(|_| Error::Usage(format!("--buffer-size {bytes}: too large")))
}

#[cfg(test)]
mod tests;
