//! The command line of `record`.

use std::path::PathBuf;

use clap::Args;
use profiler_profile::export::format::Format;

use super::{CommandArgs, OUTPUT, SamplingArgs, formats};

pub(super) const EXAMPLES: &str = "Examples:
  profiler record -d 10                     ten seconds of the whole machine
  profiler record -o out.html -- make -j8   a command with all that it starts
  profiler record -p 812 -o a.pb.gz -o a.folded
                                            a process until Ctrl-C, two files";

/// How to sample, and which files to write.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Write the profile to this file; its extension says the format [default: profile.pb.gz].
    ///
    /// Can be given several times. `-` is standard output.
    #[arg(short, long = "output", value_name = "FILE", help_heading = OUTPUT)]
    pub outputs: Vec<PathBuf>,
    /// The format, whatever the files are called.
    #[arg(short, long, value_parser = formats(), help_heading = OUTPUT)]
    pub format: Option<&'static Format>,
    /// Show the profile in a browser at the end, until Ctrl-C.
    ///
    /// The page is served to this machine only, under an address that nobody can guess, by a process of the user who
    /// typed sudo. Over ssh, or where there is no screen, the address is printed, and how to get there.
    #[arg(long, help_heading = OUTPUT)]
    pub open: bool,
    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// What to sample.
    #[command(flatten)]
    pub command: CommandArgs,
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
