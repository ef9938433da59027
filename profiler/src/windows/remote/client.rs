//! Sends requests to a store.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use ureq::{
    Agent,
    tls::{Certificate, ClientCert, PemItem, RootCerts, TlsConfig, parse_pem},
};

use super::{answer::Answer, header::Header, store::Store, url::Url};
use crate::{
    error::{Error, Result},
    nss,
};

/// The longest time that a request may take: one may be under way when the run ends, and the last window is written to the spool
/// when it is over.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(8);
/// So much of an answer is read.
const MAX_ANSWER: u64 = 64 << 10;
/// More headers than these are no answer.
const MAX_HEADERS: usize = 64 << 10;

/// How stores are reached.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// How long a request may take.
    pub timeout: Duration,
    /// Who signs the certificates of stores, in place of the authorities that are built in.
    pub ca_file: Option<PathBuf>,
    /// A certificate with its key, by which stores know us.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Sends requests to a store.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    url: String,
    headers: Vec<Header>,
    content_type: &'static str,
    is_gzipped: bool,
    timeout: Duration,
}

impl Client {
    /// To this store, with everything that is needed for it read once.
    pub(super) fn new(
        store: &Store,
        url: &Url,
        connection: &Connection,
        headers: &[Header],
    ) -> Result<Self> {
        nss::stay_inside();
        for header in headers {
            let failed = |why| Error::Usage(format!("--{}-header: {why}", store.name));
            header.value().map_err(failed)?;
        }
        let config = Agent::config_builder()
            .user_agent(concat!("profiler/", env!("CARGO_PKG_VERSION")))
            // Between two windows a store may close what we would use again.
            .max_idle_connections(0)
            .http_status_as_error(false)
            // Nobody is told what was meant for another.
            .max_redirects(0)
            .max_response_header_size(MAX_HEADERS)
            .timeout_global(Some(connection.timeout))
            .tls_config(tls(connection)?);
        Ok(Self {
            agent: config.build().new_agent(),
            url: url.with_path(store.path),
            headers: headers.to_vec(),
            content_type: store.content_type,
            is_gzipped: store.is_gzipped,
            timeout: connection.timeout,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a body, within less than the usual time if that is asked for.
    ///
    /// # Errors
    ///
    /// Says why there is no answer.
    pub(super) fn post(
        &self,
        body: &[u8],
        within: Option<Duration>,
    ) -> std::result::Result<Answer, String> {
        let timeout = within.map_or(self.timeout, |it| it.min(self.timeout));
        let mut request = self.agent.post(&self.url).header("Content-Type", self.content_type);
        if self.is_gzipped {
            request = request.header("Content-Encoding", "gzip");
        }
        for header in &self.headers {
            request = request.header(header.name.as_str(), header.value()?);
        }
        let request = request.config().timeout_global(Some(timeout)).build();
        let mut response = request.send(body).map_err(|error| error.to_string())?;
        let header = |name: &str| {
            response.headers().get(name).and_then(|it| it.to_str().ok()).map(str::to_owned)
        };
        let mut answer = Answer {
            status: response.status().as_u16(),
            content_type: header("content-type").unwrap_or_default().to_ascii_lowercase(),
            retry_after: header("retry-after"),
            body: Vec::new(),
        };
        // Never unpacked: nobody is asked to pack it.
        let read = response.body_mut().as_reader().take(MAX_ANSWER).read_to_end(&mut answer.body);
        read.map_err(|error| format!("the answer broke off: {error}"))?;
        Ok(answer)
    }
}

fn tls(connection: &Connection) -> Result<TlsConfig> {
    let mut tls = TlsConfig::builder();
    if let Some(path) = &connection.ca_file {
        let certificates = certificates("--ca-file", path)?;
        tls = tls.root_certs(RootCerts::from(certificates));
    }
    if let Some((certificate, key)) = &connection.client {
        let chain = certificates("--client-cert", certificate)?;
        let key_pem = read("--client-key", key)?;
        let key = parse_pem(&key_pem).find_map(|it| match it {
            Ok(PemItem::PrivateKey(key)) => Some(key),
            _ => None,
        });
        let key = key.ok_or_else(|| Error::Usage("--client-key: no private key in PEM".into()))?;
        tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
    }
    Ok(tls.build())
}

fn certificates(option: &str, path: &Path) -> Result<Vec<Certificate<'static>>> {
    let pem = read(option, path)?;
    let certificates = parse_pem(&pem).filter_map(|it| match it {
        Ok(PemItem::Certificate(it)) => Some(it),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        let path = path.display();
        return Err(Error::Usage(format!("{option}: no certificate in PEM is in {path}")));
    }
    Ok(certificates)
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path)
        .map_err(|error| Error::Usage(format!("{option}: cannot read {}: {error}", path.display())))
}
