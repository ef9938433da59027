//! How to sample: what `record` and a run without a subcommand share.

use std::{ffi::OsStr, path::PathBuf};

use clap::{
    Arg, Args, Command, ValueEnum,
    builder::{PossibleValue, TypedValueParser},
};
use profiler_events::Events;
use profiler_profile::{cpus::CpuList, export::root};

use super::hit_filters::HitFilters;
use crate::{
    filter::CommPattern,
    perf::event::Event,
    symbolize::interpreted::View,
    units::{self, Frequency, ProcessSpec},
};

/// The groups of options.
const SAMPLING: &str = "Sampling";
pub(super) const FILTERS: &str = "Filters";
const STACKS: &str = "Stacks and names";
const LIMITS: &str = "Limits and tuning";

/// How to sample.
#[derive(Debug, Default, Args)]
pub struct SamplingArgs {
    /// Stop after 10 (seconds), 500ms, 2m [default: Ctrl-C].
    #[arg(short, long, value_name = "TIME", value_parser = units::parse_duration, help_heading = SAMPLING)]
    pub duration: Option<std::time::Duration>,
    /// Samples per second on each CPU, or `max` [default: 99].
    ///
    /// `max` is what kernel.perf_event_max_sample_rate allows.
    #[arg(short = 'F', long, value_name = "HZ", value_parser = units::parse_frequency, help_heading = SAMPLING)]
    pub frequency: Option<Frequency>,
    /// Which hits of tracepoints are sampled. Before the events, whose places on the command line are gone once they are taken.
    #[command(flatten)]
    pub hit_filters: HitFilters,
    /// The event to sample, one of perf's: cycles, instructions, page-faults, … [default: cycles, or cpu-clock without
    /// a PMU].
    ///
    /// Any that perf names, with its modifiers, such as cycles:u, cpu/event=0x3c/, sched:sched_switch, kprobe:do_exit or
    /// uprobe:/bin/bash:readline; `profiler list` shows those of the machine. Of tracepoints and probes each hit is a
    /// sample. Up to four, with commas or by giving it more than once. Each is sampled and accounted for by itself.
    #[arg(short, long = "event", value_name = "EVENT", value_parser = EventNames, hide_possible_values = true,
          help_heading = SAMPLING)]
    pub events: Vec<Events>,
    /// Sample every PERIOD events instead of at a frequency; clocks count nanoseconds.
    #[arg(short = 'c', long, value_name = "PERIOD", conflicts_with = "frequency",
          value_parser = units::parse_positive, help_heading = SAMPLING, hide_short_help = true)]
    pub period: Option<u64>,
    /// Sample clocks at an even pace.
    ///
    /// By default periods vary by 5 to 10 %, so that a program in lockstep with the clock is not always sampled at the
    /// same place.
    #[arg(long, help_heading = SAMPLING, hide_short_help = true)]
    pub no_dither: bool,
    /// Sample only this process, by its id or name, with all its threads.
    ///
    /// A name is what /proc/PID/comm says, or that of the program's file. If several processes have it, they are listed;
    /// with --children it means the one that the others descend from. Several processes are given as 812,813, or by
    /// giving it more than once. The run ends when all of these processes have exited.
    #[arg(short, long = "pid", value_name = "PID|NAME", value_parser = units::parse_process, value_delimiter = ',',
          group = "followed", help_heading = FILTERS)]
    pub pids: Vec<ProcessSpec>,
    /// Also sample all descendants of the processes of -p.
    ///
    /// Both those that exist and new ones. The run ends when they have exited, too. Those of a command are always
    /// sampled.
    #[arg(long, requires = "followed", help_heading = FILTERS)]
    pub children: bool,
    /// Sample only this thread.
    ///
    /// Several are given as 812,813, or by giving it more than once. The run ends when all of them have exited.
    #[arg(short, long = "tid", value_name = "TID", value_parser = units::parse_tid, value_delimiter = ',',
          help_heading = FILTERS)]
    pub tids: Vec<u32>,
    /// Sample only threads whose name matches, such as 'nginx*'.
    ///
    /// `*`, `?` and `[a-z]` are as in a shell. Can be given several times.
    #[arg(long = "comm", value_name = "GLOB", help_heading = FILTERS)]
    pub comms: Vec<CommPattern>,
    /// Sample only what runs as this user, by name or id.
    ///
    /// The real user id counts. Can be given several times.
    #[arg(long = "uid", value_name = "USER", help_heading = FILTERS, hide_short_help = true)]
    pub users: Vec<String>,
    /// Sample only this container.
    ///
    /// By its name, of Docker, Podman, LXC or systemd-nspawn, or by the beginning of its id. Can be given several
    /// times.
    #[arg(long = "container", value_name = "NAME|ID", help_heading = FILTERS)]
    pub containers: Vec<String>,
    /// Sample only this systemd unit, such as nginx.service.
    ///
    /// Can be given several times.
    #[arg(long = "unit", value_name = "UNIT", help_heading = FILTERS)]
    pub units: Vec<String>,
    /// Sample only this cgroup and everything below it, such as /system.slice.
    ///
    /// Needs cgroups of version 2. Can be given several times.
    #[arg(long = "cgroup", value_name = "PATH", help_heading = FILTERS, hide_short_help = true)]
    pub cgroups: Vec<PathBuf>,
    /// Sample the whole machine, which is the default; with a command, while that runs.
    #[arg(short, long, conflicts_with_all = ["pids", "tids"], help_heading = FILTERS, hide_short_help = true)]
    pub all_cpus: bool,
    /// Sample only these CPUs, for example 0-3,7.
    #[arg(short = 'C', long = "cpu", value_name = "LIST", help_heading = FILTERS)]
    pub cpus: Option<CpuList>,
    /// Open events on the tasks of -p, -t or the command, not on CPUs with a filter.
    ///
    /// Nothing fires while others run. What the tasks start inherits their events. In return the kernel switches
    /// counters at each context switch of these tasks, and each thread takes a file for each CPU.
    #[arg(long, conflicts_with_all = ["all_cpus", "per_cgroup"], help_heading = FILTERS, hide_short_help = true)]
    pub per_task: bool,
    /// Open events on the cgroups of --cgroup, --container or --unit, not on CPUs with a filter.
    ///
    /// Nothing fires while others run. In return the kernel switches counters when a CPU goes from one cgroup to
    /// another.
    #[arg(long, help_heading = FILTERS, hide_short_help = true)]
    pub per_cgroup: bool,
    /// Keep only samples that hit kernel code.
    ///
    /// They have kernel stacks only.
    #[arg(long, help_heading = FILTERS)]
    pub kernel_only: bool,
    /// Include samples of the idle task (pid 0).
    #[arg(long, help_heading = FILTERS, hide_short_help = true)]
    pub idle: bool,
    /// Include samples of the profiler itself.
    #[arg(long, help_heading = FILTERS, hide_short_help = true)]
    pub include_self: bool,
    /// Record user stacks only, without kernel frames.
    #[arg(long, conflicts_with = "kernel_only", help_heading = STACKS)]
    pub user_only: bool,
    /// How to unwind user stacks [default: auto, or fp if the kernel lacks what auto needs].
    #[arg(long, value_enum, value_name = "HOW", help_heading = STACKS)]
    pub call_graph: Option<CallGraph>,
    /// Record stacks, which is the default.
    #[arg(short = 'g', conflicts_with = "call_graph", help_heading = STACKS, hide_short_help = true)]
    pub stacks: bool,
    /// How to show stacks of Python.
    #[arg(long, value_enum, value_name = "HOW", default_value = "merged", help_heading = STACKS, hide_short_help = true)]
    pub python: Python,
    /// Show source lines and inlined functions, from debug info. Slower, and takes more memory.
    #[arg(long, help_heading = STACKS)]
    pub lines: bool,
    /// Download debug files of stripped programs from the servers in DEBUGINFOD_URLS.
    #[arg(long, help_heading = STACKS)]
    pub debuginfod: bool,
    /// What stacks begin with in folded and svg.
    ///
    /// The other formats have places of their own for processes and threads.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "process", help_heading = STACKS,
          hide_short_help = true)]
    pub root: Root,
    /// Add to JSON who the process of each sample is.
    ///
    /// Its command line, parent, cgroup, container, pod and systemd unit. pprof and html have of that what they show,
    /// without being asked.
    #[arg(long, help_heading = STACKS, hide_short_help = true)]
    pub metadata: bool,
    /// Exit with code 3 if the profiler lost a sample; with =all, also if the kernel missed or throttled one.
    ///
    /// One missed period per event is tolerated: a run starts and ends in the middle of one.
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true,
          default_missing_value = "ours", help_heading = LIMITS, hide_short_help = true)]
    pub strict: Option<Strict>,
    /// Memory for the profile that is written at the end, for example 1G [default: 256M].
    ///
    /// It holds the distinct stacks of each thread. Samples with further stacks are counted by process. In a cgroup
    /// that limits memory the default is at most an eighth of that.
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes,
          help_heading = LIMITS, hide_short_help = true)]
    pub max_memory: Option<u64>,
    /// Maximum number of processes whose mappings are kept [default: 32768].
    ///
    /// Exited ones are evicted first, then the least recently sampled.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
          help_heading = LIMITS, hide_short_help = true)]
    pub max_processes: Option<u32>,
    /// Memory budget for symbols and debug info, for example 64M [default: 24M, 256M with --lines, less in a cgroup
    /// that limits memory].
    ///
    /// Least recently used files are evicted.
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes,
          help_heading = LIMITS, hide_short_help = true)]
    pub symbol_cache: Option<u64>,
    /// Kernel-memory budget for unwind tables, for example 64M [default: 256M].
    ///
    /// Least recently used tables are evicted. In a cgroup that limits memory the default is at most an eighth of that.
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes,
          help_heading = LIMITS, hide_short_help = true)]
    pub max_unwind_memory: Option<u64>,
    /// Size of the ring buffer that the kernel writes samples to, for example 8M; rounded up to a power of two
    /// [default: 512K per CPU, at least 4M].
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes,
          help_heading = LIMITS, hide_short_help = true)]
    pub buffer_size: Option<u64>,
    /// Run all threads at ordinary priority.
    ///
    /// By default those that must be in time have real-time priority for at most 10 to 30 % of each half second, and
    /// nice -15 beyond that.
    #[arg(long, help_heading = LIMITS, hide_short_help = true)]
    pub no_realtime: bool,
    /// Print the eBPF program's log: every lost sample, and with -v every sample. Slow.
    #[arg(long, help_heading = LIMITS, hide_short_help = true)]
    pub bpf_log: bool,
}

