//! The command line of `agent`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;

use super::{GENERAL, OUTPUT, SamplingArgs, SendingArgs, serve::parse_listen};
use crate::{units, windows::folder};

pub(super) const EXAMPLES: &str = "Examples:
  profiler agent                            the whole machine, into /var/lib/profiler
  profiler agent --keep 1d -F 49            for a day, at a higher rate
  profiler agent --otlp http://gateway:4318 to an OpenTelemetry Collector, too
  profiler report --from '10 min ago'       what it has sampled since then";

/// What its rate is where nobody says anything else is built into the settings.
pub(super) const FREQUENCY: &str = "Samples per second on each CPU, or `max` [default: 19]";

/// Where it tells how it is by default.
const PORT: u16 = 7718;

/// How to sample, and what becomes of that.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Write windows to this folder, which is made for root only; to none, if stores are sent them.
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
    /// Serve metrics and health at this address, or none [default: 127.0.0.1:7718].
    ///
    /// A port alone is one of this machine; 0 is any that is free, and told. What there is: /metrics, /healthz, /readyz, and for root and the user who
    /// typed sudo /debug/pprof/profile?seconds=30&pid=812.
    #[arg(long, value_name = "ADDRESS:PORT|none", value_parser = Listen::parse, default_value = "127.0.0.1:7718",
          hide_default_value = true, help_heading = OUTPUT)]
    pub listen: Listen,
    /// Let other machines connect, if --listen is such an address. They get no profiles.
    #[arg(long, help_heading = OUTPUT)]
    pub allow_remote: bool,
    /// Read settings from a file: TOML, in which each option is a key. What is typed comes first.
    #[arg(long, value_name = "FILE", help_heading = GENERAL)]
    pub config: Option<PathBuf>,
    /// Print all settings as such a file, and exit.
    #[arg(long, help_heading = GENERAL)]
    pub print_config: bool,
    /// Stores to send windows to.
    #[command(flatten)]
    pub sending: SendingArgs,
    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Where to listen, if anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

impl Listen {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        parse_listen(text, PORT).map(|it| Self(Some(it))).map_err(|why| format!("{why}, nor none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_can_be_off() {
        assert_eq!(Listen::parse("none"), Ok(Listen(None)));
        assert_eq!(Listen::parse("::1"), Ok(Listen(Some("[::1]:7718".parse().unwrap()))));
        assert!(Listen::parse("nowhere").unwrap_err().contains("127.0.0.1:7718"));
    }
}
