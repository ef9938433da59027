//! What the command line means: checked against the machine, with every default filled in. The only
//! I/O is reading the kernel's limits and lists.

use std::{fs, path::PathBuf, time::Duration};

use profiler_common::sample::MAX_FRAMES;

use crate::{
    bpf::{features, memory::WalkMemory},
    cli::{CallGraph, Format, SamplingArgs},
    error::{Error, Result},
    kernel,
    perf::{attr::Rate, cpus::CpuList, event::EventSpec},
    symbolize::debuginfod,
};

const DEFAULT_HZ: u64 = 99;
/// What the kernel uses where `perf_event_max_stack` can't be read.
const DEFAULT_FRAMES: i64 = 127;
const RING_BYTES_PER_CPU: u64 = 512 << 10;
const RING_BYTES_MIN: u64 = 4 << 20;
/// The kernel's limit for a ring, on 64-bit machines far above this: a size in a `u32`.
const RING_BYTES_MAX: u64 = 1 << 31;

/// Which event to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventChoice {
    /// Cycles, or the CPU clock where there is no PMU.
    Default,
    /// This one or none: it was asked for by name.
    Named(EventSpec),
}

/// How user stacks are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserWalk {
    /// By the kernel, which follows frame pointers.
    Kernel,
    /// By our own program, which follows frame pointers.
    FramePointers,
    /// By our own program and unwind information.
    Tables {
        /// Whether frame pointers are followed where there is none.
        or_frame_pointers: bool,
    },
}

/// What is printed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Each sample as it comes, as text.
    Text,
    /// Each sample as it comes, as JSON.
    Json,
    /// Each distinct stack with its count, at the end.
    Folded,
    /// The N hottest functions, at the end.
    Top(usize),
}

/// A sampling run, ready to start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The event.
    pub event: EventChoice,
    /// How often it samples.
    pub rate: Rate,
    /// The CPUs that are sampled from the start.
    pub cpus: CpuList,
    /// Whether the CPUs were named, and so no other is sampled when it comes online.
    pub cpus_named: bool,
    /// The processes that are kept; all if empty.
    pub pids: Vec<u32>,
    /// Keep the idle task.
    pub idle: bool,
    /// Take kernel stacks.
    pub kernel_stacks: bool,
    /// Take user stacks.
    pub user_stacks: bool,
    /// Frames of each half of a stack, at most.
    pub frame_limit: u32,
    /// How user stacks are walked.
    pub user_walk: UserWalk,
    /// What the maps may take that the walk by tables needs; `None` if there is no such walk.
    pub walk_memory: Option<WalkMemory>,
    /// Size of the ring in bytes: a power of two, at least a page.
    pub ring_bytes: u32,
    /// End after this long.
    pub duration: Option<Duration>,
    /// Resolve source lines and inlined functions.
    pub lines: bool,
    /// What is printed.
    pub report: Report,
    /// Where to; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Distinct stacks that an aggregation keeps.
    pub max_stacks: usize,
    /// Whom to ask for debug files; nobody if `None`.
    pub debuginfod: Option<debuginfod::Settings>,
    /// Say of each sample's process who it is.
    pub metadata: bool,
    /// Show at the end how much of each file has names.
    pub shows_names: bool,
    /// Processes that are remembered.
    pub max_processes: usize,
    /// Bytes of symbols and debug info that are kept in memory.
    pub symbol_cache_bytes: usize,
    /// End with an error if a sample was lost.
    pub strict: bool,
    /// How much the eBPF program logs: 0 nothing, 2 losses, 3 each sample.
    pub bpf_log_level: u8,
    /// What the user should know before the run starts, a line each.
    pub notices: Vec<String>,
}

