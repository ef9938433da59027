//! What was typed. Parsing does no I/O; what it means is `config`'s matter.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    perf::{cpus::CpuList, event::EventSpec},
    units,
};

const EXAMPLES: &str = "\
Examples:
  profiler                          stream the stacks of the whole machine
  profiler -d 10 -f folded -o out   ten seconds, one line a stack, for flamegraph.pl
  profiler -p 812 -F 999 --lines    one process, finely, with source lines
  profiler -d 10 --top 20           the twenty hottest functions
  profiler -f json | jq .comm       one JSON object a sample
  profiler doctor                   what this kernel and this user can do
  profiler unwind-info FILE         how the stacks of a program can be walked

Exit code: 0 done, 1 the machine refused, 2 the command line makes no sense, 3 samples were lost
under --strict.";

/// Sample the stacks of a whole Linux machine.
///
/// Opens one sampling event on every online CPU, takes the kernel and the user stack of whatever runs
/// there in eBPF, and prints them with names until Ctrl-C. At the end it accounts, on standard error,
/// for every sample.
#[derive(Debug, Parser)]
#[command(name = "profiler", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Another job than sampling.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The options of sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Write the man page or a shell completion to standard output.
    #[arg(long, value_name = "WHAT", hide = true)]
    pub generate: Option<Generate>,
    /// Say more on standard error: each CPU's account where there are many, which files lack names, and what
    /// the unwind tables take; twice and three times, for those who debug it.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
}

/// Another job than sampling.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what this kernel, machine and user can do, and how to fix what is missing.
    ///
    /// Exit code 0 when the profiler can run, 1 when it can't.
    Doctor {
        /// Print JSON in place of the table.
        #[arg(long)]
        json: bool,
    },
    /// Show how the stacks of a program or library can be walked without frame pointers.
    ///
    /// Exit code 0 when it says where its frames are, 1 when it doesn't.
    UnwindInfo {
        /// The program or library.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Show the rule at this address only, as objdump and readelf print it.
        #[arg(long, value_name = "PC", value_parser = units::parse_address)]
        at: Option<u64>,
    },
}

/// How to sample, and what to print.
#[derive(Debug, Args)]
pub struct SamplingArgs {
    /// Samples a second on each CPU [default: 99].
    #[arg(short = 'F', long, value_name = "HZ", value_parser = units::parse_positive)]
    pub frequency: Option<u64>,
    /// One sample every PERIOD events, in place of a frequency.
    #[arg(short = 'c', long, value_name = "PERIOD", conflicts_with = "frequency",
          value_parser = units::parse_positive)]
    pub period: Option<u64>,
    /// The kernel's generic event to sample, such as cycles, instructions, cpu-clock, page-faults
    /// [default: cycles, or cpu-clock where the machine has no PMU].
    #[arg(short, long, value_name = "EVENT")]
    pub event: Option<EventSpec>,
    /// Stop after this long: 10, 10s, 500ms, 2m, 1h.
    #[arg(short, long, value_name = "TIME", value_parser = units::parse_duration)]
    pub duration: Option<std::time::Duration>,
    /// Only this process; may be given more than once.
    #[arg(short, long = "pid", value_name = "PID", value_parser = units::parse_pid)]
    pub pids: Vec<u32>,
    /// Only these CPUs, as in 0-3,7.
    #[arg(short = 'C', long = "cpu", value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Include the idle task (pid 0).
    #[arg(long)]
    pub idle: bool,
    /// Take user stacks only, which leaves the kernel's frames out.
    #[arg(long, conflicts_with = "kernel_only")]
    pub user_only: bool,
    /// Take kernel stacks only, which leaves the user's frames out.
    #[arg(long)]
    pub kernel_only: bool,
    /// How user stacks are walked [default: auto, or fp where the kernel can't].
    #[arg(long, value_enum, value_name = "HOW")]
    pub call_graph: Option<CallGraph>,
    /// Resolve source lines and inlined functions from debug info: slower, and takes more memory.
    #[arg(long)]
    pub lines: bool,
    /// What to print.
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Print the N hottest functions at the end, in place of a format.
    #[arg(long, value_name = "N", conflicts_with = "format",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub top: Option<u32>,
    /// Write to this file in place of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Size of the ring buffer between kernel and agent, as in 8M; rounded up to a power of two
    /// [default: 512K a CPU, at least 4M].
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub buffer_size: Option<u64>,
    /// How many distinct stacks folded and --top keep; what comes beyond is counted as one.
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_stacks: u32,
    /// Download the debug files of stripped programs from the servers in DEBUGINFOD_URLS.
    #[arg(long)]
    pub debuginfod: bool,
    /// Say with each sample who its process is: command line, parent, cgroup, container, pod and
    /// systemd unit. Needs JSON.
    #[arg(long)]
    pub metadata: bool,
    /// How many processes are remembered, with what they have mapped; beyond, those that have ended
    /// or were not sampled for longest are forgotten.
    #[arg(long, value_name = "N", default_value_t = 32_768,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_processes: u32,
    /// How much memory the symbols and debug info of files may take, as in 256M.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = units::parse_bytes)]
    pub symbol_cache: u64,
    /// How much of the kernel's memory may be taken to walk user stacks by unwind information, as in
    /// 64M; beyond, tables of files that were not looked at for longest go.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = units::parse_bytes)]
    pub max_unwind_memory: u64,
    /// End with exit code 3 if any sample was lost.
    #[arg(long)]
    pub strict: bool,
    /// Show what the eBPF program logs: each loss, and with -v each sample. Slow.
    #[arg(long)]
    pub bpf_log: bool,
}

/// How user stacks are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CallGraph {
    /// By unwind information where a file has it, else by frame pointers.
    Auto,
    /// By frame pointers only.
    Fp,
    /// By unwind information only.
    Dwarf,
    /// Not at all: the sampled address is all of the stack, also in the kernel.
    None,
}

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One block a sample, as they come.
    Text,
    /// One JSON object a sample, as they come, and a summary.
    Json,
    /// One line a distinct stack with its count, at the end.
    Folded,
}

/// What `--generate` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Generate {
    /// A man page in roff.
    Man,
    /// A completion for bash.
    CompleteBash,
    /// A completion for fish.
    CompleteFish,
    /// A completion for zsh.
    CompleteZsh,
}

impl Generate {
    /// Writes it.
    pub fn write(self, to: &mut dyn std::io::Write) -> std::io::Result<()> {
        use clap::CommandFactory as _;
        use clap_complete::{Shell, generate};
        let mut command = Cli::command();
        let shell = match self {
            Self::Man => return clap_mangen::Man::new(command).render(to),
            Self::CompleteBash => Shell::Bash,
            Self::CompleteFish => Shell::Fish,
            Self::CompleteZsh => Shell::Zsh,
        };
        let mut text = Vec::new();
        generate(shell, &mut command, "profiler", &mut text);
        to.write_all(&text)
    }
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
    fn generates_what_it_parses() {
        for what in Generate::value_variants() {
            let mut text = Vec::new();
            what.write(&mut text).unwrap();
            assert!(String::from_utf8(text).unwrap().contains("buffer"), "{what:?}");
        }
    }
}
