//! Loading the eBPF object with the run's settings in it.

use std::{io, time::Instant};

use aya::{
    Ebpf, EbpfError,
    maps::{Map, MapData, RingBuf},
    programs::{KProbe, PerfEvent, Program as AyaProgram, ProgramError, ProgramFd, TracePoint},
};
use aya_log::EbpfLogger;
use profiler_common::{
    settings::{self, MAX_SOURCES, flag, global, walk},
    unwind::table::{RULES, TABLES},
};

use super::{
    config::{Config, Tables, UserWalk},
    counters::CounterMap,
    filter,
    hit_filter::{self, HitFilter},
    kernel_names::KernelNames,
    object,
    own::OwnProcesses,
    periods::Periods,
    runs::Runs,
    unwind::UnwindMaps,
};
use crate::{
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

/// What the program has to know of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotSettings {
    /// An event that overflows.
    Event {
        /// Whether its periods may be moved: see [`Periods`].
        moved: bool,
    },
    /// Tracepoints, and which of their hits count.
    Tracepoints(Option<HitFilter>),
    /// A probe in the kernel.
    KernelProbe,
    /// A probe in user code.
    UserProbe,
}

impl Default for SlotSettings {
    /// An event whose periods stay.
    fn default() -> Self {
        Self::Event { moved: false }
    }
}

impl SlotSettings {
    /// The program that the kernel takes for it.
    fn program(&self, walks: bool) -> settings::Program {
        match (self, walks) {
            (Self::Event { .. }, false) => settings::Program::Sample,
            (Self::Event { .. }, true) => settings::Program::SampleWalk,
            (Self::Tracepoints(_), false) => settings::Program::Tracepoint,
            (Self::Tracepoints(_), true) => settings::Program::TracepointWalk,
            (Self::KernelProbe | Self::UserProbe, false) => settings::Program::Probe,
            (Self::KernelProbe | Self::UserProbe, true) => settings::Program::ProbeWalk,
        }
    }

    fn flags(&self) -> u32 {
        bits(&[
            (flag::MOVED, matches!(self, Self::Event { moved: true })),
            (flag::USER_PROBE, *self == Self::UserProbe),
            (flag::HIT_FILTER, matches!(self, Self::Tracepoints(Some(_)))),
        ])
    }

    fn hit_filter(&self) -> Option<&HitFilter> {
        if let Self::Tracepoints(filter) = self { filter.as_ref() } else { None }
    }
}

/// A source's part of the program.
pub struct Slot {
    /// Runs once a sample or hit, when an event has it attached.
    pub program: ProgramFd,
    /// Where it looks for the period of each CPU's event, where that is moved, and for that of hits.
    pub periods: Periods,
    /// What the kernel says of the program.
    pub runs: Runs,
}

impl Slot {
    /// The same part, for one more that runs it.
    pub(crate) fn try_clone(&self) -> Result<Self> {
        let program = || {
            let program = self.program.try_clone();
            program.map_err(|it| Error::system("cannot duplicate a file", it))
        };
        let runs = Runs::of(program()?);
        Ok(Self { program: program()?, periods: self.periods.clone(), runs })
    }
}

/// The program and its maps in the kernel. All of it goes when this is dropped, or with the process.
pub struct Program {
    /// Each source's part.
    pub slots: Vec<Slot>,
    /// Where it writes samples.
    pub samples: RingBuf<MapData>,
    /// What it counts.
    pub counters: CounterMap,
    /// The profiler's own processes, which it skips unless they were asked for.
    pub own: OwnProcesses,
    /// What its walk of user stacks needs, if it walks by tables.
    pub unwind: Option<UnwindMaps>,
    /// Who tells the names of the kernel's code, where the kernel can and they are wanted.
    pub kernel_names: Option<KernelNames>,
    /// What it logs, if asked to.
    pub log: Option<EbpfLogger<&'static dyn log::Log>>,
    /// Holds the program and the other maps.
    pub ebpf: Ebpf,
}

