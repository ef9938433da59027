//! What is answered to a request.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::timeout,
};

use super::{
    Question,
    health::Health,
    metrics::{self, Beside, Totals},
};
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
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Who asks within this time of somebody else gets the same.
const SHARED_FOR: Duration = Duration::from_millis(500);
/// For how long the reader of the ring is waited for.
const READER_WITHIN: Duration = Duration::from_secs(5);
/// What there is, for people.
const INDEX: &str = "\
/healthz  whether the threads of the profiler go round
/readyz   whether it samples
/metrics  what it has counted, for Prometheus
";

/// What is served.
pub(super) struct Site {
    host: Host,
    health: Arc<Health>,
    reader: mpsc::Sender<Question>,
    scraped: Mutex<Scraped>,
    began: f64,
}

/// What was told last.
#[derive(Default)]
struct Scraped {
    last: Option<(Instant, Result<Bytes, String>)>,
    totals: Totals,
}

impl Site {
    pub(super) fn new(host: Host, health: Arc<Health>, reader: mpsc::Sender<Question>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { host, health, reader, scraped: Mutex::default(), began: now.as_secs_f64() }
    }

    /// The answer to a request, with what holds for each answer.
    pub(super) async fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let mut response = match self.host.judge(request.uri(), request.headers(), false) {
            Err(status) => refusal(status),
            Ok(()) if !matches!(*request.method(), Method::GET | Method::HEAD) => {
                let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED);
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                response
            }
            Ok(()) => self.find(request).await,
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    /// What is asked for.
    async fn find(&self, request: &Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            "/" => of(StatusCode::OK, TEXT, INDEX.into()),
            "/healthz" => whether(self.health.well(kernel::monotonic_ns())),
            "/metrics" => match self.metrics().await {
                Ok(text) => of(StatusCode::OK, METRICS, text),
                Err(why) => whether(Err(why)),
            },
            "/readyz" => whether(self.health.ready()),
            _ => refusal(StatusCode::NOT_FOUND),
        }
    }

    /// What was counted, which those who ask at one time share.
    async fn metrics(&self) -> Result<Bytes, String> {
        let mut scraped = self.scraped.lock().await;
        if let Some((at, text)) = &scraped.last
            && at.elapsed() < SHARED_FOR
        {
            return text.clone();
        }
        let text = self.scrape(&mut scraped.totals).await;
        scraped.last = Some((Instant::now(), text.clone()));
        text
    }

    async fn scrape(&self, totals: &mut Totals) -> Result<Bytes, String> {
        let (question, snapshot) = oneshot::channel();
        let ask = async {
            self.reader.send(question).await.ok()?;
            snapshot.await.ok()
        };
        let snapshot = timeout(READER_WITHIN, ask).await;
        let snapshot = snapshot.ok().flatten().ok_or("the reader of the ring does not answer")?;
        let run = &self.health.run;
        let beside = Beside {
            named: run.told.read(),
            windows: run.windows.as_ref().map(|it| it.progress()).unwrap_or_default(),
            queue: run.depth.parts(),
            began: self.began,
        };
        Ok(metrics::write(&snapshot, &beside, totals).into())
    }
}

/// Whether something holds, or why not.
fn whether(it: Result<(), String>) -> Response<Body> {
    match it {
        Ok(()) => of(StatusCode::OK, TEXT, Bytes::from_static(b"ok\n")),
        Err(why) => of(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n").into()),
    }
}
