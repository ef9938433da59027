//! What was typed. Parsing does no I/O; what it means is `config`'s matter.

mod agent;
mod command;
mod convert;
mod diff;
mod hit_filters;
mod list;
mod record;
mod report;
mod sampling;
mod sending;
mod serve;
pub mod settings;
mod stat;
mod stream;
mod top;
mod usage;

use std::path::PathBuf;

use clap::{
    Parser, Subcommand,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use clap_complete::Shell;
use profiler_profile::export::format::{FORMATS, Format};

pub use self::{
    agent::AgentArgs,
    command::CommandArgs,
    convert::ConvertArgs,
    diff::DiffArgs,
    hit_filters::{HitFilters, TypedFilter},
    list::ListArgs,
    record::RecordArgs,
    report::{By, FilterArgs, ReportArgs},
    sampling::{CallGraph, Root, SamplingArgs, Strict},
    sending::SendingArgs,
    serve::ServeArgs,
    stat::StatArgs,
    stream::StreamArgs,
    top::TopArgs,
    usage::{help_of, one_line},
};
use crate::units;

/// Help in which the examples stand where they are seen: below the usage.
const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}{all-args}{after-help}";

/// The groups of options that commands share.
const OUTPUT: &str = "Output";
const GENERAL: &str = "General";

const EXAMPLES: &str = "Examples:
  profiler record -d 10           ten seconds of the whole machine, into a file
  profiler report                 what that file shows; viewers show more
  profiler top                    what is hot now, on a full screen
  profiler record -- make         a command with all that it starts
  profiler -p 812                 stream the stacks of a process";

const EXIT_CODES: &str = "\
Exit code: 0 done, 1 the kernel refused or writing failed, 2 wrong usage, 3 samples were lost and
--strict was given, 4 a condition of diff holds, 130 interrupted twice.";

/// Sample the stacks of a whole Linux machine.
///
/// Samples every online CPU, records the kernel and the user stack of whatever runs there, and prints
/// them with function names until Ctrl-C. At the end it accounts for every sample on standard error;
/// SIGUSR1 prints that account while it runs.
#[derive(Debug, Parser)]
#[command(name = "profiler", version, args_conflicts_with_subcommands = true, help_template = TEMPLATE,
          before_help = EXAMPLES, after_long_help = EXIT_CODES, disable_help_flag = true,
          disable_version_flag = true)]
