//! Loading the eBPF object with the run's settings in it.

use std::time::Instant;

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{HashMap, Map, MapData, PerCpuArray, RingBuf},
    programs::{PerfEvent, ProgramError, ProgramFd},
};
use aya_log::EbpfLogger;
use profiler_common::{
    counter::Counters,
    settings::{flag, global},
    unwind::table::{RULES, TABLES},
};

use super::{features::EntryRegisters, unwind::UnwindMaps};
use crate::{
    config::{Config, UserWalk},
    error::{Error, Result},
    kernel,
};

/// The object that `cargo xtask build-ebpf` has built. aya wants it aligned.
#[cfg(not(no_ebpf_object))]
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("PROFILER_EBPF_OBJECT"));
#[cfg(no_ebpf_object)]
compile_error!("the eBPF object is not built yet: run `cargo xtask build-ebpf` first");
#[cfg(no_ebpf_object)]
static OBJECT: &[u8] = &[];

/// A share of the ring that is unread: from there on the reader is woken at once, not by its timer.
const WAKE_SHARE: u64 = 4;

/// How many of the verifier's last lines an error shows.
const VERIFIER_LINES: usize = 12;

/// The program and its maps in the kernel. All of it goes when this is dropped, or with the process.
pub struct Program {
    /// Runs once a sample, when an event has it attached.
    pub program: ProgramFd,
    /// Where it writes samples.
    pub samples: RingBuf<MapData>,
    /// What it counts.
    pub counters: PerCpuArray<MapData, CountersPod>,
    /// What its walk of user stacks needs, if it walks by tables.
    pub unwind: Option<UnwindMaps>,
    /// What it logs, if asked to.
    pub log: Option<EbpfLogger<&'static dyn log::Log>>,
    /// Holds the program and the other maps.
    pub ebpf: Ebpf,
}

/// [`Counters`], for aya to read.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct CountersPod(pub Counters);

// SAFETY: an array of integers has no padding and no invalid values.
unsafe impl aya::Pod for CountersPod {}

