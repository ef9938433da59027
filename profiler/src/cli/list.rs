//! The command line of `list`.

use clap::Args;

pub(super) const EXAMPLES: &str = "Examples:
  profiler list                             everything
  profiler list fault                       what has `fault` in its name
  profiler list 'L1-*'                      names by a pattern
  profiler list --json | jq -r .name        one JSON object a line";

/// Which events to list, and how.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only names that match this pattern, or have this word in them.
    #[arg(value_name = "GLOB", default_value = "", hide_default_value = true)]
    pub pattern: String,
    /// Print JSON, an object a line.
    #[arg(long)]
    pub json: bool,
}
