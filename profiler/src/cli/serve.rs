//! The command line of `serve`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use clap::Args;

use super::{OUTPUT, SamplingArgs};
use crate::units;

pub(super) const EXAMPLES: &str = "Examples:
  profiler serve                            print an address to open in a browser
  profiler serve --open -p 812              open it, and sample one process
  profiler serve --listen 0.0.0.0:7717 --allow-remote
                                            for other machines, in plain text";

/// Where a page is served by default.
const PORT: u16 = 7717;

/// How to sample, and where to show it.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Serve the page at this address [default: 127.0.0.1:7717].
    ///
    /// A port alone is one of this machine; 0 is any that is free.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_own, default_value = "127.0.0.1:7717",
          hide_default_value = true, help_heading = OUTPUT)]
    pub listen: SocketAddr,
    /// Let other machines connect, if --listen is such an address.
    ///
    /// What they see is not encrypted, nor is the token: in a network that you don't trust, forward the port by ssh.
    #[arg(long, help_heading = OUTPUT)]
    pub allow_remote: bool,
    /// Open the page in a browser, as the user who typed sudo.
    #[arg(long, help_heading = OUTPUT)]
    pub open: bool,
    /// Show what was sampled in this time before now: 10 (seconds), 500ms, 2m [default: 10].
    ///
    /// The page also shows all since the start, and any range of the last 15 minutes. Where --max-memory does not suffice
    /// for those, it is a shorter time, and the page says so.
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, default_value = "10", hide_default_value = true,
          help_heading = OUTPUT)]
    pub window: Duration,
    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

fn parse_own(text: &str) -> Result<SocketAddr, String> {
    parse_listen(text, PORT)
}

/// An address with a port, or one of both.
pub(super) fn parse_listen(text: &str, default_port: u16) -> Result<SocketAddr, String> {
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if let Ok(port) = text.parse() {
        return Ok(local(port));
    }
    if let Ok(address) = text.parse() {
        return Ok(SocketAddr::new(address, default_port));
    }
    let of_name = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()).map(local);
    of_name.or_else(|| text.parse().ok()).ok_or_else(|| {
        format!(
            "not an address with a port, such as 127.0.0.1:{default_port} or [::1]:{default_port}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_or_the_default() {
        for (text, address) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("8080", "127.0.0.1:8080"),
            ("localhost:1", "127.0.0.1:1"),
            ("0.0.0.0", "0.0.0.0:7717"),
            ("::1", "[::1]:7717"),
            ("[::1]:5", "[::1]:5"),
        ] {
            assert_eq!(parse_own(text), Ok(address.parse().unwrap()), "{text}");
        }
        for bad in ["", "box", "box:80", "1.2.3:80", "127.0.0.1:99999", "localhost", ":80"] {
            assert!(parse_own(bad).is_err(), "{bad}");
        }
    }
}
