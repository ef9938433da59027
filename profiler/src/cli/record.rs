//! The command line of `record`.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use profiler_profile::export::format::Format;

use super::{SamplingArgs, formats};

pub(super) const EXAMPLES: &str = "Examples:
  profiler record -d 10                     ten seconds of the whole machine, into profile.pb.gz
  profiler record -o out.folded -- make     a command with all that it starts
  profiler record -p 812 -o a.pb.gz -o a.folded
                                            one process until Ctrl-C, into two files";

/// How to sample, and which files to write.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Write the profile to this file; its extension says the format. Can be given several times. `-` is standard
    /// output [default: profile.pb.gz].
    #[arg(short, long = "output", value_name = "FILE")]
    pub outputs: Vec<PathBuf>,
    /// The format, whatever the files are called.
    #[arg(short, long, value_parser = formats())]
    pub format: Option<&'static Format>,
    /// Run the command as root under sudo, too. By default it runs as the user who typed sudo.
    #[arg(long, requires = "command")]
    pub as_root: bool,
    /// Start this command, and sample it and its descendants until it exits.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pids", group = "followed", num_args = 1..)]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::Cli;

    #[test]
    fn children_are_of_a_process_or_a_command() {
        let parse = |arguments: &[&str]| {
            Cli::try_parse_from([&["profiler", "record", "--children"], arguments].concat())
        };
        assert!(parse(&["--", "make"]).is_ok() && parse(&["-p", "812"]).is_ok());
        assert!(parse(&[]).is_err() && parse(&["-a"]).is_err());
        assert!(parse(&["-p", "812", "--", "make"]).is_err());
    }
}
