//! What was typed. Parsing does no I/O; what it means is `config`'s matter.

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use clap_complete::Shell;
use profiler_profile::{
    cpus::CpuList,
    diff::condition::Condition,
    export::format::{FORMATS, Format},
    import::Filter,
    report::table,
};

use regex::Regex;

use crate::{
    perf::event::EventSpec,
    units::{self, Frequency},
};

const EXAMPLES: &str = r#"Examples:
  profiler                          stream the stacks of the whole machine
  profiler -d 10 -f folded -o out   ten seconds, one line per stack, for flamegraph.pl
  profiler record -d 10             ten seconds into a file for viewers: profile.pb.gz
  profiler -p 812 -F 999 --lines    one process at 999 Hz, with source lines
  profiler -d 10 --top 20           the twenty hottest functions
  profiler -f json | jq 'select(.type == "sample").comm'
                                    one JSON object per sample
  profiler doctor                   whether it can run here, and what to fix
  profiler unwind-info FILE         how stacks of a program are unwound

Exit code: 0 done, 1 the kernel refused or writing failed, 2 wrong usage, 3 samples were lost and
--strict was given, 4 a condition of diff holds, 130 interrupted twice."#;

const RECORD_EXAMPLES: &str = "Examples:
  profiler record -d 10                     ten seconds of the whole machine, into profile.pb.gz
  profiler record -o out.folded -- make     a command with all that it starts
  profiler record -p 812 -o a.pb.gz -o a.folded
                                            one process until Ctrl-C, into two files";

const DIFF_EXAMPLES: &str = "Examples:
  profiler diff before.pb.gz after.pb.gz    what has changed
  profiler diff a.folded b.folded --fail-if 'total(parse) > +5%'
                                            for CI: exit code 4 if parse takes 5 % more
  profiler diff before.pb.gz after.pb.gz -o diff.html
                                            a flame graph of what has grown and what has shrunk";

const CONVERT_EXAMPLES: &str = "Examples:
  profiler convert profile.pb.gz flame.html a page with a flame graph
  profiler convert a.folded a.pb.gz         for `go tool pprof`
  profiler convert --focus parse profile.pb.gz parse.svg
                                            only the stacks that parse is on";

const REPORT_EXAMPLES: &str = "Examples:
  profiler report                           the hottest functions of profile.pb.gz
  profiler report --tree --focus parse      who calls what matches `parse`, and what that calls
  profiler report --by process a.folded     processes by their share";

/// Sample the stacks of a whole Linux machine.
///
/// Samples every online CPU, records the kernel and the user stack of whatever runs there, and prints
/// them with function names until Ctrl-C. At the end it accounts for every sample on standard error;
/// SIGUSR1 prints that account while it runs.
#[derive(Debug, Parser)]
#[command(name = "profiler", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do instead of sampling.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What to do without a subcommand.
    #[command(flatten)]
    pub stream: StreamArgs,
    /// Print more to standard error at the end: the account of every CPU, which files lack symbols, unwind
    /// tables, and memory by cache. -vv and -vvv log what the profiler does, to debug it.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
}

