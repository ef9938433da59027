//! The command line of `convert`.

use std::path::PathBuf;

use clap::Args;
use profiler_profile::export::format::Format;

use super::{formats, report::FilterArgs};

pub(super) const EXAMPLES: &str = "Examples:
  profiler convert profile.pb.gz flame.html a page with a flame graph
  profiler convert a.folded a.pb.gz         for `go tool pprof`
  profiler convert --focus parse profile.pb.gz parse.svg
                                            only the stacks that parse is on";

/// What to read, and what to write of it.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The profile, in pprof or folded; `-` is standard input.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The file to write; its extension says the format. `-` is standard output.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// The format, whatever the file is called.
    #[arg(short, long, value_parser = formats())]
    pub format: Option<&'static Format>,
    /// Which stacks to write.
    #[command(flatten)]
    pub filter: FilterArgs,
}