impl Program {
    /// Loads the program. Needs CAP_BPF and CAP_PERFMON (Linux 5.8), and BPF ring buffers (5.8).
    pub fn load(config: &Config) -> Result<Self> {
        let memlock = kernel::raise_memlock();
        let by_tables = config.walk_memory.is_some();
        let flags = [
            (flag::IDLE, config.idle),
            (flag::KERNEL_STACK, config.kernel_stacks),
            (flag::USER_STACK, config.user_stacks),
            (flag::ONLY_PIDS, !config.pids.is_empty()),
            (flag::TABLES, by_tables),
            (
                flag::OR_FRAME_POINTERS,
                config.user_walk == UserWalk::Tables { or_frame_pointers: true },
            ),
        ];
        let flags: u32 = flags.iter().filter(|(_, on)| *on).map(|(flag, _)| flag).sum();
        let ring_bytes = u64::from(config.ring_bytes);
        let pids = u32::try_from(config.pids.len()).unwrap_or(u32::MAX).max(1);

        // What a run does not need is there, since the object has it, but takes next to nothing.
        let (spaces, blocks, rules, tables) = config
            .walk_memory
            .map_or((1, 1, 1, 1), |memory| (memory.spaces, memory.blocks, RULES, TABLES));

        // Where the walk can't be, it is not loaded.
        let (task_stack, task_registers) = match EntryRegisters::of_kernel() {
            Ok(EntryRegisters::OnStack { stack, registers }) => (stack, registers),
            Ok(EntryRegisters::Helpers) | Err(_) => (0, 0),
        };
        let mut ebpf = EbpfLoader::new()
            .override_global(global::FLAGS, &flags, true)
            .override_global(global::FRAME_LIMIT, &config.frame_limit, true)
            .override_global(global::TASK_STACK, &task_stack, true)
            .override_global(global::TASK_REGISTERS, &task_registers, true)
            .override_global(global::RING_BYTES, &ring_bytes, true)
            .override_global(global::WAKE_BYTES, &(ring_bytes / WAKE_SHARE), true)
            .override_global(aya_log::LEVEL, &config.bpf_log_level, true)
            .map_max_entries("SAMPLES", config.ring_bytes)
            .map_max_entries("PIDS", pids)
            .map_max_entries("SPACES", spaces)
            .map_max_entries("BLOCKS", blocks)
            .map_max_entries("RULE", rules)
            .map_max_entries("TABLE", tables)
            .load(OBJECT)
            .map_err(|error| explain(&error, memlock))?;

        let unwind = by_tables.then(|| UnwindMaps::take(&mut ebpf)).transpose()?;
        let log = match config.bpf_log_level {
            0 => None,
            _ => Some(
                EbpfLogger::init(&mut ebpf)
                    .map_err(|error| Error::system("cannot read the program's log", error))?,
            ),
        };
        let mut pids: HashMap<_, u32, u8> = take_map(&mut ebpf, "PIDS")?;
        for pid in &config.pids {
            pids.insert(pid, 1, 0)
                .map_err(|error| Error::system(format!("cannot filter pid {pid}"), error))?;
        }
        let samples = take_map(&mut ebpf, "SAMPLES")?;
        let counters = take_map(&mut ebpf, "COUNTERS")?;

        let name = match config.user_walk {
            UserWalk::Kernel => "sample",
            UserWalk::FramePointers | UserWalk::Tables { .. } => "sample_walking",
        };
        let program: &mut PerfEvent = ebpf
            .program_mut(name)
            .ok_or_else(|| damaged(format!("no program `{name}`")))?
            .try_into()
            .map_err(|error: ProgramError| damaged(error))?;
        let begin = Instant::now();
        program.load().map_err(|error| explain_verifier(&error))?;
        let took_ms = 1e3 * begin.elapsed().as_secs_f64();
        let verified = program.info().ok().and_then(|info| info.verified_instruction_count());
        // Linux 5.16 began to tell.
        let verified = verified.map_or("an unknown number of".to_owned(), |it| it.to_string());
        tracing::debug!(
            "eBPF program {name}: {verified} instructions verified, loaded in {took_ms:.1} ms"
        );
        let program = program
            .fd()
            .and_then(|fd| fd.try_clone().map_err(ProgramError::IOError))
            .map_err(|error| Error::system("cannot use the loaded program", error))?;
        Ok(Self { program, samples, counters, unwind, log, ebpf })
    }
}

pub(super) fn take_map<T>(ebpf: &mut Ebpf, name: &str) -> Result<T>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    let map = ebpf.take_map(name).ok_or_else(|| damaged(format!("no map `{name}`")))?;
    map.try_into().map_err(|error| Error::system(format!("cannot open the map `{name}`"), error))
}

fn damaged(why: impl std::fmt::Display) -> Error {
    Error::system_with(
        "the embedded eBPF object is not the agent's own",
        why,
        "build both again: cargo xtask build-ebpf && cargo build --release -p profiler",
    )
}

fn explain(error: &EbpfError, memlock: std::io::Result<()>) -> Error {
    let next = match memlock {
        Err(memlock) => format!(
            "before Linux 5.11 maps need RLIMIT_MEMLOCK, which could not be raised ({memlock}): \
             `ulimit -l unlimited` as root"
        ),
        Ok(()) => "`profiler doctor` shows what this kernel and this user lack".into(),
    };
    Error::system_with("cannot load the eBPF object", sources(error), next)
}

/// The error and what is behind it, which aya keeps apart.
fn sources(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = chain.map(ToString::to_string).collect();
    texts.dedup_by(|next, before| before.contains(next.as_str()));
    texts.join(": ")
}

fn explain_verifier(error: &ProgramError) -> Error {
    let what = "the kernel refuses the eBPF program";
    let ProgramError::LoadError { io_error, verifier_log } = error else {
        let next = "`profiler doctor` shows what this kernel lacks";
        return Error::system_with(what, sources(error), next);
    };
    let log = verifier_log.to_string();
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(VERIFIER_LINES)..).unwrap_or_default();
    Error::system_with(
        what,
        io_error,
        format!(
            "this is a defect of the profiler: please report it with the kernel's version ({}), \
             the output of `profiler doctor`, and the verifier's last words:\n    {}",
            kernel::release(),
            last.join("\n    ")
        ),
    )
}