/// Another job than sampling.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Record a profile into files that viewers open.
    ///
    /// Samples until Ctrl-C, for a time, or while a command runs, and then writes the profile. A file is
    /// replaced when the profile is whole: whatever happens, it is the old one or the new one.
    ///
    /// With a command, the exit code is the command's, 128 + N if signal N ended it, 127 if there is no such
    /// command, and 126 if it can't be run.
    #[command(after_help = RECORD_EXAMPLES)]
    Record(Box<RecordArgs>),
    /// Print what a recorded profile shows: the hottest functions, or a tree of calls.
    ///
    /// Reads pprof and folded stacks, whoever has written them. Needs no privileges.
    #[command(after_help = REPORT_EXAMPLES)]
    Report(ReportArgs),
    /// Write a recorded profile in another format.
    ///
    /// Reads pprof and folded stacks, whoever has written them, and writes every format but that of the Firefox
    /// Profiler, which needs the time of each sample. Needs no privileges.
    #[command(after_help = CONVERT_EXAMPLES)]
    Convert(ConvertArgs),
    /// Compare two recorded profiles: what takes more or less time than it did, and what may be noise.
    ///
    /// A change counts where chance would give one as large in one of a hundred comparisons at most. Needs no
    /// privileges.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Show whether the profiler can run here, and how to fix what is missing.
    ///
    /// Exit code 0 when the profiler can run, 1 when it can't.
    Doctor {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show how stacks of a program or library are unwound without frame pointers.
    ///
    /// Exit code 0 when the file has unwind information, 1 when it has none.
    UnwindInfo {
        /// The program or library.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Show only the rule at this address, given as objdump and readelf print it.
        #[arg(long, value_name = "PC", value_parser = units::parse_address)]
        at: Option<u64>,
    },
    /// Print the completions of a shell.
    ///
    /// For example: profiler completions bash | sudo tee /etc/bash_completion.d/profiler
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the man page, in roff.
    ///
    /// To read it: profiler man | man -l -
    Man,
}

/// What to read, and what to show of it.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The profile; `-` is standard input.
    #[arg(value_name = "FILE", default_value = "profile.pb.gz")]
    pub file: PathBuf,
    /// What the rows of the table stand for.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "function")]
    pub by: By,
    /// Show a tree of calls, callers first, indented where it branches.
    #[arg(long, conflicts_with = "by")]
    pub tree: bool,
    /// Show so many rows at most; 0 shows all [default: 40, of a tree all].
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Which stacks to count.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Which stacks of a recorded profile are wanted.
#[derive(Debug, Args)]
pub struct FilterArgs {
    /// Keep only stacks with a function that matches this regular expression.
    #[arg(long, value_name = "REGEX", value_parser = units::parse_pattern)]
    focus: Option<Regex>,
    /// Leave out stacks with a function that matches this regular expression.
    #[arg(long, value_name = "REGEX", value_parser = units::parse_pattern)]
    ignore: Option<Regex>,
}

impl FilterArgs {
    /// The filter.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter { focus: self.focus.clone(), ignore: self.ignore.clone() }
    }
}

/// What to read, and what to write of it.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The profile, in pprof or folded; `-` is standard input.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The file to write; its extension says the format. `-` is standard output.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// The format, whatever the file is called.
    #[arg(short, long, value_parser = formats())]
    pub format: Option<&'static Format>,
    /// Which stacks to write.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// What to compare, and what to show of it.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The profile to compare with, in pprof or folded.
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,
    /// The profile to compare.
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,
    /// Compare shares of all that each profile has, for runs that differ in length.
    #[arg(long)]
    pub normalize: bool,
    /// Show so many rows at most; 0 shows all.
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top: usize,
    /// Also show functions whose change chance explains.
    #[arg(long)]
    pub noise: bool,
    /// Exit with code 4 if this holds beyond chance: total(REGEX) or self(REGEX), > or <, and a change in percent. Can
    /// be given several times.
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Vec<Condition>,
    /// Write the changes to this file: as a differential flame graph if its name ends in .svg or .html, or as folded
    /// stacks with both counts, for flamegraph.pl and inferno, if it ends in .folded.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What the rows of a table stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Functions.
    Function,
    /// Lines of source files, where they were recorded with --lines.
    Line,
    /// Programs and libraries.
    Module,
    /// Processes, by name.
    Process,
    /// Threads.
    Thread,
    /// Containers, where they were recorded: in pprof they are.
    Container,
}

impl From<By> for table::By {
    fn from(by: By) -> Self {
        match by {
            By::Function => Self::Function,
            By::Line => Self::Line,
            By::Module => Self::Module,
            By::Process => Self::Process,
            By::Thread => Self::Thread,
            By::Container => Self::Container,
        }
    }
}