pub struct Cli {
    /// What to do instead of sampling.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What to do without a subcommand.
    #[command(flatten)]
    pub stream: StreamArgs,
    /// Print more to standard error at the end; -vv and -vvv log what the profiler does.
    ///
    /// The account of every CPU, which files lack symbols, unwind tables, and memory by cache.
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = GENERAL)]
    pub verbose: u8,
    /// Print nothing to standard error but errors and losses.
    ///
    /// No notices, no status, and no account at the end, unless the profiler lost samples, or with --strict=all the
    /// kernel. Exit codes are the same.
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = GENERAL)]
    pub quiet: bool,
    /// Print help: the options that most need, or all by `--help`.
    #[arg(short, long, action = clap::ArgAction::Help, global = true, help_heading = GENERAL)]
    pub help: Option<bool>,
    /// Print the version.
    #[arg(short = 'V', long, action = clap::ArgAction::Version, help_heading = GENERAL)]
    pub version: Option<bool>,
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
    #[command(help_template = TEMPLATE, before_help = record::EXAMPLES)]
    Record(Box<RecordArgs>),
    /// Show what is hot now, on a full screen.
    ///
    /// Functions, processes, callers, a flame graph, threads, and the processes that begin, over the last seconds, each by
    /// one key; `?` shows the keys.
    ///
    /// With a command, what it prints is under `L`; q ends it, too, and the exit code is the command's, as of `record`.
    #[command(help_template = TEMPLATE, before_help = top::EXAMPLES)]
    Top(Box<TopArgs>),
    /// Show what is hot now, in a browser.
    ///
    /// The page of `record -o profile.html`, which follows the run: the last seconds, all since the start, or a range of
    /// the timeline. The address is printed, and holds a token.
    #[command(help_template = TEMPLATE, before_help = serve::EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Sample all the time, and write a profile a minute.
    ///
    /// Each window of time is a file in pprof's format in a folder, the oldest of which are removed; `profiler report --from`
    /// shows what was sampled between two times. Ends by a signal, and writes the last window.
    #[command(help_template = TEMPLATE, before_help = agent::EXAMPLES,
              mut_arg("frequency", |it| it.help(agent::FREQUENCY)))]
    Agent(Box<AgentArgs>),
    /// Print what a recorded profile shows, as a table or a tree.
    ///
    /// The hottest functions, or a tree of calls.
    ///
    /// Reads pprof and folded stacks, whoever has written them. Needs no privileges.
    #[command(help_template = TEMPLATE, before_help = report::EXAMPLES)]
    Report(ReportArgs),
    /// Write a recorded profile in another format.
    ///
    /// Reads pprof and folded stacks, whoever has written them, and writes every format but that of the Firefox
    /// Profiler, which needs the time of each sample. Needs no privileges.
    #[command(help_template = TEMPLATE, before_help = convert::EXAMPLES)]
    Convert(ConvertArgs),
    /// Compare two recorded profiles.
    ///
    /// Shows what takes more or less time than it did, and what may be noise.
    ///
    /// A change counts where chance would give one as large in one of a hundred comparisons at most. Needs no
    /// privileges.
    #[command(help_template = TEMPLATE, before_help = diff::EXAMPLES)]
    Diff(DiffArgs),
    /// Count events of a command, a process or the machine.
    ///
    /// Counts until the command or the processes exit, for a time, or until Ctrl-C, and prints how often each event has
    /// happened, with the ratios that people read off such counts. Takes no samples, and needs no eBPF.
    ///
    /// Needs no privileges to count a command in user mode, unless kernel.perf_event_paranoid is above 2.
    ///
    /// With a command, the exit code is the command's, 128 + N if signal N ended it, 127 if there is no such
    /// command, and 126 if it can't be run.
    #[command(help_template = TEMPLATE, before_help = stat::EXAMPLES)]
    Stat(Box<StatArgs>),
    /// List the events that this machine has, for -e.
    ///
    /// By kind, with descriptions, from sysfs and tracefs. Needs no privileges, apart from tracefs.
    #[command(help_template = TEMPLATE, before_help = list::EXAMPLES)]
    List(ListArgs),
    /// Show whether the profiler can run here, and what to fix.
    ///
    /// Exit code 0 when the profiler can run, 1 when it can't.
    Doctor {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show how stacks of a program or library are unwound.
    ///
    /// Without frame pointers, that is: from its unwind information.
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

    /// The help of the profiler, and of each subcommand, short or long, as a terminal shows it.
    fn helps(long: bool) -> Vec<(String, String)> {
        let mut root = Cli::command().term_width(80);
        root.build();
        let all: Vec<clap::Command> = root.get_subcommands().cloned().collect();
        let shown = |mut it: clap::Command| {
            let help = if long { it.render_long_help() } else { it.render_help() };
            (it.get_name().to_owned(), help.to_string())
        };
        [root].into_iter().chain(all).map(shown).collect()
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_fits_a_terminal() {
        for (name, help) in helps(false).into_iter().chain(helps(true)) {
            let wide = help.lines().find(|line| line.chars().count() > 80);
            // A line of a shell is one line.
            assert!(wide.is_none_or(|line| line.contains(" | ")), "{name}: {wide:?}");
        }
    }

    #[test]
    fn short_help_is_what_most_need_and_long_help_is_all() {
        let (short, long) = (helps(false), helps(true));
        for (at, name, first) in [(0, "profiler", "profiler record -d 10"), (1, "record", "-d 10")]
        {
            let (short, long) = (&short[at].1, &long[at].1);
            assert_eq!(helps(false)[at].0, name);
            // The examples come before the options.
            let example = short.find(first).unwrap();
            assert!(example < short.find("--duration").unwrap(), "{short}");
            assert!(short.lines().count() <= 72, "{short}");
            for tuning in ["--symbol-cache", "--buffer-size", "--no-realtime", "--no-dither"] {
                assert!(!short.contains(tuning) && long.contains(tuning), "{tuning}: {name}");
            }
            for group in [OUTPUT, "Sampling", "Filters", "Stacks and names", GENERAL] {
                let heading = format!("\n{group}:\n");
                assert!(short.contains(&heading) && long.contains(&heading), "{group}: {name}");
            }
            let limits = "\nLimits and tuning:\n";
            assert!(!short.contains(limits) && long.contains(limits), "{name}");
            // Every option has its place.
            assert!(!long.contains("\nOptions:\n"), "{long}");
        }
    }

    #[test]
    fn subcommands_come_as_people_need_them() {
        let root = Cli::command();
        let names: Vec<&str> = root.get_subcommands().map(clap::Command::get_name).collect();
        let expected = [
            "record",
            "top",
            "serve",
            "agent",
            "report",
            "convert",
            "diff",
            "stat",
            "list",
            "doctor",
            "unwind-info",
            "completions",
            "man",
        ];
        assert_eq!(names, expected);
    }
}
