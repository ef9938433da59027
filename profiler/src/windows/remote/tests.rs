//! What becomes of windows, whatever the store does.

mod receiver;
mod tls;

use std::{
    io::Read as _,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use profiler_profile::{
    sample::{Sample, Task},
    source::{self, Counts as Counted, Rate},
    stack_end::StackEnd,
    store::Store as Stacks,
};

use self::receiver::{Deed, answer, start};
use super::*;
use crate::windows::{Fates, tests::window as empty_window};

/// A window with a sample.
fn window() -> Window {
    let mut window = empty_window();
    window.profile = profiler_profile::profile::Profile::new(1 << 20);
    let empty = Stacks::default().empty();
    window.profile.add(&Sample {
        source: Arc::new(source::Source {
            slot: 0,
            name: "cpu-clock".into(),
            counts: Counted::Clock,
            rate: Rate::Frequency(19),
        }),
        time_ns: 1,
        value: 1,
        cpu: 0,
        task: Task::default(),
        kernel: Arc::clone(&empty),
        user: empty,
        user_end: StackEnd::NotCaptured,
        from_snapshot: false,
    });
    window
}

fn connection() -> Connection {
    Connection { timeout: Duration::from_secs(60), ..Connection::default() }
}

fn open(url: &str, spool: &Path, connection: &Connection, headers: &[Header]) -> (Remote, Counts) {
    let sender = Sender { host: "a".into(), labels: Vec::new(), max_bytes: 1 << 20 };
    let url = url.parse().unwrap();
    let spool = (spool, 1 << 20);
    (Remote::open(&OTLP, &url, connection, headers, sender, spool).unwrap(), Counts::default())
}

/// What has become of a window whose store does this.
fn fate_of(deed: Deed, connection: &Connection) -> (Fates, Remote) {
    let dir = tempfile::tempdir().unwrap();
    let (url, _requests) = start(vec![deed]);
    let (mut remote, counts) = open(&url, dir.path(), connection, &[]);
    remote.take(&window(), &counts).unwrap();
    remote.go_on(&counts);
    (counts.read(true), remote)
}

#[test]
fn a_window_is_sent_and_gone() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "abc\n").unwrap();
    let header = format!("Authorization=Bearer @{}", token.display()).parse().unwrap();
    let (url, requests) = start(vec![answer("200 OK", "", b"")]);
    let (mut remote, counts) = open(&url, dir.path(), &connection(), &[header]);
    remote.take(&window(), &counts).unwrap();
    assert_eq!((counts.read(true).spooled, counts.read(true).written), (1, 0));
    assert_eq!(remote.go_on(&counts), None);
    let fates = counts.read(true);
    assert_eq!((fates.spooled, fates.spooled_bytes, fates.written), (0, 0, 1));
    let request = requests.recv().unwrap();
    assert_eq!(fates.bytes, request.body.len() as u64);
    let head = request.head.to_lowercase();
    assert!(head.starts_with("post /v1development/profiles http/1.1\r\n"), "{head}");
    for line in [
        "content-type: application/x-protobuf\r\n",
        "content-encoding: gzip\r\n",
        "authorization: bearer abc\r\n",
    ] {
        assert!(head.contains(line), "{head}");
    }
    let mut body = Vec::new();
    flate2::read::GzDecoder::new(&*request.body).read_to_end(&mut body).unwrap();
    assert!(body.windows(12).any(|it| it == b"service.name"));
    assert!(remote.name().starts_with("otlp http://127.0.0.1:"));
}

#[test]
fn a_window_that_is_empty_is_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    // Nobody listens there.
    let (mut remote, counts) = open("http://127.0.0.1:1", dir.path(), &connection(), &[]);
    remote.take(&empty_window(), &counts).unwrap();
    assert_eq!((counts.read(true).written, remote.go_on(&counts)), (1, None));
}

#[test]
fn whatever_the_store_does_a_window_has_one_fate() {
    let page = b"<html>log in</html>";
    // rejected_profiles: 2, error_message: "old"
    let partial = [0x0a, 7, 8, 2, 0x12, 3, b'o', b'l', b'd'];
    let packed = "content-encoding: gzip\r\ncontent-type: application/x-protobuf\r\n";
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut bomb, &vec![0; 4 << 20]).unwrap();
    let bomb = bomb.finish().unwrap();
    let (sent, away, refused) = ((1, 0, 0), (0, 1, 0), (0, 0, 1));
    for (what, deed, expected) in [
        ("200", answer("200 OK", "", b""), sent),
        ("partial", answer("200 OK", "", &partial), sent),
        ("a page", answer("200 OK", "content-type: text/html\r\n", page), away),
        ("a page by another name", answer("200 OK", "", page), away),
        ("elsewhere", answer("302 Found", "location: http://127.0.0.1:1/\r\n", b""), refused),
        ("400", answer("400 Bad Request", "", b"no"), refused),
        ("401", answer("401 Unauthorized", "", b"no"), refused),
        ("413", answer("413 Too Large", "", b"no"), refused),
        ("429", answer("429 Slow", "retry-after: 3000\r\n", b""), away),
        ("503", answer("503 Away", "", b""), away),
        ("a bomb, that is not unpacked", answer("200 OK", packed, &bomb), sent),
        ("no HTTP", Deed::Answer(b"SSH-2.0-x\r\n".to_vec()), away),
        (
            "half an answer",
            Deed::Answer(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx".to_vec()),
            away,
        ),
        (
            "endless headers",
            Deed::Endless(b"HTTP/1.1 200 OK\r\n", b"x-a: bbbbbbbbbbbbbbbb\r\n"),
            away,
        ),
        ("an endless line", Deed::Endless(b"HTTP/1.1 200 OK\r\nx-a: ", b"bbbbbbbbbbbbbbbb"), away),
        // What is read of it is not what a receiver says, and it was taken nevertheless.
        ("an endless answer", Deed::Endless(b"HTTP/1.1 200 OK\r\n\r\n", b"bbbbbbbbbbbbbbbb"), sent),
        ("a reset", Deed::Close, away),
    ] {
        let (fates, remote) = fate_of(deed, &connection());
        let counts = (fates.written, fates.spooled, fates.refused);
        assert_eq!(counts, expected, "{what}: {fates:?}");
        assert_eq!(fates.retries, fates.spooled, "{what}");
        assert_eq!(fates.rejected, if what == "partial" { 2 } else { 0 });
        let waits = remote.backoff.until().map(|it| it.saturating_duration_since(Instant::now()));
        assert_eq!(waits.is_some(), expected == away, "{what}");
        assert_eq!(waits > Some(Duration::from_secs(2000)), what == "429", "{waits:?}");
    }
}

