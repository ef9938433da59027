//! The stores that the command line of `agent` names.

use std::path::Path;

use profiler_profile::export::push::Sender;

use crate::{
    cli::SendingArgs,
    error::{Error, Result},
    windows::{
        Destination,
        folder::DEFAULT,
        remote::{Connection, MAX_TIMEOUT, OTLP, PARCA, PYROSCOPE, Remote},
    },
};

/// No less is asked for of a store: a window of one stack has to fit.
const MIN_REQUEST: u64 = 16 << 10;

/// Each store that is named, with its part of the spool.
pub(super) fn open(args: &SendingArgs, folder: Option<&Path>) -> Result<Vec<Box<dyn Destination>>> {
    if args.max_request < MIN_REQUEST {
        return Err(Error::Usage("--max-request: at least 16K".into()));
    }
    if args.send_timeout > MAX_TIMEOUT {
        return Err(Error::Usage("--send-timeout: at most 8 s".into()));
    }
    // What was typed and what a file says are one by now.
    if args.client_cert.is_some() != args.client_key.is_some() {
        return Err(Error::Usage("--client-cert and --client-key: one needs the other".into()));
    }
    let named = rustix::system::uname();
    let host = args.host_name.clone();
    let sender = Sender {
        host: host.unwrap_or_else(|| named.nodename().to_string_lossy().into_owned()),
        labels: args.label.clone(),
        max_bytes: usize::try_from(args.max_request).unwrap_or(usize::MAX),
    };
    let connection = Connection {
        timeout: args.send_timeout,
        ca_file: args.ca_file.clone(),
        client: args.client_cert.clone().zip(args.client_key.clone()),
    };
    let beside = || folder.unwrap_or(Path::new(DEFAULT)).join("spool");
    let spool = args.spool.clone().unwrap_or_else(beside);
    let mut stores: Vec<Box<dyn Destination>> = Vec::new();
    for (store, url, headers) in [
        (&OTLP, &args.otlp, &args.otlp_header),
        (&PYROSCOPE, &args.pyroscope, &args.pyroscope_header),
        (&PARCA, &args.parca, &args.parca_header),
    ] {
        let Some(url) = url else {
            if headers.is_empty() {
                continue;
            }
            let name = store.name;
            return Err(Error::Usage(format!("--{name}-header: --{name} is not given")));
        };
        let spool = (&*spool, args.spool_bytes);
        let store = Remote::open(store, url, &connection, headers, sender.clone(), spool)?;
        stores.push(Box::new(store));
    }
    Ok(stores)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn refusal(arguments: &[&str]) -> Option<String> {
        let cli = Cli::try_parse_from([&["profiler", "agent"], arguments].concat()).unwrap();
        let Some(Command::Agent(args)) = cli.command else { panic!("of the agent") };
        let spool = tempfile::tempdir().unwrap();
        open(&args.sending, Some(spool.path())).err().map(|it| it.to_string())
    }

    #[test]
    fn options_that_need_each_other_are_given_together() {
        let key = "--client-cert and --client-key: one needs the other";
        for (arguments, why) in [
            (&["--otlp-header", "X-Team=a"][..], Some("--otlp-header: --otlp is not given")),
            (&["--otlp", "http://a", "--otlp-header", "X-Team=a"], None),
            (
                &["--otlp", "http://a", "--parca-header", "X-Team=a"],
                Some("--parca-header: --parca is not given"),
            ),
            (&["--client-cert", "a"], Some(key)),
            (&["--client-key", "a"], Some(key)),
            // The last window would be lost, if it came while such a request is under way.
            (&["--send-timeout", "9"], Some("--send-timeout: at most 8 s")),
            (&["--send-timeout", "8"], None),
            (&[], None),
        ] {
            assert_eq!(refusal(arguments).as_deref(), why, "{arguments:?}");
        }
    }
}
