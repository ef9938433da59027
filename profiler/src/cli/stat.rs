//! The command line of `stat`.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::Args;
use profiler_events::Events;
use profiler_profile::cpus::CpuList;

use super::{OUTPUT, sampling::EventNames};
use crate::units::{self, ProcessSpec};

pub(super) const EXAMPLES: &str = "Examples:
  profiler stat -- make -j8                 a command with all that it starts
  profiler stat -r 10 -- ./bench            ten times: the mean, and how sure it is
  profiler stat -e page-faults:u -p 812     one event of a process, until Ctrl-C
  profiler stat -a -d 10                    ten seconds of the whole machine
  profiler stat -I 1000 --json -p nginx     a JSON object per event and second";

/// The groups of options.
const COUNTING: &str = "Counting";
const TARGET: &str = "What is counted";

/// What to count, and how to print it.
#[derive(Debug, Default, Args)]
pub struct StatArgs {
    /// The event to count, one of perf's: cycles, page-faults, sched:sched_switch, … [default: CPU time, switches,
    /// migrations, page faults, and cycles, instructions, branches and branch misses].
    ///
    /// Several are given with commas or by giving it more than once. Those in braces, as {cycles,instructions}, are
    /// counted together: on the PMU at the same time or not at all. `profiler list` shows the events of the machine.
    #[arg(short, long = "event", value_name = "EVENT", value_parser = EventNames, hide_possible_values = true,
          help_heading = COUNTING)]
    pub events: Vec<Events>,
    /// Count only hits of tracepoints whose fields match, such as 'prev_pid == 812'.
    ///
    /// In the kernel's grammar: fields of the tracepoint, ==, !=, <, <=, >, >=, &, ~ for patterns, &&, || and
    /// parentheses. Applies to every tracepoint of the run.
    #[arg(long, value_name = "EXPR", requires = "events", help_heading = COUNTING)]
    pub filter: Option<String>,
    /// Stop after this time: 10 (seconds), 500ms, 2m, 1h [default: at Ctrl-C, or with what is counted].
    #[arg(short, long, value_name = "TIME", value_parser = units::parse_duration, help_heading = COUNTING)]
    pub duration: Option<Duration>,
    /// Print counts every MS milliseconds.
    #[arg(short = 'I', long, value_name = "MS", value_parser = units::parse_positive, help_heading = COUNTING)]
    pub interval: Option<u64>,
    /// Run the command N times, and print means and their standard deviation.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "command",
          conflicts_with_all = ["interval", "duration"], help_heading = COUNTING)]
    pub repeat: Option<u32>,
    /// Count this process, by its id or name, with all its threads and what they start.
    ///
    /// A name is what /proc/PID/comm says, or that of the program's file. Several processes are given as 812,813, or by
    /// giving it more than once. Counting ends when all of them have exited.
    #[arg(short, long = "pid", value_name = "PID|NAME", value_parser = units::parse_process, value_delimiter = ',',
          conflicts_with_all = ["command", "cpus", "cgroup", "all_cpus"], help_heading = TARGET)]
    pub pids: Vec<ProcessSpec>,
    /// Count this thread, and what it starts.
    #[arg(short, long = "tid", value_name = "TID", value_parser = units::parse_tid, value_delimiter = ',',
          conflicts_with_all = ["command", "cpus", "cgroup", "all_cpus"], help_heading = TARGET)]
    pub tids: Vec<u32>,
    /// Count whatever runs on these CPUs, for example 0-3,7.
    #[arg(short = 'C', long = "cpu", value_name = "LIST", help_heading = TARGET)]
    pub cpus: Option<CpuList>,
    /// Count what is in this cgroup or below it, such as /system.slice.
    ///
    /// Needs cgroups of version 2.
    #[arg(long, value_name = "PATH", help_heading = TARGET)]
    pub cgroup: Option<PathBuf>,
    /// Count the whole machine, which is the default; with a command, while that runs.
    #[arg(short, long, help_heading = TARGET)]
    pub all_cpus: bool,
    /// Write to this file; `-` is standard output [default: standard output; standard error with a command, which has
    /// standard output for itself].
    ///
    /// The file is replaced when all is counted.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,
    /// Print fields with this between them, in the order of perf's -x; \t is a tab.
    #[arg(short = 'x', long, value_name = "SEP", conflicts_with = "json", help_heading = OUTPUT)]
    pub field_separator: Option<String>,
    /// Print JSON, an object a line for each event.
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
    /// Run the command as root under sudo, too. By default it runs as the user who typed sudo.
    #[arg(long, requires = "command", help_heading = "Command")]
    pub as_root: bool,
    /// Start this command, and count it and its descendants until it exits.
    #[arg(last = true, value_name = "COMMAND", num_args = 1.., help_heading = "Command")]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::{Cli, Command, StatArgs};

    fn parse(arguments: &[&str]) -> Result<StatArgs, clap::Error> {
        match Cli::try_parse_from([&["profiler", "stat"], arguments].concat())?.command {
            Some(Command::Stat(args)) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_perf_takes_is_taken() {
        let args =
            parse(&["-e", "cycles,{faults,cs}", "-I", "100", "-x,", "-a", "--", "make", "-j"]);
        let args = args.unwrap();
        assert_eq!(args.events[0].to_string(), "cycles,{page-faults,context-switches}");
        assert_eq!((args.interval, args.field_separator.as_deref()), (Some(100), Some(",")));
        assert_eq!(args.command, ["make", "-j"]);
    }

    #[test]
    fn what_excludes_each_other_is_refused() {
        for against in [
            &["-p", "1", "--", "make"][..],
            &["-p", "1", "-a"],
            &["-t", "1", "-C", "0"],
            &["-p", "1", "--cgroup", "/"],
            &["-r", "3"],
            &["-r", "3", "-I", "100", "--", "make"],
            &["-r", "0", "--", "make"],
            &["-I", "0"],
            &["-x,", "--json"],
            &["--filter", "a == 1"],
            &["--as-root"],
        ] {
            assert!(parse(against).is_err(), "{against:?}");
        }
        assert!(parse(&["-C", "0", "--cgroup", "/"]).is_ok());
        assert!(parse(&["-p", "1", "-t", "2"]).is_ok());
    }
}
