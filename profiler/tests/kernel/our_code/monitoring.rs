//! The HTTP port of `agent`, and what systemd is told.
#![expect(clippy::float_cmp, reason = "a float holds these numbers as they are")]

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::{net::UnixDatagram, process::CommandExt as _},
    process::{Command, Stdio},
    time::Duration,
};

use profiler_testing::skipped;
use tempfile::TempDir;

use crate::support::{Program, Run, profiler, run, wait_until};

/// An answer that does not come within this time never will.
const LONG: Duration = Duration::from_secs(180);

/// An agent whose port is known.
struct Agent {
    run: Run,
    port: u16,
    folder: TempDir,
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Agent {
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = profiler()
            .args(["agent", "--listen", "127.0.0.1:0", "--window", "1", "--folder"])
            .arg(folder.path())
            .args(arguments)
            .env_remove("SUDO_UID")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let run = Run::of(child.unwrap());
        wait_until("the address is told", || run.has_said("http://127.0.0.1:") || !run.is_alive());
        let said = run.said();
        let port = said.split_once("http://127.0.0.1:").unwrap().1.split_once('/').unwrap().0;
        let port = port.parse().unwrap();
        Self { run, port, folder }
    }

    /// A request with these headers, and what comes back.
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let host = format!("127.0.0.1:{}", self.port);
        let mut all = vec![("Host", &*host), ("Connection", "close")];
        for (name, value) in headers {
            all.retain(|(it, _)| it != name);
            all.push((name, value));
        }
        let mut lines = vec![format!("{method} {path} HTTP/1.1")];
        lines.extend(all.iter().map(|(name, value)| format!("{name}: {value}")));
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: bytes.split_off(end + 4) }
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[])
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn it_tells_whether_it_is_well_and_no_other_site() {
    let agent = Agent::start(&[], &[]);
    wait_until("it samples", || agent.get("/readyz").status == 200);
    let answer = agent.get("/healthz");
    assert_eq!((answer.status, &*answer.body), (200, &b"ok\n"[..]));
    assert!(answer.head.contains("cache-control: no-store"), "{}", answer.head);
    assert_eq!(agent.ask("HEAD", "/healthz", &[]).status, 200);
    let config = String::from_utf8(agent.get("/config").body).unwrap();
    assert!(config.contains("\nwindow = 1\n") && config.contains("\nfrequency = 19\n"), "{config}");
    assert_eq!(agent.ask("POST", "/healthz", &[]).status, 405);
    assert_eq!(agent.get("/none").status, 404);
    for (name, value, status) in [
        ("Host", "evil.example", 421),
        ("Host", "10.0.0.1", 421),
        ("Origin", "http://evil.example", 403),
        ("Sec-Fetch-Site", "cross-site", 403),
    ] {
        let answer = agent.ask("GET", "/healthz", &[(name, value)]);
        assert_eq!(answer.status, status, "{name}: {value}");
    }
    let ended = agent.run.end_by(libc::SIGTERM);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(TcpStream::connect(("127.0.0.1", agent.port)).is_err());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_address_that_can_not_be_had_is_refused_before_anything_is_loaded() {
    let agent = Agent::start(&[], &[]);
    let refused = |listen: &str| {
        let folder = agent.folder.path().to_str().unwrap();
        let output = run(&["agent", "--folder", folder, "--listen", listen]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    let owner = format!("profiler (pid {}) listens there", agent.run.child.id());
    let said = refused(&agent.port.to_string());
    assert!(said.contains(&owner) && said.contains("--listen none"), "{said}");
    assert!(refused("0.0.0.0").contains("--allow-remote"));
    assert!(refused("nowhere").contains("not an address"));
    // TEST-NET-1: https://www.rfc-editor.org/rfc/rfc5737
    let output = run(&["agent", "--listen", "192.0.2.1:0", "--allow-remote"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(agent.run.end_by(libc::SIGTERM).code, Some(0));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn systemd_is_told_that_it_is_ready_alive_and_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let told = || {
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let environment = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let agent = Agent::start(&[], &environment);
    assert_eq!(told(), "READY=1");
    assert_eq!(agent.get("/readyz").status, 200);
    assert_eq!([told(), told(), told()], ["WATCHDOG=1"; 3]);
    agent.run.signal(libc::SIGTERM);
    let mut last = told();
    while last == "WATCHDOG=1" {
        last = told();
    }
    assert_eq!(last, "STOPPING=1");
    assert_eq!(agent.run.end().code, Some(0));
}

/// The sum of the values of a name, with this text among the labels.
fn sum(metrics: &str, name: &str, label: &str) -> f64 {
    let of = metrics.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
    });
    of.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn metrics_add_up_and_agree_with_the_end() {
    let program = Program::start("chain.c");
    let agent = Agent::start(&["-p", &program.pid(), "-F", "99"], &[]);
    let mut metrics = String::new();
    wait_until("samples and windows are counted", || {
        let answer = agent.get("/metrics");
        assert!(matches!(answer.status, 200 | 503), "{}", answer.head);
        metrics = String::from_utf8(answer.body).unwrap();
        let [expected, delivered, filtered, lost] = ["expected", "delivered", "filtered", "lost"]
            .map(|it| sum(&metrics, &format!("profiler_samples_{it}_total"), ""));
        assert_eq!(expected, delivered + filtered + lost, "{metrics}");
        delivered > 100.0 && sum(&metrics, "profiler_windows_total", "fate=\"written\"") > 0.0
    });
    let answer = agent.get("/metrics");
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    let of = |name: &str, label: &str| sum(&metrics, name, label);
    assert!(of("profiler_user_stacks_total", "end=\"complete\"") > 0.0, "{metrics}");
    assert!(of("profiler_user_frames_total", "name=\"named\"") > 0.0, "{metrics}");
    assert!(of("profiler_resident_memory_bytes", "process=\"agent\"") > 1e6, "{metrics}");
    assert!(of("profiler_cpu_seconds_total", "process=\"agent\"") > 0.0, "{metrics}");
    assert!(of("profiler_kernel_map_bytes", "map=\"ring\"") >= 4096.0, "{metrics}");
    // Nothing about programs: every user may see it.
    assert!(!metrics.contains("chain") && !metrics.contains("fixtures"), "{metrics}");
    let delivered = of("profiler_samples_delivered_total", "");
    let ended = agent.run.end_by(libc::SIGTERM);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let at_the_end = ended.stderr.split(" samples: ").nth(1).unwrap();
    let at_the_end: f64 = at_the_end.split(' ').next().unwrap().parse().unwrap();
    assert!(delivered <= at_the_end, "{delivered} of {at_the_end}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn go_reads_a_profile_of_a_process() {
    let program = Program::start("chain.c");
    let agent = Agent::start(&["-F", "99"], &[]);
    wait_until("it samples", || agent.get("/readyz").status == 200);
    let path = format!("/debug/pprof/profile?seconds=2&pid={}", program.pid());
    let answer = agent.get(&path);
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert!(answer.head.contains("filename=\"profile.pb.gz\""), "{}", answer.head);
    // Packed.
    assert!(answer.body.starts_with(&[0x1f, 0x8b]));
    let file = agent.folder.path().join("profile.pb.gz");
    std::fs::write(&file, &answer.body).unwrap();
    let output = run(&["convert", file.to_str().unwrap(), "-", "-f", "folded"]);
    let folded = String::from_utf8(output.stdout).unwrap();
    let samples = folded.lines().map(|it| it.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    // All of its time, and nothing of other processes.
    let samples: u64 = samples.sum();
    assert!((1..=220).contains(&samples), "{samples}");
    assert!(folded.lines().all(|it| it.starts_with("chain-c;")), "{folded}");
    assert!(folded.contains(";main;outer;middle;inner "), "{folded}");

    let address = format!("http://127.0.0.1:{}{path}", agent.port);
    let go = Command::new("go").args(["tool", "pprof", "-raw", &address]).output();
    match go {
        Ok(go) => {
            let raw = String::from_utf8_lossy(&go.stdout);
            assert!(go.status.success() && raw.contains("inner"), "{go:?}");
        }
        Err(error) => skipped(&format!("go tool pprof: {error}")),
    }
    assert_eq!(agent.run.end_by(libc::SIGTERM).code, Some(0));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn profiles_are_for_few_and_few_at_once() {
    let agent = Agent::start(&[], &[]);
    wait_until("it samples", || agent.get("/readyz").status == 200);
    for (query, status) in [("seconds=0", 400), ("seconds=601", 400), ("pid=x", 400), ("x", 400)] {
        assert_eq!(agent.get(&format!("/debug/pprof/profile?{query}")).status, status, "{query}");
    }
    assert_eq!(agent.ask("HEAD", "/debug/pprof/profile", &[]).status, 405);
    let of_other_site = [("Sec-Fetch-Site", "cross-site")];
    assert_eq!(agent.ask("GET", "/debug/pprof/profile?seconds=1", &of_other_site).status, 403);

    // Whoever else is on this machine may know how it is, and no more.
    let as_nobody = |path: &str| {
        let mut shell = Command::new("bash");
        let request =
            format!("GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n");
        let port = agent.port;
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{request}' >&3; cat <&3");
        let output = shell.args(["-c", &script]).uid(65534).gid(65534).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(as_nobody("/healthz").starts_with("HTTP/1.1 200"));
    assert!(as_nobody("/metrics").contains("profiler_samples_expected_total"));
    let refused = as_nobody("/debug/pprof/profile?seconds=1");
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("root"), "{refused}");
    assert!(as_nobody("/config").starts_with("HTTP/1.1 403"));

    let connect = || {
        let mut stream = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
        let request = "GET /debug/pprof/profile?seconds=600 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let as_many_as_may_be = || {
        let all: Vec<TcpStream> = (0..4).map(|_| connect()).collect();
        wait_until("they are being taken", || {
            agent.get("/debug/pprof/profile?seconds=1").status == 429
        });
        all
    };
    let long = as_many_as_may_be();
    // Who goes away leaves room.
    drop(long);
    wait_until("there is room", || agent.get("/debug/pprof/profile?seconds=1").status == 200);
    // The end does not wait for those that go on.
    let long = as_many_as_may_be();
    assert_eq!(agent.run.end_by(libc::SIGTERM).code, Some(0));
    for mut stream in long {
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        assert!(said.starts_with("HTTP/1.1 503") && said.contains("the run has ended"), "{said}");
    }
}
