//! The command line of `diff`.

use std::path::PathBuf;

use clap::Args;
use profiler_profile::diff::condition::Condition;

pub(super) const EXAMPLES: &str = "Examples:
  profiler diff before.pb.gz after.pb.gz    what has changed
  profiler diff a.folded b.folded --fail-if 'total(parse) > +5%'
                                            for CI: exit code 4 if this holds
  profiler diff before.pb.gz after.pb.gz -o diff.html
                                            a flame graph of what has changed";

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
    /// Write the changes to this file.
    ///
    /// As a differential flame graph if its name ends in .svg or .html, or as folded stacks with both counts, for
    /// flamegraph.pl and inferno, if it ends in .folded.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
