//! The stores that the command line of `agent` names.

use std::path::Path;

use profiler_profile::export::push::Sender;

use crate::{
    cli::SendingArgs,
    error::{Error, Result},
    windows::{
        Destination,
        folder::DEFAULT,
        remote::{Connection, OTLP, PARCA, PYROSCOPE, Remote},
    },
};

/// No less is asked for of a store: a window of one stack has to fit.
const MIN_REQUEST: u64 = 16 << 10;

/// Each store that is named, with its part of the spool.
pub(super) fn open(args: &SendingArgs, folder: Option<&Path>) -> Result<Vec<Box<dyn Destination>>> {
    if args.max_request < MIN_REQUEST {
        return Err(Error::Usage("--max-request: at least 16K".into()));
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
        let Some(url) = url else { continue };
        let spool = (&*spool, args.spool_bytes);
        let store = Remote::open(store, url, &connection, headers, sender.clone(), spool)?;
        stores.push(Box::new(store));
    }
    Ok(stores)
}
