//! `serve`, as a browser and as somebody who is up to no good see it: by raw sockets.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{Program, Run, is_installed, profiler, run, wait_until};

/// An answer that does not come within this time never will.
const LONG: Duration = Duration::from_secs(180);

/// A run that is served.
struct Served {
    run: Run,
    port: u16,
    token: String,
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Served {
    fn start(arguments: &[&str]) -> Self {
        let child = profiler()
            .args(["serve", "-d", "180", "-F", "199"])
            .args(arguments)
            .env_remove("SUDO_UID")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let run = Run::of(child);
        wait_until("the address is told", || run.has_said("/?token=") || !run.is_alive());
        let said = run.said();
        let (host, token) = said.split_once("http://").unwrap().1.split_once("/?token=").unwrap();
        let port = host.rsplit_once(':').unwrap().1.parse().unwrap();
        let token = token.split_whitespace().next().unwrap().to_owned();
        Self { run, port, token }
    }

    /// Sends this, and reads what comes back to its end.
    fn ask(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // It may answer before it has all.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").unwrap_or(bytes.len());
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let status = head.split(' ').nth(1).map_or(0, |it| it.parse().unwrap());
        Answer { status, head, body: bytes.split_off((end + 4).min(bytes.len())) }
    }

    /// A request as a page of its own sends it, with these headers beside, or in the place of those.
    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
        let host = format!("127.0.0.1:{}", self.port);
        let cookie = format!("profiler-{}={}", self.port, self.token);
        let mut all = vec![("Host", &*host), ("Cookie", &*cookie), ("Connection", "close")];
        for (name, value) in headers {
            all.retain(|(it, _)| it != name);
            all.push((name, value));
        }
        let mut lines = vec![format!("{method} {path} HTTP/1.1")];
        lines.extend(all.iter().map(|(name, value)| format!("{name}: {value}")));
        format!("{}\r\n\r\n", lines.join("\r\n")).into_bytes()
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask(&self.request("GET", path, headers))
    }

    fn json(&self, path: &str) -> Value {
        let answer = self.get(path, &[]);
        assert_eq!(answer.status, 200, "{path}: {}", answer.head);
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// What comes of the run, event by event.
    fn listen(&self) -> Events {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&self.request("GET", "/events", &[])).unwrap();
        Events(BufReader::new(stream))
    }
}

struct Events(BufReader<TcpStream>);

impl Events {
    /// The data of the next event of this name.
    fn next(&mut self, name: &str) -> Value {
        let mut is_it = false;
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "ended before {name}");
            if let Some(event) = line.strip_prefix("event: ") {
                is_it = event.trim_end() == name;
            }
            if let Some(data) = line.strip_prefix("data: ").filter(|_| is_it) {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

/// The samples of a function: those that ended there.
fn own(data: &Value, function: &str) -> u64 {
    let profile = &data["profile"];
    let at =
        |rows: &Value, row: &Value| rows[usize::try_from(row.as_u64().unwrap()).unwrap()].clone();
    let name = |node: &Value| {
        let of = at(&profile["nodes"]["function"], node);
        at(&profile["strings"], &at(&profile["functions"]["name"], &of))
    };
    let nodes = profile["samples"]["node"].as_array().unwrap();
    let counts = profile["samples"]["count"].as_array().unwrap();
    let of = nodes.iter().zip(counts).filter(|(node, _)| name(node) == function);
    of.map(|(_, count)| count.as_u64().unwrap()).sum()
}

/// The samples of a source.
fn sum_of(data: &Value, source: u64) -> u64 {
    let samples = &data["profile"]["samples"];
    let [sources, counts] = ["source", "count"].map(|it| samples[it].as_array().unwrap());
    let of = sources.iter().zip(counts).filter(|(it, _)| it.as_u64() == Some(source));
    of.map(|(_, count)| count.as_u64().unwrap()).sum()
}

fn sum(data: &Value) -> u64 {
    let counts = data["profile"]["samples"]["count"].as_array().unwrap();
    counts.iter().map(|it| it.as_u64().unwrap()).sum()
}

/// A program whose hottest line is the seventh of its source, which is beside it.
const SPIN: &str = "\
#include <unistd.h>

static volatile unsigned long sum;

__attribute__((noinline)) static void spin(void) {
    for (unsigned long at = 0; at < 1000000; at++)
        sum += at * at / (at + 1) * (sum | 1);
}

int main(void) {
    alarm(180);
    for (;;)
        spin();
}
";

#[test]
#[ignore = "needs root: cargo xtask test"]
fn lines_have_the_text_of_files_that_the_user_may_read() {
    if !is_installed("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("spin.c"), dir.path().join("spin"));
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&source, SPIN).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o644)).unwrap();
    let built = Command::new("cc").args(["-g", "-O1", "-o"]).args([&program, &source]).status();
    assert!(built.unwrap().success());
    let spinning = Program(Command::new(&program).spawn().unwrap());
    let served = Served::start(&["--listen", "127.0.0.1:0", "--lines", "-p", &spinning.pid()]);
    assert_eq!(served.listen().next("run")["has_lines"], true);