impl Config {
    /// Checks and completes what was typed.
    pub fn resolve(args: SamplingArgs, verbose: u8) -> Result<Self> {
        let mut notices = Vec::new();
        let rate = resolve_rate(
            args.frequency,
            args.period,
            kernel::sysctl_number("kernel.perf_event_max_sample_rate"),
            &mut notices,
        );
        if args.metadata && (args.format != Format::Json || args.top.is_some()) {
            let why = "only JSON has a place for it: add -f json";
            return Err(Error::Usage(format!("--metadata: {why}")));
        }
        let online = kernel::cpus("online")?;
        let cpus_named = args.cpus.is_some();
        let cpus = args.cpus.unwrap_or_else(|| online.clone());
        let offline = cpus.without(&online);
        if !offline.is_empty() {
            return Err(Error::Usage(format!(
                "-C {cpus}: CPU {offline} is not online; online are {online}"
            )));
        }
        if !kernel::in_initial_pid_namespace() {
            let why = "this is not the initial pid namespace, so process ids here are not those of \
                       the samples";
            if !args.pids.is_empty() {
                return Err(Error::Usage(format!("-p: {why}; run it on the host")));
            }
            notices.push(format!("{why}: processes have no names; run it on the host"));
        }
        for &pid in &args.pids {
            match process_of(pid) {
                Some(process) if process == pid => {}
                Some(process) => {
                    let why = format!("-p {pid}: this is a thread of process {process}");
                    return Err(Error::Usage(format!("{why}: give -p {process}")));
                }
                None => {
                    return Err(Error::Usage(format!(
                        "-p {pid}: there is no process with this id"
                    )));
                }
            }
        }
        let frames = kernel::sysctl_number("kernel.perf_event_max_stack").unwrap_or(DEFAULT_FRAMES);
        let frames = u32::try_from(frames).unwrap_or(0);
        let user_walk = if args.kernel_only {
            UserWalk::Kernel
        } else {
            resolve_walk(args.call_graph, features::missing_for_walk(), &mut notices)?
        };
        let walk_memory = match user_walk {
            UserWalk::Kernel | UserWalk::FramePointers => None,
            UserWalk::Tables { .. } => {
                Some(resolve_memory(args.max_unwind_memory, args.max_processes)?)
            }
        };
        let frame_limit = match args.call_graph {
            Some(CallGraph::None) => 1,
            _ => frames.clamp(1, MAX_FRAMES),
        };
        if frames > MAX_FRAMES {
            notices.push(format!(
                "kernel.perf_event_max_stack is {frames}; stacks are cut at {MAX_FRAMES} frames"
            ));
        }
        Ok(Self {
            event: args.event.map_or(EventChoice::Default, EventChoice::Named),
            rate,
            ring_bytes: resolve_ring(args.buffer_size, cpus.len())?,
            cpus,
            cpus_named,
            pids: args.pids,
            idle: args.idle,
            kernel_stacks: !args.user_only,
            user_stacks: !args.kernel_only,
            frame_limit,
            user_walk,
            walk_memory,
            duration: args.duration,
            lines: args.lines,
            report: match (args.top, args.format) {
                (Some(n), _) => Report::Top(n as usize),
                (None, Format::Text) => Report::Text,
                (None, Format::Json) => Report::Json,
                (None, Format::Folded) => Report::Folded,
            },
            output: args.output,
            max_stacks: args.max_stacks as usize,
            debuginfod: args.debuginfod.then(debuginfod::Settings::from_env).transpose()?,
            metadata: args.metadata,
            shows_names: verbose > 0 || args.format == Format::Json,
            max_processes: args.max_processes as usize,
            symbol_cache_bytes: usize::try_from(args.symbol_cache).unwrap_or(usize::MAX),
            strict: args.strict,
            bpf_log_level: match (args.bpf_log, verbose) {
                (false, _) => 0,
                (true, 0) => 2,
                (true, _) => 3,
            },
            notices,
        })
    }
}

/// The process with a thread of this id.
fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// How user stacks are walked, where the kernel lacks this or nothing for our own walk.
fn resolve_walk(
    asked: Option<CallGraph>,
    lacks: Option<String>,
    notices: &mut Vec<String>,
) -> Result<UserWalk> {
    match (asked, lacks) {
        (None | Some(CallGraph::Auto), None) => Ok(UserWalk::Tables { or_frame_pointers: true }),
        (Some(CallGraph::Dwarf), None) => Ok(UserWalk::Tables { or_frame_pointers: false }),
        (Some(CallGraph::Fp | CallGraph::None), None) => Ok(UserWalk::FramePointers),
        (Some(CallGraph::Dwarf), Some(lacks)) => Err(Error::Usage(format!(
            "--call-graph dwarf: this kernel lacks {lacks}; --call-graph fp follows frame pointers"
        ))),
        (Some(CallGraph::Fp | CallGraph::None), Some(_)) => Ok(UserWalk::Kernel),
        (None | Some(CallGraph::Auto), Some(lacks)) => {
            notices.push(format!(
                "user stacks are walked by frame pointers only, since this kernel lacks {lacks}: \
                 those of programs built without them are cut short"
            ));
            Ok(UserWalk::Kernel)
        }
    }
}

