//! What was typed. Parsing does no I/O; what it means is `config`'s matter.

mod diff;
mod record;
mod report;
mod sampling;
mod stream;
mod usage;

use std::path::PathBuf;

use clap::{
    Parser, Subcommand,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use clap_complete::Shell;
use profiler_profile::export::format::{FORMATS, Format};

pub use self::{
    diff::DiffArgs,
    record::RecordArgs,
    report::{By, ReportArgs},
    sampling::{CallGraph, SamplingArgs, Strict},
    stream::StreamArgs,
    usage::one_line,
};
use crate::units;

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
    #[command(after_help = record::EXAMPLES)]
    Record(Box<RecordArgs>),
    /// Print what a recorded profile shows: the hottest functions, or a tree of calls.
    ///
    /// Reads pprof and folded stacks, whoever has written them. Needs no privileges.
    #[command(after_help = report::EXAMPLES)]
    Report(ReportArgs),
    /// Compare two recorded profiles: what takes more or less time than it did, and what may be noise.
    ///
    /// A change counts where chance would give one as large in one of a hundred comparisons at most. Needs no
    /// privileges.
    #[command(after_help = diff::EXAMPLES)]
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

/// The formats by their names.
fn formats() -> impl TypedValueParser<Value = &'static Format> {
    let names = FORMATS.iter().map(|it| PossibleValue::new(it.name).help(it.help));
    // It is one of them.
    PossibleValuesParser::new(names).map(|name| Format::find(&name).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