#[test]
fn a_store_that_hangs_is_given_up() {
    let short = Connection { timeout: Duration::from_millis(50), ..connection() };
    let (fates, _) = fate_of(Deed::Hang, &short);
    assert_eq!((fates.retries, fates.spooled), (1, 1));
    // At the end nobody waits for the usual time.
    let dir = tempfile::tempdir().unwrap();
    let (url, _requests) = start(vec![Deed::Hang]);
    let (mut remote, counts) = open(&url, dir.path(), &connection(), &[]);
    remote.take(&window(), &counts).unwrap();
    remote.finish(&counts, Instant::now() + Duration::from_millis(50));
    assert_eq!((counts.read(true).retries, counts.read(true).spooled), (1, 1));
}

#[test]
fn windows_wait_for_a_store_that_is_away_and_for_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let away = || answer("503 Away", "", b"");
    let (url, _requests) = start(vec![away(), Deed::Close]);
    let (mut remote, counts) = open(&url, dir.path(), &connection(), &[]);
    remote.take(&window(), &counts).unwrap();
    assert!(remote.go_on(&counts).is_some());
    remote.take(&window(), &counts).unwrap();
    remote.backoff.succeed();
    remote.go_on(&counts);
    assert_eq!((counts.read(true).spooled, counts.read(true).retries), (2, 2));
    // As if it was killed.
    drop(remote);
    let (url, requests) = start((0..3).map(|_| answer("200 OK", "", b"")).collect());
    let (mut remote, counts) = open(&url, dir.path(), &connection(), &[]);
    remote.take(&window(), &counts).unwrap();
    while remote.go_on(&counts).is_some() {}
    assert_eq!((counts.read(true).written, counts.read(true).spooled), (3, 0));
    assert_eq!(requests.try_iter().count(), 3);
}

#[test]
fn a_spool_that_is_damaged_or_full_costs_counted_windows() {
    let dir = tempfile::tempdir().unwrap();
    let (mut remote, counts) = open("http://127.0.0.1:1", dir.path(), &connection(), &[]);
    remote.take(&window(), &counts).unwrap();
    remote.take(&window(), &counts).unwrap();
    std::fs::write(dir.path().join("otlp/0000000000000000.window"), "x").unwrap();
    remote.go_on(&counts);
    let fates = counts.read(true);
    assert_eq!((fates.dropped.spool_damaged, fates.spooled), (1, 1));
    drop(remote);

    let sender = Sender { host: "a".into(), labels: Vec::new(), max_bytes: 1 << 20 };
    let url = "http://127.0.0.1:1".parse().unwrap();
    let small = (dir.path(), counts.spooled_bytes.load(Ordering::Relaxed) * 2 + 1);
    let mut remote = Remote::open(&OTLP, &url, &connection(), &[], sender, small).unwrap();
    (0..3).for_each(|_| remote.take(&window(), &counts).unwrap());
    let fates = counts.read(true);
    assert_eq!((fates.dropped.spool_full, fates.spooled), (2, 2));
}

#[test]
fn a_window_that_can_not_be_read_now_is_sent_later() {
    let dir = tempfile::tempdir().unwrap();
    let (url, _requests) = start(vec![answer("200 OK", "", b"")]);
    let (mut remote, counts) = open(&url, dir.path(), &connection(), &[]);
    remote.take(&window(), &counts).unwrap();
    let path = dir.path().join("otlp/0000000000000000.window");
    let aside = dir.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    // Can be opened, and not be read.
    std::fs::create_dir(&path).unwrap();
    assert!(remote.go_on(&counts).is_some());
    let fates = counts.read(true);
    assert_eq!((fates.retries, fates.spooled, fates.dropped.total()), (1, 1, 0));
    assert!(remote.backoff.until().is_some());
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(&aside, &path).unwrap();
    remote.backoff.succeed();
    assert_eq!((remote.go_on(&counts), counts.read(true).written), (None, 1));
}

#[test]
fn a_secret_that_is_gone_is_away_and_one_that_never_was_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    let header: Header = format!("X-Token=@{}", token.display()).parse().unwrap();
    let url = "http://127.0.0.1:1".parse().unwrap();
    let error = Client::new(&OTLP, &url, &connection(), std::slice::from_ref(&header)).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().starts_with("--otlp-header: cannot read "), "{error}");
    std::fs::write(&token, "abc").unwrap();
    let (mut remote, counts) = open("http://127.0.0.1:1", dir.path(), &connection(), &[header]);
    std::fs::remove_file(&token).unwrap();
    remote.take(&window(), &counts).unwrap();
    remote.go_on(&counts);
    assert_eq!((counts.read(true).retries, counts.read(true).spooled), (1, 1));
}
