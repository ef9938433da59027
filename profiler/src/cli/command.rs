//! A command that is started for a run.

use std::ffi::OsString;

use clap::Args;

/// The command, and whose it is.
#[derive(Debug, Default, Args)]
pub struct CommandArgs {
    /// Run the command as root under sudo, too. By default it runs as the user who typed sudo.
    #[arg(long, requires = "command", help_heading = "Command", hide_short_help = true)]
    pub as_root: bool,
    /// Start this command, and sample it and its descendants until it exits.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pids", "tids"], group = "followed", num_args = 1..,
          help_heading = "Command")]
    pub command: Vec<OsString>,
}
