//! The command line of `agent`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{OUTPUT, SamplingArgs};
use crate::{units, windows::folder};

pub(super) const EXAMPLES: &str = "Examples:
  profiler agent                            the whole machine, into /var/lib/profiler
  profiler agent --keep 1d -F 49            for a day, at a higher rate
  profiler report --from '10 min ago'       what it has sampled since then";

/// How to sample, and what becomes of that.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Write windows to this folder, which is made for root only.
    #[arg(long, value_name = "FOLDER", default_value = folder::DEFAULT, help_heading = OUTPUT)]
    pub folder: PathBuf,
    /// Write a file for each such time: 60 (seconds), 5m.
    ///
    /// The first window is a random part of it, and each other is up to a twentieth longer or shorter, so that not all agents
    /// of a fleet write at one time.
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, default_value = "60", help_heading = OUTPUT)]
    pub window: Duration,
    /// Remove windows that are older.
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, default_value = "7d", help_heading = OUTPUT)]
    pub keep: Duration,
    /// Remove the oldest windows where all take more.
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes, default_value = "1G", help_heading = OUTPUT)]
    pub keep_bytes: u64,
    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}