/// How to sample, and what to print as samples come.
#[derive(Debug, Args)]
pub struct StreamArgs {
    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Output format.
    #[arg(short, long, value_parser = formats(), default_value = <&Format>::default().name)]
    pub format: &'static Format,
    /// Print a table of the N hottest functions at the end, instead of samples.
    #[arg(long, value_name = "N", conflicts_with = "format",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub top: Option<u32>,
    /// What the rows of that table stand for.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "function", requires = "top")]
    pub by: By,
    /// Write to this file instead of standard output; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// How to sample, and which files to write.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Write the profile to this file; its extension says the format. Can be given several times. `-` is standard
    /// output [default: profile.pb.gz].
    #[arg(short, long = "output", value_name = "FILE")]
    pub outputs: Vec<PathBuf>,
    /// The format, whatever the files are called.
    #[arg(short, long, value_parser = formats())]
    pub format: Option<&'static Format>,
    /// Run the command as root under sudo, too. By default it runs as the user who typed sudo.
    #[arg(long, requires = "command")]
    pub as_root: bool,
    /// Start this command, and sample it and its descendants until it exits.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pids", num_args = 1..)]
    pub command: Vec<OsString>,
}

/// How to sample.
#[derive(Debug, Default, Args)]
pub struct SamplingArgs {
    /// Samples per second on each CPU; `max` is what kernel.perf_event_max_sample_rate allows [default: 99].
    #[arg(short = 'F', long, value_name = "HZ", value_parser = units::parse_frequency)]
    pub frequency: Option<Frequency>,
    /// Sample every PERIOD events instead of at a frequency; clocks count nanoseconds.
    #[arg(short = 'c', long, value_name = "PERIOD", conflicts_with = "frequency",
          value_parser = units::parse_positive)]
    pub period: Option<u64>,
    /// Sample clocks at an even pace. By default periods vary by 5 to 10 %, so that a program in lockstep
    /// with the clock is not always sampled at the same place.
    #[arg(long)]
    pub no_dither: bool,
    /// The event to sample, one of perf's generic ones: cycles, instructions, cpu-clock, page-faults, …; can be
    /// given up to four times, and each event is sampled and accounted for by itself
    /// [default: cycles, or cpu-clock if the machine has no PMU].
    #[arg(short, long = "event", value_name = "EVENT")]
    pub events: Vec<EventSpec>,
    /// Stop after this time: 10 (seconds), 500ms, 2m, 1h [default: at Ctrl-C].
    #[arg(short, long, value_name = "TIME", value_parser = units::parse_duration)]
    pub duration: Option<std::time::Duration>,
    /// Sample only this process, with all its threads; several as 812,813, or by giving it more than once. The run
    /// ends when all of these processes have exited.
    #[arg(short, long = "pid", value_name = "PID", value_parser = units::parse_pid, value_delimiter = ',')]
    pub pids: Vec<u32>,
    /// Sample the whole machine, which is the default; with a command, while that runs.
    #[arg(short, long, conflicts_with = "pids", hide_short_help = true)]
    pub all_cpus: bool,
    /// Also sample all descendants of the processes of -p, existing and new ones. The run ends when they have
    /// exited, too.
    #[arg(long, requires = "pids")]
    pub children: bool,
    /// Sample only these CPUs, for example 0-3,7.
    #[arg(short = 'C', long = "cpu", value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Include samples of the idle task (pid 0).
    #[arg(long)]
    pub idle: bool,
    /// Include samples of the profiler itself.
    #[arg(long)]
    pub include_self: bool,
    /// Record user stacks only, without kernel frames.
    #[arg(long, conflicts_with = "kernel_only")]
    pub user_only: bool,
    /// Keep only samples that hit kernel code, with their kernel stacks.
    #[arg(long)]
    pub kernel_only: bool,
    /// How to unwind user stacks [default: auto, or fp if the kernel lacks what auto needs].
    #[arg(long, value_enum, value_name = "HOW")]
    pub call_graph: Option<CallGraph>,
    /// Record stacks, which is the default.
    #[arg(short = 'g', hide_short_help = true, conflicts_with = "call_graph")]
    pub stacks: bool,
    /// Show source lines and inlined functions, from debug info. Slower, and takes more memory.
    #[arg(long)]
    pub lines: bool,
    /// Size of the ring buffer that the kernel writes samples to, for example 8M; rounded up to a power
    /// of two [default: 512K per CPU, at least 4M].
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub buffer_size: Option<u64>,
    /// Memory for the profile that is written at the end, for example 1G: the distinct stacks of each thread. Samples
    /// with further stacks are counted by process. In a cgroup that limits memory the default is at most an eighth of
    /// that [default: 256M].
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub max_memory: Option<u64>,
    /// Download debug files of stripped programs from the servers in DEBUGINFOD_URLS.
    #[arg(long)]
    pub debuginfod: bool,
    /// Add to JSON the command line, parent, cgroup, container, pod and systemd unit of each sample's process. pprof
    /// and html have of that what they show, without being asked.
    #[arg(long)]
    pub metadata: bool,
    /// Maximum number of processes whose mappings are kept; exited ones are evicted first, then the least recently
    /// sampled [default: 32768].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_processes: Option<u32>,
    /// Memory budget for symbols and debug info, for example 64M; least recently used files are evicted
    /// [default: 24M, 256M with --lines, less in a cgroup that limits memory].
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub symbol_cache: Option<u64>,
    /// Kernel-memory budget for unwind tables, for example 64M; least recently used tables are evicted. In a
    /// cgroup that limits memory the default is at most an eighth of that [default: 256M].
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub max_unwind_memory: Option<u64>,
    /// Run all threads at ordinary priority. By default those that must be in time have real-time priority
    /// for at most 10 to 30 % of each half second, and nice -15 beyond that.
    #[arg(long)]
    pub no_realtime: bool,
    /// Exit with code 3 if the profiler lost a sample; with =all, also if the kernel missed or throttled
    /// one. One missed period per event is tolerated: a run starts and ends in the middle of one.
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true,
          default_missing_value = "ours")]
    pub strict: Option<Strict>,
    /// Print the eBPF program's log: every lost sample, and with -v every sample. Slow.
    #[arg(long)]
    pub bpf_log: bool,
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