    let query = format!("/lines?span=start&function=spin&module={}", program.display());
    let mut found = Value::Null;
    wait_until("the lines of `spin` have samples", || {
        found = served.json(&query);
        found["total"].as_u64().unwrap() > 50
            && found["files"][0]["lines"].as_array().is_some_and(|it| !it.is_empty())
    });
    let file = &found["files"][0];
    assert_eq!((&file["path"], &file["why"]), (&json!(source), &Value::Null), "{found}");
    let lines = file["lines"].as_array().unwrap();
    let hottest = lines.iter().max_by_key(|it| it[1].as_u64().unwrap()).unwrap();
    let text = "        sum += at * at / (at + 1) * (sum | 1);";
    assert_eq!((&hottest[0], &hottest[3]), (&json!(7), &json!(text)), "{found}");
    let own: u64 = lines.iter().map(|it| it[1].as_u64().unwrap()).sum();
    assert!(own * 2 > found["total"].as_u64().unwrap(), "{found}");
    let caller = served.json(&query.replace("=spin", "=main"));
    let of_line = |it: &&Value| it[0] == 13;
    let lines = caller["files"][0]["lines"].as_array().unwrap();
    assert!(lines.iter().find(of_line).unwrap()[2].as_u64() > Some(0), "{caller}");