/// Reads an event. Shells complete their names, and what is wrong with one it says itself.
#[derive(Clone)]
pub(super) struct EventNames;

impl TypedValueParser for EventNames {
    type Value = Events;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Events, clap::Error> {
        profiler_events::parse.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        Some(Box::new(Event::names().map(PossibleValue::new)))
    }
}

/// What stacks begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Root {
    /// The name of the process: all of one name are one tower.
    #[default]
    Process,
    /// The process, by name and id.
    Pid,
    /// The process and the thread, both by name and id.
    Thread,
}

impl From<Root> for root::Root {
    fn from(root: Root) -> Self {
        match root {
            Root::Process => Self::Process,
            Root::Pid => Self::Pid,
            Root::Thread => Self::Thread,
        }
    }
}

/// Which losses `--strict` does not tolerate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strict {
    /// What the profiler itself lost: ring full, ring contended, scratch busy, agent behind, undelivered.
    Ours,
    /// Also what the kernel missed or throttled, apart from one period per event.
    All,
}

/// How user stacks are unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CallGraph {
    /// Unwind tables if a file has them, else frame pointers.
    Auto,
    /// Frame pointers only.
    Fp,
    /// Unwind tables only.
    Dwarf,
    /// No unwinding: only the sampled address, for kernel stacks, too.
    None,
}

/// How stacks of Python are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Python {
    /// Only native frames, with those of the interpreter.
    Native,
    /// Python functions in place of the interpreter's evaluator, between native frames.
    #[default]
    Merged,
    /// Only Python functions where Python runs.
    Only,
}

impl From<Python> for View {
    fn from(python: Python) -> Self {
        match python {
            Python::Native => Self::Native,
            Python::Merged => Self::Merged,
            Python::Only => Self::Only,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser as _;

    #[test]
    fn what_perf_takes_is_taken() {
        let parsed = Cli::try_parse_from(["profiler", "-g", "-p", "812,813", "-F", "max"]).unwrap();
        let SamplingArgs { pids, frequency, .. } = parsed.stream.sampling;
        let expected = vec![ProcessSpec::Pid(812), ProcessSpec::Pid(813)];
        assert_eq!((pids, frequency), (expected, Some(Frequency::Max)));
        assert!(Cli::try_parse_from(["profiler", "-a"]).is_ok());
        for against in
            [&["profiler", "-a", "-p", "1"][..], &["profiler", "-g", "--call-graph", "none"]]
        {
            assert!(Cli::try_parse_from(against).is_err(), "{against:?}");
        }
    }
}
