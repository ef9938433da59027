//! Programs to profile, and the profiler itself as a user runs it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// A run that waits for something ends by itself after this long, and the test fails.
const FAR_AWAY: &str = "60s";

static BUILT: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

/// The profiler, as cargo has built it.
pub(crate) fn profiler() -> Command {
    Command::new(env!("CARGO_BIN_EXE_profiler"))
}

/// Runs the profiler to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    profiler().args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// A running program that is killed when dropped.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    /// Compiles `tests/fixtures/NAME` and starts it.
    pub(crate) fn start(name: &str) -> Self {
        let program = build(name);
        Self(Command::new(program).stdin(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// CPU time used so far, in clock ticks.
    fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Waits until the program has run for so many more ticks of CPU time.
    pub(crate) fn wait_for_ticks(&self, ticks: u64) {
        let start = self.cpu_ticks();
        wait_until("the program has run", || self.cpu_ticks() >= start + ticks);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", self.0.id()));
    }
}

/// The compiled fixture, with frame pointers and debug info.
pub(crate) fn build(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let program = BUILT.path().join(name.replace('.', "-"));
    if program.exists() {
        return program;
    }
    let mut compiler;
    if source.extension() == Some("rs".as_ref()) {
        compiler = Command::new("rustc");
        compiler.args(["-O", "-g", "-Cforce-frame-pointers=yes", "--edition=2024"]);
    } else {
        compiler = Command::new("cc");
        // Optimized, gcc leaves the frame pointer out of a leaf whatever it is told.
        compiler.args(["-O0", "-g", "-fno-omit-frame-pointer"]);
    }
    let status = compiler.arg("-o").arg(&program).arg(source).status().unwrap();
    assert!(status.success(), "{compiler:?}");
    program
}

/// A profiler that is running.
pub(crate) struct Run {
    pub(crate) child: Child,
    pub(crate) lines: BufReader<ChildStdout>,
}

/// What a run has left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// What was not read before.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Starts the profiler; it ends by itself when all else fails.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let child = profiler()
            .args(["-d", FAR_AWAY])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self::of(child)
    }

    /// A profiler that runs with its outputs in pipes.
    pub(crate) fn of(mut child: Child) -> Self {
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line of standard output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut stderr = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            panic!("the profiler ended before the expected output came:\n{stderr}");
        }
        line
    }

    /// Reads JSON samples until one is as wanted.
    pub(crate) fn sample(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let sample: Value = serde_json::from_str(&self.line()).unwrap();
            if wanted(&sample) {
                return sample;
            }
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Sends the signal, and waits for the end.
    pub(crate) fn end_by(mut self, signal: i32) -> Ended {
        self.signal(signal);
        let mut stdout = String::new();
        self.lines.read_to_string(&mut stdout).unwrap();
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        Ended { code: status.code(), signal: status.signal(), stdout, stderr }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The symbols of a half of a JSON sample, innermost first.
pub(crate) fn symbols(half: &Value) -> Vec<&str> {
    let frames = half.as_array().unwrap().iter();
    frames.map(|frame| frame["symbol"].as_str().unwrap_or("?")).collect()
}

/// The samples and the summary of a JSON run that has ended.
pub(crate) fn parse_json(text: &str) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut last = lines.pop().unwrap();
    (lines, last["summary"].take())
}

/// The sum of the numbers in an object.
pub(crate) fn sum(object: &Value) -> u64 {
    object.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Names of our programs and maps that are in the kernel.
pub(crate) fn left_in_kernel() -> Vec<String> {
    let mut left = Vec::new();
    for (kind, ours) in [
        ("prog", &["sample"][..]),
        ("map", &["SAMPLES", "SCRATCH", "COUNTERS", "PIDS", "AYA_LOGS"]),
        ("link", &["sample"]),
    ] {
        let bpftool = ["/usr/sbin/bpftool", "bpftool"]
            .into_iter()
            .find_map(|bpftool| Command::new(bpftool).args(["--json", kind]).output().ok());
        let found: Value = serde_json::from_slice(&bpftool.unwrap().stdout).unwrap();
        for object in found.as_array().into_iter().flatten() {
            let name = object["name"].as_str().unwrap_or_default();
            if ours.contains(&name) {
                left.push(format!("{kind} {name}"));
            }
        }
    }
    left
}
