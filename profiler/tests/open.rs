//! `report --open`, as a user runs it and a browser sees it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

const PAGE: &str = "<!DOCTYPE html>\n<title>Profile</title>\n<p>60 samples</p>\n";
/// A condition that does not hold after this time never will.
const LONG: Duration = Duration::from_secs(180);

/// A profiler that shows a page.
struct Viewer {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// The line that tells where the page is.
    told: String,
    port: u16,
    path: String,
}

/// `report --open`, without a screen.
fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    command.args(["report", "--open", "a.html"]).current_dir(dir);
    for name in
        ["DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SUDO_UID", "SUDO_GID", "SUDO_USER"]
    {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Viewer {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut told = String::new();
        stderr.read_line(&mut told).unwrap();
        let (_, address) = told.split_once("http://127.0.0.1:").expect("the address is told");
        let (port, path) = address.split_whitespace().next().unwrap().split_once('/').unwrap();
        let (port, path) = (port.parse().unwrap(), format!("/{path}"));
        Self { child, stderr, told, port, path }
    }

    /// What it answers to a request with this head: a head and a body.
    fn answer(&self, head: &str) -> (String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("\r\nReferrer-Policy: no-referrer\r\n"), "{head}");
        assert!(head.contains("frame-ancestors 'none'"), "{head}");
        (head.to_owned() + "\r\n", body.to_owned())
    }

    /// The same: the status and the body.
    fn ask(&self, head: &str) -> (u16, String) {
        let (head, body) = self.answer(head);
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }

    fn get(&self, path: &str, host: &str) -> (u16, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    }

    /// Sends the signal; how it ended, and what else it had to say.
    fn end_by(&mut self, signal: i32) -> (ExitStatus, String) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        let status = self.child.wait().unwrap();
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (status, rest)
    }

    fn is_served(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.html"), PAGE).unwrap();
    dir
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_page_is_for_who_knows_its_address() {
    let dir = folder();
    let mut viewer = Viewer::start(command(dir.path()));
    let (path, port) = (viewer.path.clone(), viewer.port);
    assert_eq!(path.len(), 33, "{path}");
    let host = format!("127.0.0.1:{port}");
    // Not only once.
    for host in [&host, &format!("localhost:{port}"), &host] {
        assert_eq!(viewer.get(&path, host), (200, PAGE.to_owned()));
    }
    let head = format!("HEAD {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    assert_eq!(viewer.ask(&head), (200, String::new()));
    for wrong in ["/", "/favicon.ico", &path[..32], &format!("/{}", "0".repeat(32))] {
        assert_eq!(viewer.get(wrong, &host).0, 404, "{wrong}");
    }
    let post = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(viewer.ask(&post).0, 404);
    // As a name of another site that leads here.
    for wrong in ["evil.example", "127.0.0.1", "localhost:1"] {
        assert_eq!(viewer.get(&path, wrong).0, 421, "{wrong}");
    }
    assert_eq!(viewer.ask("GET / HTTP/1.1\r\n\r\n").0, 400);
    let long =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {}\r\n\r\n", "a".repeat(9 << 10));
    assert_eq!(viewer.ask(&long).0, 400);
    // One that says nothing holds up no other.
    let _silent: Vec<TcpStream> =
        (0..8).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    assert_eq!(viewer.get(&path, &host).0, 200);
    let (status, rest) = viewer.end_by(libc::SIGINT);
    assert_eq!((status.code(), &*rest), (Some(0), ""));
    assert!(!viewer.is_served());
}

#[test]
fn without_a_screen_the_way_to_the_page_is_told() {
    let dir = folder();
    let mut of_ssh = command(dir.path());
    of_ssh.env("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.1 2222").env("USER", "ann");
    let mut viewer = Viewer::start(of_ssh);
    let port = viewer.port;
    let way = format!("ssh -N -L {port}:127.0.0.1:{port} -p 2222 ann@10.0.0.1\n");
    assert!(viewer.told.ends_with(&way), "{}", viewer.told);
    assert_eq!(viewer.end_by(libc::SIGTERM).0.code(), Some(0));
}

#[test]
fn a_browser_is_the_users_and_never_roots() {
    let dir = folder();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let opened = dir.path().join("opened");
    let script =
        format!("#!/bin/sh\necho \"$(id -u) $1\" > {0}.new && mv {0}.new {0}\n", opened.display());
    let browser = dir.path().join("xdg-open");
    fs::write(&browser, script).unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let on_screen = || {
        let mut command = command(dir.path());
        command.env("DISPLAY", ":0").env("PATH", &path);
        command
    };
    // SAFETY: no preconditions.
    let own = unsafe { libc::geteuid() };
    let mut as_user = on_screen();
    let user = if own == 0 { 12345 } else { own };
    if own == 0 {
        as_user.env("SUDO_UID", user.to_string()).env("SUDO_GID", user.to_string());
    }
    let mut viewer = Viewer::start(as_user);
    wait_until("a browser is started", || opened.exists());
    let text = fs::read_to_string(&opened).unwrap();
    let begin = format!("{user} http://127.0.0.1:{}", viewer.port);
    // Others see command lines: this path leads to the page once.
    let ticket = text.trim_end().strip_prefix(&begin).expect("whose browser, and what it opens");
    assert_ne!(ticket, viewer.path);
    let host = format!("127.0.0.1:{}", viewer.port);
    let location = format!("\r\nLocation: {}\r\n", viewer.path);
    let (head, _) = viewer.answer(&format!("GET {ticket} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 303 ") && head.contains(&location), "{head}");
    assert_eq!(viewer.get(ticket, &host).0, 404);
    assert_eq!(viewer.get(&viewer.path, &host).0, 200);
    let (status, rest) = viewer.end_by(libc::SIGINT);
    assert_eq!((status.code(), &*rest), (Some(0), ""));
    if own == 0 {
        fs::remove_file(&opened).unwrap();
        let mut viewer = Viewer::start(on_screen());
        assert!(viewer.told.ends_with(": open it in a browser\n"), "{}", viewer.told);
        assert_eq!(viewer.get(&viewer.path, &format!("localhost:{}", viewer.port)).0, 200);
        viewer.end_by(libc::SIGINT);
        assert!(!opened.exists());
    }
}

#[test]
fn another_user_is_told_nothing() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 || !Path::new("/bin/bash").exists() {
        profiler::stderr::say("skipped: it takes root and bash to connect as another user");
        return;
    }
    let dir = folder();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut as_user = command(dir.path());
    as_user.env("SUDO_UID", "12345").env("SUDO_GID", "12345");
    let viewer = Viewer::start(as_user);
    let (port, path) = (viewer.port, &viewer.path);
    let ask = |uid: u32| {
        let request = format!("GET {path} HTTP/1.1\\r\\nHost: localhost:{port}\\r\\n\\r\\n");
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{request}' >&3; cat <&3 2>/dev/null"
        );
        let mut client = Command::new("/bin/bash");
        let output = client.args(["-c", &script]).uid(uid).gid(uid).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(ask(12345).ends_with(PAGE));
    assert_eq!(ask(12346), "");
}

#[test]
fn it_ends_with_who_has_started_it() {
    let dir = folder();
    let mut viewer = Viewer::start(command(dir.path()));
    assert!(viewer.is_served());
    viewer.child.kill().unwrap();
    viewer.child.wait().unwrap();
    wait_until("nobody listens", || !viewer.is_served());
}

#[test]
fn a_page_is_made_of_a_profile() {
    let dir = folder();
    fs::write(dir.path().join("a.html"), "web;main;parse 3\nweb;main 1\n").unwrap();
    let mut viewer = Viewer::start(command(dir.path()));
    let (status, page) = viewer.get(&viewer.path, &format!("localhost:{}", viewer.port));
    assert!(status == 200 && page.starts_with("<!DOCTYPE html>"), "{page}");
    assert!(page.contains("\"parse\"") && page.contains("\"main\""), "{page}");
    assert_eq!(viewer.end_by(libc::SIGINT).0.code(), Some(0));
}

#[test]
fn what_is_no_profile_is_refused() {
    let dir = folder();
    for (text, part) in [("a;b\n", "line 1"), ("", "it is empty")] {
        fs::write(dir.path().join("a.html"), text).unwrap();
        let output = command(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("cannot read a.html") && said.contains(part), "{said}");
    }
    let output = command(dir.path()).arg("--tree").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
