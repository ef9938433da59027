//! A run of twenty slices, which a test serves as `serve` does.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use profiler_profile::export::html;
use serde_json::json;

/// A run of which the test says what is sampled.
pub(crate) struct Run {
    pub(crate) address: String,
    pub(crate) state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) samples: String,
    /// What two ranges differ by.
    pub(crate) changes: String,
    pub(crate) end: u64,
    pub(crate) has_ended: bool,
    pub(crate) asked: Vec<String>,
}

impl Run {
    pub(crate) fn start(samples: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { samples, end: 20, ..State::default() }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                thread::spawn(move || answer(&stream, &state));
            }
        });
        Self { address, state }
    }

    /// From now on these are the samples, and so many slices have passed.
    pub(crate) fn go_on(&self, samples: String, end: u64) {
        let mut state = self.state.lock().unwrap();
        (state.samples, state.end) = (samples, end);
    }

    pub(crate) fn has_asked(&self, part: &str) -> bool {
        self.state.lock().unwrap().asked.iter().any(|it| it.contains(part))
    }
}

fn answer(mut stream: &TcpStream, state: &Mutex<State>) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    while lines.next().is_some_and(|line| !line.is_empty()) {}
    let path = first.split(' ').nth(1).unwrap().to_owned();
    state.lock().unwrap().asked.push(path.clone());
    let begin =
        |kind: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n");
    if path.starts_with("/events") {
        let run = json!({ "window": 20, "slice_ms": 500, "has_lines": true, "formats": [["folded", "Folded stacks", false], ["svg", "A picture", true]] });
        let head = begin("text/event-stream");
        let mut told = write!(stream, "{head}\r\nevent: run\ndata: {run}\n\n");
        while told.is_ok() {
            let State { end, has_ended, .. } = *state.lock().unwrap();
            if has_ended {
                let _ = write!(stream, "event: end\ndata: {{}}\n\n");
                return;
            }
            let tick = json!({
                "first": 0, "end": end, "is_behind": false, "is_short": false, "lost": [["ring full", 3]],
                "cpu": 0.012, "memory_bytes": 45 << 20,
            });
            told = write!(stream, "event: tick\ndata: {tick}\n\n");
            thread::sleep(Duration::from_millis(50));
        }
        return;
    }
    let State { end, samples, changes, .. } = &*state.lock().unwrap();
    let (kind, body) = if path.starts_with("/data") && path.contains("before_first=") {
        (
            "application/json",
            format!(
                "{{\"before\":{{\"first\":5,\"end\":8}},\"first\":12,\"end\":16,\"took_ms\":0,\"profile\":{changes}}}"
            ),
        )
    } else if path.starts_with("/data") {
        let (first, last) = if path.contains("first=") { (5, 8) } else { (0, *end) };
        (
            "application/json",
            format!("{{\"first\":{first},\"end\":{last},\"took_ms\":0,\"profile\":{samples}}}"),
        )
    } else if path.starts_with("/lines") {
        let lines = json!([[6, 0, 0, "<script>x"], [7, 40, 60, "    hot();"], [9, 1, 2, null]]);
        let files = json!([
            { "path": "/src/a.c", "why": null, "changed": 1_700_000_000, "lines": lines },
            { "path": "/src/<b>", "why": "Permission denied", "changed": null, "lines": [[0, 1, 1, null]] },
        ]);
        let lines = json!({ "total": 90, "files": files, "unknown": 9 });
        ("application/json", lines.to_string())
    } else if path.starts_with("/strips") {
        let strips = json!([[7, 7, "app", [0, 5, 6], [3, 9, 9]], [8, 8, "<b>app", [7], [9]]]);
        let first = end.saturating_sub(20);
        let strips = json!({ "first": first, "end": end, "since": 0, "strips": strips });
        ("application/json", strips.to_string())
    } else {
        ("text/html; charset=utf-8", html::live_page())
    };
    let _ = write!(stream, "{}Content-Length: {}\r\n\r\n{body}", begin(kind), body.len());
}