impl Program {
    /// Loads the program for these sources, of which there are at most [`MAX_SOURCES`]. Needs CAP_BPF and
    /// CAP_PERFMON (Linux 5.8), and BPF ring buffers (5.8).
    pub fn load(config: &Config, slots: &[SlotSettings]) -> Result<Self> {
        let memlock = kernel::raise_memlock();
        let tables = config.user_walk.tables();
        let flags = [
            (flag::IDLE, config.idle),
            (flag::KERNEL_STACK, config.kernel_stacks),
            (flag::USER_STACK, config.user_stacks),
            (flag::EXCLUDE_OWN, config.exclude_own),
            (flag::KERNEL_ONLY, !config.user_stacks),
        ];
        let flags = bits(&flags) | bits(&filter::flags(&config.filter));
        let mut flags_by_slot = [flags; MAX_SOURCES];
        for (flags, slot) in flags_by_slot.iter_mut().zip(slots) {
            *flags |= slot.flags();
        }
        let walk = bits(&[
            (walk::TABLES, tables.is_some()),
            (walk::OR_FRAME_POINTERS, tables.is_some_and(|tables| tables.or_frame_pointers)),
        ]);
        let ring_bytes = u64::from(config.ring_bytes);
        let cgroups = u32::try_from(config.filter.cgroups.len()).unwrap_or(u32::MAX);

        let last_cpu = kernel::cpus("possible")?.iter().max().unwrap_or(0);
        let sources = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        // What has an entry for each slot.
        let periods = settings::period_index(last_cpu.saturating_add(1), 0);

        // What a run does not need is there, since the object has it, but takes next to nothing.
        let (spaces, blocks, rules, table_count) = match tables {
            Some(Tables { memory, .. }) => (memory.spaces, memory.blocks, RULES, TABLES),
            None => (1, 1, 1, 1),
        };
        let (walks, (task_stack, task_registers)) = match config.user_walk {
            UserWalk::Kernel => (false, (0, 0)),
            UserWalk::Own { registers, .. } => (true, registers.offsets()),
        };
        let mut loader = object::loader();
        let of_hits = hit_filter::map_sizes(slots.iter().map(SlotSettings::hit_filter));
        for (map, entries) in filter::map_sizes(&config.filter).into_iter().chain(of_hits) {
            loader.map_max_entries(map, entries);
        }
        let mut ebpf = loader
            .override_global(global::FLAGS, &flags_by_slot, true)
            .override_global(global::WALK, &walk, true)
            .override_global(global::FRAME_LIMIT, &config.frame_limit, true)
            .override_global(global::TASK_STACK, &task_stack, true)
            .override_global(global::TASK_REGISTERS, &task_registers, true)
            .override_global(global::RING_BYTES, &ring_bytes, true)
            .override_global(global::WAKE_BYTES, &(ring_bytes / WAKE_SHARE), true)
            .override_global(global::CGROUP_COUNT, &cgroups, true)
            .override_global(aya_log::LEVEL, &config.log_level, true)
            .map_max_entries("SAMPLES", config.ring_bytes)
            .map_max_entries("PERIODS", periods)
            .map_max_entries("COUNTERS", sources)
            .map_max_entries("SCRATCH", sources)
            .map_max_entries("CACHE", sources)
            .map_max_entries("PYTHON", sources)
            .map_max_entries("SPACES", spaces)
            .map_max_entries("BLOCKS", blocks)
            .map_max_entries("RULE", rules)
            .map_max_entries("TABLE", table_count)
            .load(OBJECT)
            .map_err(|error| explain(&error, memlock))?;

        let unwind = tables.map(|_| UnwindMaps::take(&mut ebpf)).transpose()?;
        let log = match config.log_level {
            0 => None,
            _ => Some(
                EbpfLogger::init(&mut ebpf)
                    .map_err(|error| Error::system("cannot read the program's log", error))?,
            ),
        };
        let mut own = OwnProcesses::new(take_map(&mut ebpf, "OWN")?);
        own.add(std::process::id())?;
        let samples = take_map(&mut ebpf, "SAMPLES")?;
        let periods = Periods::of_slots(take_map(&mut ebpf, "PERIODS")?);
        let counters = CounterMap::take(&mut ebpf)?;

        let loaded = slots.iter().zip(periods).enumerate().map(|(number, (slot, periods))| {
            let names = slot.program(walks).names();
            let name = names.get(number).ok_or_else(|| damaged("too few slots"))?;
            let (program, runs) = load_program(&mut ebpf, name)?;
            Ok(Slot { program, periods, runs })
        });
        let loaded = loaded.collect::<Result<Vec<_>>>()?;
        // Now that the programs hold the maps.
        filter::fill(&mut ebpf, &config.filter)?;
        hit_filter::fill(&mut ebpf, slots.iter().map(SlotSettings::hit_filter))?;
        let kernel_names = config.kernel_stacks.then(|| load_kernel_names(&mut ebpf)).flatten();
        Ok(Self { slots: loaded, samples, counters, own, unwind, kernel_names, log, ebpf })
    }
}

