//! What is answered to a request.

use std::sync::Arc;

use super::health::Health;
use crate::{
    kernel,
    serve::{
        access::Host,
        answers::{Body, of, refusal},
    },
};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

const TEXT: &str = "text/plain; charset=utf-8";
/// What there is, for people.
const INDEX: &str = "\
/healthz  whether the threads of the profiler go round
/readyz   whether it samples
";

/// What is served.
pub(super) struct Site {
    host: Host,
    health: Arc<Health>,
}

impl Site {
    pub(super) fn new(host: Host, health: Arc<Health>) -> Self {
        Self { host, health }
    }

    /// The answer to a request, with what holds for each answer.
    pub(super) fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let mut response = match self.host.judge(request.uri(), request.headers(), false) {
            Err(status) => refusal(status),
            Ok(()) if !matches!(*request.method(), Method::GET | Method::HEAD) => {
                let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED);
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                response
            }
            Ok(()) => self.find(request),
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    /// What is asked for.
    fn find(&self, request: &Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            "/" => of(StatusCode::OK, TEXT, INDEX.into()),
            "/healthz" => whether(self.health.well(kernel::monotonic_ns())),
            "/readyz" => whether(self.health.ready()),
            _ => refusal(StatusCode::NOT_FOUND),
        }
    }
}

/// Whether something holds, or why not.
fn whether(it: Result<(), String>) -> Response<Body> {
    match it {
        Ok(()) => of(StatusCode::OK, TEXT, Bytes::from_static(b"ok\n")),
        Err(why) => of(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n").into()),
    }
}
