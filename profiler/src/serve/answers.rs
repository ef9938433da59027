//! What is answered to a request.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
};

use http_body_util::{
    Either, Full,
    channel::{Channel, Sender},
};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
        HeaderName, HeaderValue, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
    },
};
use profiler_profile::{
    export::{
        format::{FORMATS, Format},
        html,
    },
    live::{Live, Range, SLICE},
    source::Source,
};
use serde_json::json;
use tokio::sync::watch;

use super::{
    access::{Access, Verdict},
    asked::{Asked, Function, Time},
    making,
    sources::Sources,
};

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const EVENTS: &str = "text/event-stream";
const FILE: &str = "application/octet-stream";
/// How many answers of the same second are kept, for pages that show the same.
const KEPT: usize = 4;

/// A body that is whole, or that goes on.
pub(crate) type Body = Either<Full<Bytes>, Channel<Bytes>>;

/// What is served.
pub(super) struct Site {
    pub(super) live: Arc<Live>,
    sources: Vec<Arc<Source>>,
    texts: Option<Sources>,
    access: Access,
    /// How many slices the page shows at first.
    window: u64,
    ticks: watch::Receiver<String>,
    page: Bytes,
    policy: String,
    /// Of which second these are, and what was asked for.
    made: Mutex<(u64, HashMap<Key, Bytes>)>,
}

/// The time, what it is compared with, and of which source.
type Key = (Time, Option<Range>, Option<usize>);