/// Those of the flags that are on.
fn bits(flags: &[(u32, bool)]) -> u32 {
    flags.iter().filter(|(_, on)| *on).map(|(flag, _)| flag).sum()
}

/// Loads one of the object's programs.
fn load_program(ebpf: &mut Ebpf, name: &str) -> Result<(ProgramFd, Runs)> {
    let begin = Instant::now();
    let program = ebpf.program_mut(name).ok_or_else(|| damaged(format!("no program `{name}`")))?;
    let loaded = match program {
        AyaProgram::PerfEvent(program) => PerfEvent::load(program),
        AyaProgram::TracePoint(program) => TracePoint::load(program),
        AyaProgram::KProbe(program) => KProbe::load(program),
        _ => return Err(damaged(format!("the program `{name}` is of another type"))),
    };
    loaded.map_err(|error| explain_verifier(&error))?;
    let took_ms = 1e3 * begin.elapsed().as_secs_f64();
    let verified = program.info().ok().and_then(|info| info.verified_instruction_count());
    // Linux 5.16 began to tell.
    let verified = verified.map_or("an unknown number of".to_owned(), |it| it.to_string());
    tracing::debug!(
        "eBPF program {name}: {verified} instructions verified, loaded in {took_ms:.1} ms"
    );
    let clone = |program: &AyaProgram| {
        program
            .fd()
            .and_then(|fd| fd.try_clone().map_err(ProgramError::IOError))
            .map_err(|error| Error::system("cannot use the loaded program", error))
    };
    Ok((clone(program)?, Runs::of(clone(program)?)))
}

/// `None` on kernels that can't tell names: then all of their symbols are read.
fn load_kernel_names(ebpf: &mut Ebpf) -> Option<KernelNames> {
    match KernelNames::load(ebpf) {
        Ok(names) => Some(names),
        Err(why) => {
            tracing::debug!("all of /proc/kallsyms is read, since names can't be asked for: {why}");
            None
        }
    }
}

pub(super) fn take_map<T>(ebpf: &mut Ebpf, name: &str) -> Result<T>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    let map = ebpf.take_map(name).ok_or_else(|| damaged(format!("no map `{name}`")))?;
    map.try_into().map_err(|error| Error::system(format!("cannot open the map `{name}`"), error))
}

pub(super) fn damaged(why: impl std::fmt::Display) -> Error {
    Error::system_with(
        "the embedded eBPF object is not the agent's own",
        why,
        "build both again: cargo xtask build-ebpf && cargo build --release -p profiler",
    )
}

fn explain(error: &EbpfError, memlock: rustix::io::Result<()>) -> Error {
    let next = match memlock {
        Err(memlock) if is_refused(error) => format!(
            "before Linux 5.11 maps need RLIMIT_MEMLOCK, which could not be raised ({memlock}): \
             `ulimit -l unlimited` as root"
        ),
        _ => "`profiler doctor` shows what this kernel and this user lack".into(),
    };
    Error::system_with("cannot load the eBPF object", sources(error), next)
}

/// Whether the kernel refused it with EPERM, which is also what it says of too little memory to lock.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut chain = std::iter::successors(Some(error), |error| error.source());
    chain.any(|it| {
        let error = it.downcast_ref::<io::Error>();
        error.is_some_and(|it| it.kind() == io::ErrorKind::PermissionDenied)
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use aya::maps::MapError;

    #[test]
    fn locked_memory_is_to_blame_only_where_the_kernel_refuses() {
        let error = |kind: io::ErrorKind| {
            EbpfError::from(MapError::CreateError { name: "RULE".into(), io_error: kind.into() })
        };
        let advice =
            |kind, memlock| explain(&error(kind), memlock).advice().unwrap_or_default().to_owned();
        let (refused, other) = (io::ErrorKind::PermissionDenied, io::ErrorKind::InvalidData);
        let failed = Err(rustix::io::Errno::PERM);
        assert!(advice(refused, failed).contains("ulimit -l"));
        for text in [advice(refused, Ok(())), advice(other, failed)] {
            assert!(text.contains("`profiler doctor`") && !text.contains("ulimit"), "{text}");
        }
    }
}
