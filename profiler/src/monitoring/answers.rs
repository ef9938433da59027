//! What is answered to a request.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{Mutex, mpsc, oneshot, watch},
    task::spawn_blocking,
    time::timeout,
};

use super::{
    Question,
    health::Health,
    metrics::{self, Beside, Totals},
    profile::{self, Asked},
};
use crate::{
    kernel,
    serve::{
        access::Host,
        answers::{Body, of, refusal},
    },
    viewer::peer,
};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, CONTENT_DISPOSITION, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const FILE: &str = "application/octet-stream";
const PROFILE: &str = "/debug/pprof/profile";
/// Who asks within this time of somebody else gets the same.
const SHARED_FOR: Duration = Duration::from_millis(500);
/// For how long the reader of the ring is waited for.
const READER_WITHIN: Duration = Duration::from_secs(5);
/// Why somebody else gets nothing.
const NOT_FOR_ALL: &str = "this is for root of this machine and the user who typed sudo\n";
/// What there is, for people.
const INDEX: &str = "\
/healthz  whether the threads of the profiler go round
/readyz   whether it samples
/metrics  what it has counted, for Prometheus
/debug/pprof/profile?seconds=30&pid=812
          a profile, for root and the user who typed sudo
/config   the settings that hold, for the same
";

/// What is served.
pub(super) struct Site {
    host: Host,
    port: u16,
    /// Who may have profiles, beside root.
    user: Option<u32>,
    config: Bytes,
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
    pub(super) fn new(
        at: SocketAddr,
        user: Option<u32>,
        config: String,
        health: Arc<Health>,
        reader: mpsc::Sender<Question>,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (host, port, began) = (Host::new(at), at.port(), now.as_secs_f64());
        let config = config.into();
        Self { host, port, user, config, health, reader, scraped: Mutex::default(), began }
    }

    /// The answer to a request, with what holds for each answer.
    pub(super) async fn answer(
        &self,
        request: &Request<Incoming>,
        from: SocketAddr,
        ended: watch::Receiver<bool>,
    ) -> Response<Body> {
        let mut response = match self.host.judge(request.uri(), request.headers(), false) {
            Err(status) => refusal(status),
            Ok(()) if !matches!(*request.method(), Method::GET | Method::HEAD) => {
                let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED);
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                response
            }
            Ok(()) if request.uri().path() == PROFILE => self.profile(request, from, ended).await,
            Ok(()) => self.find(request, from).await,
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    /// What is asked for.
    async fn find(&self, request: &Request<Incoming>, from: SocketAddr) -> Response<Body> {
        match request.uri().path() {
            "/" => of(StatusCode::OK, TEXT, INDEX.into()),
            "/healthz" => whether(self.health.well(kernel::monotonic_ns())),
            "/metrics" => match self.metrics().await {
                Ok(text) => of(StatusCode::OK, METRICS, text),
                Err(why) => whether(Err(why)),
            },
            "/readyz" => whether(self.health.ready()),
            "/config" if self.may_have_profiles(from) => {
                of(StatusCode::OK, TEXT, self.config.clone())
            }
            "/config" => of(StatusCode::FORBIDDEN, TEXT, NOT_FOR_ALL.into()),
            _ => refusal(StatusCode::NOT_FOUND),
        }
    }

    /// A profile of what is sampled from now on. It tells what all users run, so it is for those only who may read it in
    /// the folder of windows.
    async fn profile(
        &self,
        request: &Request<Incoming>,
        from: SocketAddr,
        mut ended: watch::Receiver<bool>,
    ) -> Response<Body> {
        if !self.may_have_profiles(from) {
            return of(StatusCode::FORBIDDEN, TEXT, NOT_FOR_ALL.into());
        }
        // It would take as long, for nothing.
        if request.method() == Method::HEAD {
            return refusal(StatusCode::METHOD_NOT_ALLOWED);
        }
        let asked = match Asked::parse(request.uri().query().unwrap_or_default()) {
            Ok(asked) => asked,
            Err(why) => return of(StatusCode::BAD_REQUEST, TEXT, format!("{why}\n").into()),
        };
        let run = &self.health.run;
        let Some(captures) = &run.captures else { return refusal(StatusCode::NOT_FOUND) };
        let taken = tokio::select! {
            taken = profile::take(asked, captures, &run.depth) => taken,
            _ = ended.changed() => return whether(Err("the run has ended".into())),
        };
        let Some(taken) = taken else {
            let why = "as many profiles are being taken as may be at once\n";
            return of(StatusCode::TOO_MANY_REQUESTS, TEXT, why.into());
        };
        let sources = run.sources.clone();
        // On another thread: what is short is answered meanwhile.
        match spawn_blocking(move || taken.write(&sources)).await {
            Ok(Ok(bytes)) => {
                let mut response = of(StatusCode::OK, FILE, bytes.into());
                let name = HeaderValue::from_static("attachment; filename=\"profile.pb.gz\"");
                response.headers_mut().insert(CONTENT_DISPOSITION, name);
                response
            }
            _ => refusal(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Whether who is at the other end may.
    fn may_have_profiles(&self, from: SocketAddr) -> bool {
        from.ip().to_canonical().is_loopback()
            && peer::uid(from.port(), self.port)
                .is_some_and(|uid| uid == 0 || Some(uid) == self.user)
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