    // A program may name any file, and the agent may read all of them.
    fs::set_permissions(&source, fs::Permissions::from_mode(0o600)).unwrap();
    let file = &served.json(&query)["files"][0];
    assert_eq!(file["why"], "Permission denied (os error 13)", "{file}");
    let lines = file["lines"].as_array().unwrap();
    assert!(lines.iter().all(|it| it[3].is_null()), "{file}");
    assert!(lines.iter().any(|it| it[0] == 7 && it[1].as_u64() > Some(0)), "{file}");
    for (path, status) in
        [("/lines?function=spin", 400), ("/lines?span=start&path=/etc/passwd", 400)]
    {
        assert_eq!(served.get(path, &[]).status, status, "{path}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn pages_of_one_run_show_the_hot_function_until_it_ends() {
    let program = Program::start("chain.c");
    let pid = program.pid();
    let served = Served::start(&["--listen", "127.0.0.1:0", "-p", &pid]);
    let page = served.get(&format!("/?token={}", served.token), &[("Cookie", "a=b")]);
    assert_eq!(page.status, 200, "{}", page.head);
    let cookie =
        format!("profiler-{}={}; path=/; httponly; samesite=strict", served.port, served.token);
    assert!(page.head.contains(&format!("set-cookie: {cookie}")), "{}", page.head);
    for header in [
        "content-security-policy: default-src 'none'; script-src 'sha256-",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "cross-origin-resource-policy: same-origin",
        "cache-control: no-store",
    ] {
        assert!(page.head.contains(header), "{header}: {}", page.head);
    }
    assert!(!page.head.contains("access-control"), "{}", page.head);
    assert!(page.body.starts_with(b"<!DOCTYPE html>"));

    // Two pages listen to the same run.
    let (mut one, mut other) = (served.listen(), served.listen());
    let formats = one.next("run")["formats"].as_array().unwrap().len();
    assert_eq!(other.next("run")["formats"].as_array().unwrap().len(), formats);
    let mut end = 0;
    wait_until("the hot function is served", || {
        let data = served.json("/data?span=start");
        end = data["end"].as_u64().unwrap();
        sum(&data) > 100 && own(&data, "inner") * 2 > sum(&data)
    });
    for page in [&mut one, &mut other] {
        while page.next("tick")["end"].as_u64().unwrap() < end {}
    }
    assert!(served.run.is_in_kernel());

    // Strips have the same samples as a range, when the last of them have their names.
    let range = format!("first=0&end={end}");
    wait_until("all of the range is there", || {
        let strips = served.json("/strips?by=process");
        let [strip] = &strips["strips"].as_array().unwrap()[..] else { panic!("{strips}") };
        assert_eq!(strip[0].to_string(), pid);
        let slices = strip[3].as_array().unwrap().iter().map(|it| it.as_u64().unwrap());
        let counts = strip[4].as_array().unwrap().iter().map(|it| it.as_u64().unwrap());
        let in_range = slices.zip(counts).filter(|(slice, _)| *slice < end).map(|(_, count)| count);
        let in_range: u64 = in_range.sum();
        in_range > 0 && in_range == sum(&served.json(&format!("/data?{range}")))
    });

    // Two parts of that are compared, the second the longer one.
    let middle = end / 3;
    let compared = format!("first={middle}&end={end}&before_first=0&before_end={middle}&source=0");
    // While samples wait for their names, a range ends before them.
    let (mut changes, mut parts) = (Value::Null, [0, 0]);
    wait_until("both parts are all of the range", || {
        changes = served.json(&format!("/data?{compared}"));
        parts = [0, 1].map(|source| sum_of(&changes, source));
        changes["before"] == json!({ "first": 0, "end": middle })
            && parts[1] == sum(&served.json(&format!("/data?first=0&end={middle}")))
            && parts[0] + parts[1] == sum(&served.json(&format!("/data?{range}")))
    });
    let [after, before] = parts;
    let change = &changes["profile"]["change"];
    if before > 0 {
        let scale = change["scale"].as_f64().unwrap();
        assert!((scale - after as f64 / before as f64).abs() < 1e-9, "{change}");
    }
    for (format, status) in [("svg", 200), ("html", 200), ("pprof", 400)] {
        let file = served.get(&format!("/download/{format}?{compared}"), &[]);
        assert_eq!(file.status, status, "{format}: {}", file.head);
    }
    let svg = served.get(&format!("/download/svg?{compared}"), &[]).body;
    assert!(String::from_utf8(svg).unwrap().contains("Differential Flame Graph"));

    // Files, as `record` writes them.
    let folded = served.get(&format!("/download/folded?{range}&pid={pid}"), &[]);
    assert!(folded.head.contains("attachment; filename=\"profile.folded\""), "{}", folded.head);
    let text = String::from_utf8(folded.body).unwrap();
    assert!(text.contains(";middle;inner "), "{text}");
    let of_other = served.get(&format!("/download/folded?{range}&pid=1"), &[]);
    assert_eq!((of_other.status, of_other.body.len()), (200, 0));
    for format in ["text", "json", "json-compact", "pprof", "svg", "html", "speedscope", "perf"] {
        let file = served.get(&format!("/download/{format}?{range}"), &[]);
        assert!(file.status == 200 && !file.body.is_empty(), "{format}: {}", file.head);
    }
    assert_eq!(served.get("/download/firefox", &[]).status, 404);

    // A page that goes away in the middle leaves the others.
    drop(other);
    one.next("tick");
    served.run.signal(libc::SIGTERM);
    one.next("end");
    let port = served.port;
    let ended = served.run.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("delivered"), "{ended:?}");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn who_may_not_see_it_is_told_nothing() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let token = &served.token;
    let wrong = "0".repeat(token.len());
    for path in [
        "/",
        "/data",
        "/events",
        "/download/pprof",
        "/none",
        "/?token=",
        &format!("/?token={wrong}"),
    ] {
        for cookie in [String::new(), format!("profiler-{}={wrong}", served.port)] {
            let answer = served.get(path, &[("Cookie", &cookie)]);
            assert_eq!((answer.status, &*answer.body), (401, &b"unauthorized\n"[..]), "{path}");
            assert!(!answer.head.contains("set-cookie"), "{}", answer.head);
        }
    }
    // A name of another site that leads here, and a page of another site.
    for host in ["evil.example", "evil.example:7717", "127.0.0.1.evil.example", "10.0.0.1"] {
        assert_eq!(served.get("/data", &[("Host", host)]).status, 421, "{host}");
        assert_eq!(
            served.get(&format!("/?token={token}"), &[("Host", host)]).status,
            421,
            "{host}"
        );
    }
    assert_eq!(served.get("/data", &[("Origin", "http://evil.example")]).status, 403);
    assert_eq!(served.get("/data", &[("Sec-Fetch-Site", "cross-site")]).status, 403);
    assert_eq!(served.ask(b"GET / HTTP/1.1\r\n\r\n").status, 400);
    for path in ["/../../etc/passwd", "/download/../data", "/download/%2e%2e", "//data", "/data/"] {
        assert_eq!(served.get(path, &[]).status, 404, "{path}");
    }
    assert_eq!(served.get("/data?span=all", &[]).status, 400);
    assert_eq!(
        served.ask(&served.request("POST", "/data", &[("Content-Length", "0")])).status,
        405
    );
    assert_eq!(served.ask(&served.request("OPTIONS", "/data", &[])).status, 405);
    // What is too large is answered or cut off, and kept by nobody.
    let long = "a".repeat(1 << 20);
    let status = served.get("/", &[("X-Long", &long)]).status;
    assert!(matches!(status, 0 | 431), "{status}");
    let status = served.get(&format!("/{long}"), &[]).status;
    assert!(matches!(status, 0 | 400 | 414 | 431), "{status}");
    assert_ne!(served.ask(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").status, 200);
    // Those who say nothing hold up no other.
    let _silent: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(("127.0.0.1", served.port)).unwrap()).collect();
    assert_eq!(served.get("/data", &[]).status, 200);
    let ended = served.run.end_by(libc::SIGTERM);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn other_machines_may_connect_only_if_that_was_asked_for() {
    let said = |arguments: &[&str]| {
        let output = run(&[&["serve"], arguments].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, stderr) = said(&["--listen", "0.0.0.0:0"]);
    assert!(code == Some(2) && stderr.contains("--allow-remote"), "{stderr}");
    let (code, stderr) = said(&["--listen", "nowhere"]);
    assert!(code == Some(2) && stderr.contains("not an address"), "{stderr}");
    // TEST-NET-1: https://www.rfc-editor.org/rfc/rfc5737
    let (code, stderr) = said(&["--listen", "192.0.2.1:0", "--allow-remote"]);
    assert!(code == Some(1) && stderr.contains("no such address"), "{stderr}");

    let served = Served::start(&["--listen", "0.0.0.0:0", "--allow-remote"]);
    let port = served.port;
    wait_until("the risk is told", || served.run.has_said("listen in"));
    assert_eq!(served.get("/data", &[("Host", &format!("10.0.0.1:{port}"))]).status, 200);
    assert_eq!(served.get("/data", &[("Host", "evil.example")]).status, 421);
    assert_eq!(served.get("/data", &[("Cookie", "")]).status, 401);
    let (code, stderr) = said(&["--listen", &port.to_string()]);
    let owner = format!("profiler (pid {}) listens there", served.run.child.id());
    assert!(code == Some(1) && stderr.contains(&owner), "{stderr}");
    assert_eq!(served.run.end_by(libc::SIGINT).code, Some(0));
}
