//! The command line of `report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use profiler_profile::{import::Filter, report::table};
use regex::Regex;

use crate::{moment::Moment, units};

pub(super) const EXAMPLES: &str = "Examples:
  profiler report                           the hottest functions
  profiler report --tree --focus parse      who calls `parse`, and what that calls
  profiler report --by process a.folded     processes by their share
  profiler report --from '10 min ago'       what the agent has sampled since then";

/// What to read, and what to show of it.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The profile; `-` is standard input [default: profile.pb.gz]. With --from or --to the folder that `profiler agent`
    /// writes to [default: /var/lib/profiler].
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Show what the agent has sampled since this time: '10 min ago', 14:30, '2026-11-24 14:30', or RFC 3339 [default:
    /// the oldest that there is].
    ///
    /// Windows that overlap the time count whole.
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    pub from: Option<Moment>,
    /// Up to this time [default: now].
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    pub to: Option<Moment>,
    /// Show the profile in a browser, until Ctrl-C.
    ///
    /// The page is served to this machine only, under an address that nobody can guess. Over ssh, or where there is no
    /// screen, the address is printed, and how to get there.
    #[arg(long, conflicts_with_all = ["by", "flat", "tree", "top", "focus", "ignore"])]
    pub open: bool,
    /// What the rows of the table stand for.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "function")]
    pub by: By,
    /// Show a table, which is the default.
    #[arg(long, conflicts_with = "tree", hide_short_help = true)]
    pub flat: bool,
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
    /// Keep only stacks of this service.
    ///
    /// `--by service` shows which there are.
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
}

impl FilterArgs {
    /// The filter.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter {
            focus: self.focus.clone(),
            ignore: self.ignore.clone(),
            service: self.service.clone(),
        }
    }
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
    /// Services, where they were recorded: in pprof they are.
    Service,
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
            By::Service => Self::Service,
        }
    }
}
