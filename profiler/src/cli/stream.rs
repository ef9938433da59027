//! The command line without a subcommand.

use std::path::PathBuf;

use clap::Args;
use profiler_profile::export::format::Format;

use super::{By, OUTPUT, SamplingArgs, formats};

/// How to sample, and what to print as samples come.
#[derive(Debug, Args)]
pub struct StreamArgs {
    /// Output format.
    #[arg(short, long, value_parser = formats(), default_value = <&Format>::default().name,
          help_heading = OUTPUT)]
    pub format: &'static Format,
    /// Print a table of the N hottest functions at the end, instead of samples.
    #[arg(long, value_name = "N", conflicts_with = "format",
          value_parser = clap::value_parser!(u32).range(1..), help_heading = OUTPUT)]
    pub top: Option<u32>,
    /// What the rows of that table stand for.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "function", requires = "top",
          help_heading = OUTPUT, hide_short_help = true)]
    pub by: By,
    /// Write to this file [default: -, standard output].
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,
    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}
