//! The command line of what `agent` sends to stores.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::{
    units,
    windows::remote::{Header, Url},
};

const SENDING: &str = "Sending";

/// Stores to send windows to, and how.
#[derive(Debug, Args)]
pub struct SendingArgs {
    /// Send windows as OTLP profiles by HTTP, as to an OpenTelemetry Collector: http://localhost:4318.
    ///
    /// Without a path, that is /v1development/profiles. It takes the profiles of OTLP 1.10 and later.
    #[arg(long, value_name = "URL", help_heading = SENDING)]
    pub otlp: Option<Url>,
    /// Send windows to Pyroscope: http://localhost:4040.
    #[arg(long, value_name = "URL", help_heading = SENDING)]
    pub pyroscope: Option<Url>,
    /// Send windows to Parca: http://localhost:7070.
    #[arg(long, value_name = "URL", help_heading = SENDING)]
    pub parca: Option<Url>,
    /// Send a header with each request of --otlp; a secret from a file or a variable: 'Authorization=Bearer @FILE', 'X-Token=$NAME'.
    ///
    /// A last word that begins with @ is a file, read for each request; one that begins with $ is an environment variable. Behind
    /// Basic, these hold user:password. Headers that are secrets are taken in no other way.
    #[arg(long, value_name = "NAME=VALUE", help_heading = SENDING)]
    pub otlp_header: Vec<Header>,
    /// The same for --pyroscope: X-Scope-OrgID=TENANT.
    #[arg(long, value_name = "NAME=VALUE", help_heading = SENDING)]
    pub pyroscope_header: Vec<Header>,
    /// The same for --parca.
    #[arg(long, value_name = "NAME=VALUE", help_heading = SENDING)]
    pub parca_header: Vec<Header>,
    /// Add a label to all that is sent: region=eu.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label, help_heading = SENDING)]
    pub label: Vec<(String, String)>,
    /// What this machine is called in stores [default: its host name].
    #[arg(long, value_name = "NAME", help_heading = SENDING)]
    pub host_name: Option<String>,
    /// Trust certificates of stores that are signed by one of these (PEM), in place of the authorities that are built in.
    #[arg(long, value_name = "FILE", help_heading = SENDING)]
    pub ca_file: Option<PathBuf>,
    /// Show this certificate (PEM) to stores.
    #[arg(long, value_name = "FILE", help_heading = SENDING)]
    pub client_cert: Option<PathBuf>,
    /// The private key of --client-cert (PEM).
    #[arg(long, value_name = "FILE", help_heading = SENDING)]
    pub client_key: Option<PathBuf>,
    /// Give a request up after this time, at most 8 s, and try it again later.
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, default_value = "5", help_heading = SENDING)]
    pub send_timeout: Duration,
    /// Split what is larger than this, before it is packed, into several requests.
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes, default_value = "4M", help_heading = SENDING)]
    pub max_request: u64,
    /// Keep what is not sent yet in this folder [default: spool, in /var/lib/profiler or --folder].
    #[arg(long, value_name = "FOLDER", help_heading = SENDING)]
    pub spool: Option<PathBuf>,
    /// Drop the oldest of that where a store's takes more.
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes, default_value = "256M", help_heading = SENDING)]
    pub spool_bytes: u64,
}

/// `NAME=VALUE`, of a name that each store can have a label of.
fn parse_label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("not NAME=VALUE")?;
    let mut chars = name.chars();
    let begins = chars.next().is_some_and(|it| it.is_ascii_alphabetic());
    if !begins || !chars.all(|it| it.is_ascii_alphanumeric() || matches!(it, '_' | '.')) {
        return Err(
            "a label's name has letters, digits, _ and . only, and begins with a letter".into()
        );
    }
    Ok((name.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_a_name_that_stores_take() {
        assert_eq!(parse_label("a.b_1=x=y"), Ok(("a.b_1".into(), "x=y".into())));
        for wrong in ["a", "=b", "__name__=x", "a-b=c", "1a=b"] {
            assert!(parse_label(wrong).is_err(), "{wrong}");
        }
    }
}
