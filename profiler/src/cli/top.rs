//! The command line of `top`.

use std::time::Duration;

use clap::Args;

use super::{CommandArgs, OUTPUT, SamplingArgs};
use crate::units;

pub(super) const EXAMPLES: &str = "Examples:
  profiler top                              what is hot on this machine, now
  profiler top --window 60                  in the last minute
  profiler top -p 812 --children            a process and its descendants
  profiler top -- make -j8                  a command with all that it starts";

/// How to sample, and how much of it to show.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Show what was sampled in this time before now: 10 (seconds), 500ms, 2m [default: 10].
    ///
    /// `w` shows all since the start. Where --max-memory does not suffice, the window is shorter, and the screen says so.
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, default_value = "10", hide_default_value = true,
          help_heading = OUTPUT)]
    pub window: Duration,
    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// What to sample.
    #[command(flatten)]
    pub command: CommandArgs,
}