/// What a body is, and the body.
type Answer = (&'static str, Bytes);

impl Site {
    pub(super) fn new(
        live: Arc<Live>,
        sources: Vec<Arc<Source>>,
        texts: Option<Sources>,
        access: Access,
        window: u64,
        ticks: watch::Receiver<String>,
    ) -> Self {
        Self {
            live,
            sources,
            texts,
            access,
            window,
            ticks,
            page: html::live_page().into(),
            policy: html::live_policy(),
            made: Mutex::default(),
        }
    }

    /// The answer to a request, with what holds for each answer.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        ended: watch::Receiver<bool>,
    ) -> Response<Body> {
        let mut response = match self.access.judge(request.uri(), request.headers()) {
            Verdict::Refused(status) => refusal(status),
            Verdict::Granted(_) if request.method() != Method::GET => {
                let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED);
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
                response
            }
            Verdict::Granted(cookie) => {
                let mut response = Self::find(&self, &request, ended).await;
                if let Some(Ok(cookie)) = cookie.map(HeaderValue::try_from) {
                    response.headers_mut().insert(SET_COOKIE, cookie);
                }
                response
            }
        };
        self.seal(&mut response);
        response
    }

    /// What is asked for.
    async fn find(
        site: &Arc<Self>,
        request: &Request<Incoming>,
        ended: watch::Receiver<bool>,
    ) -> Response<Body> {
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        match path {
            "/" => return of(StatusCode::OK, HTML, site.page.clone()),
            "/events" => return site.events(ended),
            _ => {}
        }
        if path == "/lines" {
            return Self::lines(site, query).await;
        }
        let format = path.strip_prefix("/download/").and_then(Format::find);
        let format = format.filter(|it| making::is_offered(it));
        if format.is_none() && !matches!(path, "/data" | "/strips") {
            return refusal(StatusCode::NOT_FOUND);
        }
        let Some(asked) = Asked::parse(query) else { return refusal(StatusCode::BAD_REQUEST) };
        if asked.before.is_some() && format.is_some_and(|it| !making::is_of_changes(it)) {
            return refusal(StatusCode::BAD_REQUEST);
        }
        let (maker, is_data) = (Arc::clone(site), path == "/data");
        let make = move || match format {
            Some(format) => maker.file(&asked, format),
            None if is_data => maker.data(&asked),
            None => making::strips(&maker.live, &asked).map(|it| (JSON, it.into())),
        };
        // On another thread: what is short is answered meanwhile.
        match tokio::task::spawn_blocking(make).await {
            Ok(Ok((kind, body))) => {
                let mut response = of(StatusCode::OK, kind, body);
                if let Some(format) = format {
                    response.headers_mut().insert(CONTENT_DISPOSITION, name_of(format));
                }
                response
            }
            _ => refusal(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// The lines of a function, with their text.
    async fn lines(site: &Arc<Self>, query: &str) -> Response<Body> {
        let Some((function, asked)) = Function::parse(query) else {
            return refusal(StatusCode::BAD_REQUEST);
        };
        let site = Arc::clone(site);
        let make = move || {
            let texts = site.texts.as_ref()?;
            making::lines(&site.live, &site.sources, &asked, site.window, &function, texts).ok()
        };
        match tokio::task::spawn_blocking(make).await {
            Ok(Some(bytes)) => of(StatusCode::OK, JSON, bytes.into()),
            Ok(None) => refusal(StatusCode::NOT_FOUND),
            Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    fn file(&self, asked: &Asked, format: &'static Format) -> io::Result<Answer> {
        let Self { live, sources, window, .. } = self;
        let bytes = match asked.before {
            Some(it) => making::file_of_changes(live, sources, asked, *window, it, format)?,
            None => making::file(live, sources, asked, *window, format)?,
        };
        Ok((FILE, bytes.into()))
    }

    /// The samples, which pages of the same second share.
    fn data(&self, asked: &Asked) -> io::Result<Answer> {
        // What is filtered here is for files; the page does that by itself.
        let source = asked.source.filter(|_| asked.before.is_some());
        let asked = Asked { source, process: None, thread: None, ..*asked };
        let key = (asked.time, asked.before, source);
        let now = self.live.kept(crate::kernel::monotonic_ns()).end;
        if let Ok(made) = self.made.lock()
            && made.0 == now
            && let Some(bytes) = made.1.get(&key)
        {
            return Ok((JSON, bytes.clone()));
        }
        let bytes: Bytes = making::data(&self.live, &self.sources, &asked, self.window)?.into();
        if let Ok(mut made) = self.made.lock() {
            if made.0 != now || made.1.len() >= KEPT {
                *made = (now, HashMap::new());
            }
            made.1.insert(key, bytes.clone());
        }
        Ok((JSON, bytes))
    }

    /// A stream of events: what holds for the run, and then what is new, until the run ends or the page goes.
    fn events(&self, ended: watch::Receiver<bool>) -> Response<Body> {
        let (sender, body) = Channel::new(1);
        let formats = FORMATS.iter().filter(|it| making::is_offered(it));
        let formats: Vec<(&str, &str, bool)> =
            formats.map(|it| (it.name, it.help, making::is_of_changes(it))).collect();
        let run = json!({
            "window": self.window, "slice_ms": SLICE.as_secs_f64() * 1000.0, "formats": formats,
            "has_lines": self.texts.is_some(),
        });
        tokio::spawn(tell(sender, run.to_string(), self.ticks.clone(), ended));
        let mut response = Response::new(Either::Right(body));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(EVENTS));
        response
    }

    /// No other page may show it or have parts of it, nobody keeps it, and nobody learns its address.
    fn seal(&self, response: &mut Response<Body>) {
        let fixed = |value| HeaderValue::from_static(value);
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, fixed("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, fixed("nosniff"));
        headers.insert(REFERRER_POLICY, fixed("no-referrer"));
        for name in ["cross-origin-resource-policy", "cross-origin-opener-policy"] {
            headers.insert(HeaderName::from_static(name), fixed("same-origin"));
        }
        if let Ok(policy) = HeaderValue::from_str(&self.policy) {
            headers.insert(CONTENT_SECURITY_POLICY, policy);
        }
    }
}

/// Tells a page how the run goes on. One that does not listen is told later what is true then.
async fn tell(
    mut to: Sender<Bytes>,
    run: String,
    mut ticks: watch::Receiver<String>,
    mut ended: watch::Receiver<bool>,
) {
    let event = |name: &str, data: &str| Bytes::from(format!("event: {name}\ndata: {data}\n\n"));
    if to.send_data(event("run", &run)).await.is_err() {
        return;
    }
    ticks.mark_changed();
    loop {
        tokio::select! {
            biased;
            _ = ended.changed() => {
                let _ = to.send_data(event("end", "{}")).await;
                return;
            }
            changed = ticks.changed() => if changed.is_err() {
                return;
            },
        }
        let tick = ticks.borrow_and_update().clone();
        if !tick.is_empty() && to.send_data(event("tick", &tick)).await.is_err() {
            return;
        }
    }
}

/// A status, and no more than its name.
pub(crate) fn refusal(status: StatusCode) -> Response<Body> {
    let reason = status.canonical_reason().unwrap_or_default().to_lowercase();
    of(status, TEXT, format!("{reason}\n").into())
}

/// A whole body of this kind.
pub(crate) fn of(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// What a browser calls the file.
fn name_of(format: &Format) -> HeaderValue {
    let extension = format.extensions.first().unwrap_or(&"txt");
    let name = HeaderValue::from_str(&format!("attachment; filename=\"profile.{extension}\""));
    name.unwrap_or_else(|_| HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[test]
    fn a_page_that_reads_nothing_has_nothing_kept_for_it_but_the_last() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (sender, mut body) = Channel::new(1);
            let (tick, ticks) = watch::channel(String::new());
            let (end, ended) = watch::channel(false);
            let told = tokio::spawn(tell(sender, "{}".into(), ticks, ended));
            for it in 0..1000 {
                tick.send_replace(it.to_string());
                tokio::task::yield_now().await;
            }
            let mut events = Vec::new();
            while !events.last().is_some_and(|it: &String| it.contains("999")) {
                let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
                events.push(String::from_utf8(bytes.to_vec()).unwrap());
            }
            // Of a thousand those that were under way, and the one that holds.
            assert!(events.len() <= 4, "{events:?}");
            assert_eq!(events.first().unwrap(), "event: run\ndata: {}\n\n");
            end.send_replace(true);
            let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(&last[..], b"event: end\ndata: {}\n\n");
            told.await.unwrap();
            assert!(body.frame().await.is_none());
        });
    }
}
