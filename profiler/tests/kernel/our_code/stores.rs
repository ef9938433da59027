//! What `agent` sends to stores.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Stdio,
    sync::mpsc::{self, Receiver},
    thread,
};

use crate::support::{Program, Run, profiler, wait_until};

/// Sends to this port of this machine only, whose name it has to look up.
fn agent(port: u16, spool: &Path, program: &Program) -> Run {
    let child = profiler()
        .args(["agent", "--listen", "none", "--window", "1", "--folder", "none", "-F", "99"])
        .args(["--otlp", &format!("http://localhost:{port}"), "-p", &program.pid(), "--spool"])
        .arg(spool)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Run::of(child.unwrap())
}

/// Takes whatever comes; what came.
fn receive(listener: TcpListener) -> Receiver<Vec<u8>> {
    let (sender, bodies) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Some(body) = body(&stream) else { continue };
            let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            if sender.send(body).is_err() {
                return;
            }
        }
    });
    bodies
}

fn body(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    assert!(head.starts_with("POST /v1development/profiles "), "{head}");
    let length = |it: &str| it.to_lowercase().strip_prefix("content-length: ")?.parse().ok();
    let mut body = vec![0; head.lines().find_map(length)?];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

/// The windows that wait.
fn spooled(spool: &Path) -> usize {
    let entries = fs::read_dir(spool.join("otlp")).into_iter().flatten().flatten();
    entries.filter(|it| it.file_name().to_string_lossy().ends_with(".window")).count()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn windows_of_a_killed_agent_are_sent_by_the_next() {
    let program = Program::start("chain.c");
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut killed = agent(port, dir.path(), &program);
    wait_until("windows wait", || spooled(dir.path()) >= 2);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let left = spooled(dir.path());
    let bodies = receive(TcpListener::bind(("127.0.0.1", port)).unwrap());
    let next = agent(port, dir.path(), &program);
    let mut got = Vec::new();
    // Those that were left, and one more.
    wait_until("windows come", || {
        got.extend(bodies.try_iter());
        got.len() > left
    });
    let ended = next.end_by(libc::SIGTERM);
    got.extend(bodies.try_iter());
    assert_eq!((ended.code, spooled(dir.path())), (Some(0), 0), "{}", ended.stderr);
    let line = ended.stderr.lines().find(|it| it.starts_with("windows for otlp ")).unwrap();
    // The last window may be too short for a sample: nothing is sent of it.
    let is_sent = |count: usize| line.contains(&format!(": {count} sent ("));
    assert!(is_sent(got.len()) || is_sent(got.len() + 1), "{line}");
    assert!(line.ends_with(" 0 spooled, 0 dropped, 0 refused"), "{line}");
    // Gzipped.
    assert!(got.iter().all(|it| it.starts_with(&[0x1f, 0x8b])));
}
