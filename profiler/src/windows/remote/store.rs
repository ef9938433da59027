//! The stores that windows can be sent to.

use profiler_profile::export::push::{Encode, otlp, parca, pyroscope};

/// How many profiles of a request a store has left out that it has taken, and why, by its answer's type and body.
type Rejected = fn(&str, &[u8]) -> Option<(u64, String)>;

/// How a kind of store takes windows.
#[derive(Debug)]
pub struct Store {
    /// What it is called in options, and its folder in the spool.
    pub name: &'static str,
    /// Where it takes them, unless the address has a path.
    pub(super) path: &'static str,
    pub(super) content_type: &'static str,
    /// Whether requests are gzipped.
    pub(super) is_gzipped: bool,
    /// Makes requests of a window.
    pub(super) encode: Encode,
    /// What it has left out; `None` if that is no answer of such a store.
    pub(super) rejected: Rejected,
    /// Whether its errors within may pass; OTLP says which do.
    pub(super) retries_all_5xx: bool,
}

/// Whatever takes OTLP profiles by HTTP, such as the OpenTelemetry Collector.
pub const OTLP: Store = Store {
    name: "otlp",
    path: "/v1development/profiles",
    content_type: "application/x-protobuf",
    is_gzipped: true,
    encode: otlp::encode,
    rejected: |content_type, body| {
        // Not every receiver answers in the language that it was asked in.
        if content_type.starts_with("application/json") {
            return Some((0, String::new()));
        }
        // Nor does every one say what it should, and it has the window all the same. A page is another's.
        let is_page = body.trim_ascii_start().starts_with(b"<");
        otlp::rejected(body).or((!is_page).then(|| (0, String::new())))
    },
    retries_all_5xx: false,
};

/// Pyroscope, by what its own agents send.
pub const PYROSCOPE: Store = Store {
    name: "pyroscope",
    path: "/push.v1.PusherService/Push",
    content_type: "application/proto",
    is_gzipped: false,
    encode: pyroscope::encode,
    rejected: |_, _| Some((0, String::new())),
    retries_all_5xx: true,
};

/// Parca, by `WriteRaw`.
pub const PARCA: Store = Store {
    name: "parca",
    path: "/api/profiles/writeraw",
    content_type: "application/json",
    is_gzipped: false,
    encode: parca::encode,
    rejected: |_, _| Some((0, String::new())),
    retries_all_5xx: true,
};