/// The formats by their names.
fn formats() -> impl TypedValueParser<Value = &'static Format> {
    let names = FORMATS.iter().map(|it| PossibleValue::new(it.name).help(it.help));
    // It is one of them.
    PossibleValuesParser::new(names).map(|name| Format::find(&name).unwrap_or_default())
}

/// A message of clap in one line: the usage and the pointer to `--help` left out.
#[must_use]
pub fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let message = text.split("\n\nUsage:").next().unwrap_or(&text);
    let lines = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let line = lines.collect::<Vec<_>>().join("; ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_error_is_one_line() {
        for arguments in [
            &["profiler", "-F", "0"][..],
            &["profiler", "-F", "many"],
            &["profiler", "-F", "99", "-c", "1000"],
            &["profiler", "-e", "cycle"],
            &["profiler", "-C", "3-1"],
            &["profiler", "--strickt"],
            &["profiler", "-d", "soon"],
            &["profiler", "--children"],
        ] {
            let line = one_line(&Cli::try_parse_from(arguments).unwrap_err());
            assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
            assert!(!line.contains("Usage") && !line.contains("--help"), "{line:?}");
        }
    }

    #[test]
    fn an_unknown_event_names_the_near_ones() {
        let error = Cli::try_parse_from(["profiler", "-e", "cycels"]).unwrap_err();
        assert!(one_line(&error).contains("cycles"), "{error}");
    }

    #[test]
    fn what_perf_takes_is_taken() {
        let parsed = Cli::try_parse_from(["profiler", "-g", "-p", "812,813", "-F", "max"]).unwrap();
        let SamplingArgs { pids, frequency, .. } = parsed.stream.sampling;
        assert_eq!((pids, frequency), (vec![812, 813], Some(Frequency::Max)));
        assert!(Cli::try_parse_from(["profiler", "-a"]).is_ok());
        for against in
            [&["profiler", "-a", "-p", "1"][..], &["profiler", "-g", "--call-graph", "none"]]
        {
            assert!(Cli::try_parse_from(against).is_err(), "{against:?}");
        }
    }
}