fn resolve_memory(bytes: u64, processes: u32) -> Result<WalkMemory> {
    let cpus = kernel::cpus("possible")?.len();
    let share = WalkMemory::share(bytes, processes, u32::try_from(cpus).unwrap_or(u32::MAX));
    share.map_err(|least| {
        Error::Usage(format!(
            "--max-unwind-memory {bytes}: at least {}M on this machine, which can have {cpus} CPUs; \
             --call-graph fp needs little of it",
            least.div_ceil(1 << 20)
        ))
    })
}

fn resolve_rate(
    frequency: Option<u64>,
    period: Option<u64>,
    max_rate: Option<i64>,
    notices: &mut Vec<String>,
) -> Rate {
    if let Some(period) = period {
        return Rate::Period(period);
    }
    let hz = frequency.unwrap_or(DEFAULT_HZ);
    let max = max_rate.and_then(|rate| u64::try_from(rate).ok()).filter(|&rate| rate > 0);
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

fn resolve_ring(asked: Option<u64>, cpus: usize) -> Result<u32> {
    let default = RING_BYTES_PER_CPU.saturating_mul(cpus as u64).max(RING_BYTES_MIN);
    let bytes = asked.unwrap_or(default.min(RING_BYTES_MAX));
    // SAFETY: no preconditions.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    if bytes > RING_BYTES_MAX {
        return Err(Error::Usage(format!("--buffer-size {bytes}: at most {RING_BYTES_MAX} (2G)")));
    }
    let rounded = bytes.max(page).next_power_of_two();
    u32::try_from(rounded).map_err(|_| Error::Usage(format!("--buffer-size {bytes}: too large")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_above_the_limit_is_clamped_and_said() {
        let mut notices = Vec::new();
        assert_eq!(resolve_rate(Some(50), None, Some(49), &mut notices), Rate::Frequency(49));
        assert!(notices[0].contains("sysctl kernel.perf_event_max_sample_rate=50"), "{notices:?}");

        notices.clear();
        assert_eq!(resolve_rate(None, None, Some(100), &mut notices), Rate::Frequency(99));
        assert_eq!(resolve_rate(Some(7), None, None, &mut notices), Rate::Frequency(7));
        assert_eq!(resolve_rate(None, Some(1 << 40), Some(1), &mut notices), Rate::Period(1 << 40));
        assert!(notices.is_empty());
    }

    #[test]
    fn rings_are_powers_of_two_of_at_least_a_page() {
        assert_eq!(resolve_ring(None, 1).unwrap(), 4 << 20);
        assert_eq!(resolve_ring(None, 9).unwrap(), 8 << 20);
        assert_eq!(resolve_ring(Some(5 << 20), 1).unwrap(), 8 << 20);
        assert!(resolve_ring(Some(1), 1).unwrap() >= 4096);
        assert_eq!(resolve_ring(None, 1 << 16).unwrap(), 1 << 31);
        assert!(resolve_ring(Some(3 << 30), 1).is_err());
    }

    #[test]
    fn kernel_stacks_alone_need_nothing_of_the_walk() {
        use clap::Parser as _;
        let resolve = |arguments: &[&str]| {
            let cli = crate::cli::Cli::try_parse_from([&["profiler"], arguments].concat()).unwrap();
            Config::resolve(cli.sampling, 0)
        };
        // So little that no walk by tables could do with it.
        let config = resolve(&["--kernel-only", "--max-unwind-memory", "1"]).unwrap();
        assert_eq!((config.user_walk, config.walk_memory), (UserWalk::Kernel, None));
        let about_users = |notice: &String| notice.contains("user stacks");
        assert!(!config.notices.iter().any(about_users), "{:?}", config.notices);
    }

    #[test]
    fn too_little_memory_for_the_walk_is_refused_with_the_least_that_would_do() {
        let Err(Error::Usage(message)) = resolve_memory(4096, 32_768) else { panic!("accepted") };
        let (_, least) = message.split_once("at least ").unwrap();
        let (least, _) = least.split_once("M ").unwrap();
        let least: u64 = least.parse().unwrap();
        assert!(resolve_memory(least << 20, 32_768).is_ok(), "{message}");
        assert!(resolve_memory((least - 1) << 20, 32_768).is_err(), "{message}");
    }

    #[test]
    fn threads_tell_their_process() {
        assert_eq!(process_of(std::process::id()), Some(std::process::id()));
        // SAFETY: no preconditions.
        let thread = u32::try_from(unsafe { libc::gettid() }).unwrap();
        assert_eq!(process_of(thread), Some(std::process::id()));
        assert_eq!(process_of(u32::MAX), None);
    }
}
