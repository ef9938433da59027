//! Programs to profile, and the profiler itself as a user runs it.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use profiler::{bpf::features, stderr};
use serde_json::Value;

use crate::interrupts;

/// A run that waits for something ends by itself after this long, and the test fails.
const FAR_AWAY: &str = "180s";

/// The profiler: as cargo has built it, or where the tests were carried to another machine, the one
/// that was carried along.
pub(crate) fn profiler_path() -> PathBuf {
    let carried = env::var_os("PROFILER_TEST_AGENT");
    carried.map_or_else(|| env!("CARGO_BIN_EXE_profiler").into(), PathBuf::from)
}

/// The profiler, to be run.
pub(crate) fn profiler() -> Command {
    let mut command = Command::new(profiler_path());
    interrupts::heed(&mut command);
    command
}

/// Runs the profiler to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    profiler().args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// A running program that is killed when dropped.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    /// Starts the compiled `tests/fixtures/NAME`.
    pub(crate) fn start(name: &str) -> Self {
        Self(Command::new(fixture(name)).stdin(Stdio::null()).spawn().unwrap())
    }

    /// Starts the compiled `tests/fixtures/NAME` with arguments, and waits until it says that from now
    /// on its stacks are what the test knows.
    pub(crate) fn ready(name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(fixture(name));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut program = Self(command.spawn().unwrap());
        let said = program.0.stdout.as_mut().unwrap().read_exact(&mut [0]);
        said.unwrap_or_else(|error| panic!("{name} has ended: {error}"));
        program
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
        // What a program that makes code has written.
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", self.0.id()));
        let _ = fs::remove_file(format!("/tmp/jit-{}.dump", self.0.id()));
    }
}

/// The compiled `tests/fixtures/NAME`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    let dir = env::var_os("PROFILER_TEST_FIXTURES").expect("`cargo xtask test` sets it");
    let program = Path::new(&dir).join(name.replace('.', "-"));
    assert!(program.exists(), "`cargo xtask test` builds {}", program.display());
    program
}

/// Whether a fixture was built that needs a compiler which need not be there; if not, says so.
pub(crate) fn has_fixture(name: &str, compiler: &str) -> bool {
    let dir = env::var_os("PROFILER_TEST_FIXTURES").expect("`cargo xtask test` sets it");
    if Path::new(&dir).join(name.replace('.', "-")).exists() {
        return true;
    }
    let is_there = Command::new(compiler).stdin(Stdio::null()).output().is_ok();
    assert!(!is_there, "`cargo xtask test` builds {name}");
    stderr::say(&format!("skipped: {compiler} is not installed"));
    false
}

/// Whether a program is there that says its version, as busybox does not of what it has by that name; if
/// not, says so.
pub(crate) fn is_installed(program: &str) -> bool {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let is_there = output.is_ok_and(|output| output.status.success());
    if !is_there {
        stderr::say(&format!("skipped: {program} is not installed"));
    }
    is_there
}

/// A profiler that is running.
pub(crate) struct Run {
    pub(crate) child: Child,
    pub(crate) lines: BufReader<ChildStdout>,
    /// What has come on standard error, where it is a pipe, and the thread that reads it.
    noticed: Arc<Mutex<String>>,
    notices: Option<JoinHandle<()>>,
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
        let noticed = Arc::<Mutex<String>>::default();
        let notices = child.stderr.take().map(|stderr| {
            let noticed = Arc::clone(&noticed);
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            thread::spawn(move || lines.for_each(|it| *noticed.lock().unwrap() += &(it + "\n")))
        });
        Self { child, lines, noticed, notices }
    }

    /// The next line of standard output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        if line.is_empty() {
            let stderr = self.stderr();
            panic!("the profiler ended before the expected output came:\n{stderr}");
        }
        line
    }

    /// Reads samples until standard error says this.
    pub(crate) fn wait_for_notice(&mut self, part: &str) {
        while !self.noticed.lock().unwrap().contains(part) {
            self.line();
        }
    }

    /// Standard error to its end, where it is a pipe.
    fn stderr(&mut self) -> String {
        if let Some(notices) = self.notices.take() {
            notices.join().unwrap();
        }
        std::mem::take(&mut self.noticed.lock().unwrap())
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
        let stderr = self.stderr();
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

/// Whether this kernel walks user stacks by tables; if not, says so.
pub(crate) fn has_tables() -> bool {
    let Some(lacks) = features::missing_for_walk() else { return true };
    stderr::say(&format!("skipped: this kernel lacks {lacks}"));
    false
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(180), "waited in vain until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Names of our programs and maps that are in the kernel.
pub(crate) fn left_in_kernel() -> Vec<String> {
    let maps = [
        "SAMPLES", "SCRATCH", "COUNTERS", "PIDS", "AYA_LOGS", "SPACES", "BLOCKS", "RULE", "WANTED",
        "CACHE", "TABLE",
    ];
    let names = ["sample", "sample_walking"];
    let programs = aya::programs::loaded_programs();
    // What is freed while it is listed is gone, too.
    let programs = programs.flatten().filter_map(|it| Some(it.name_as_str()?.to_owned()));
    let loaded = aya::maps::loaded_maps().flatten();
    let loaded = loaded.filter_map(|it| Some(it.name_as_str()?.to_owned()));
    let programs = programs
        .filter(|name| names.contains(&name.as_str()))
        .map(|name| format!("program {name}"));
    let maps = loaded.filter(|name| maps.contains(&name.as_str())).map(|it| format!("map {it}"));
    programs.chain(maps).collect()
}

/// Whether one of the two programs is loaded.
pub(crate) fn is_in_kernel() -> bool {
    left_in_kernel().iter().any(|it| it.starts_with("program sample"))
}

/// A CPU that the tests may take offline; it is online again when this is dropped.
pub(crate) struct Cpu1(PathBuf);

impl Cpu1 {
    /// `None`, and the reason printed, where nobody has said that it may be taken, or it can't be.
    pub(crate) fn take() -> Option<Self> {
        if std::env::var_os("PROFILER_TEST_HOTPLUG").is_none() {
            stderr::say("skipped: takes CPU 1 from the machine; set PROFILER_TEST_HOTPLUG");
            return None;
        }
        let switch = Path::new("/sys/devices/system/cpu/cpu1/online").to_owned();
        if !switch.exists() {
            stderr::say(&format!("skipped: {} does not exist", switch.display()));
            return None;
        }
        Some(Self(switch))
    }

    pub(crate) fn set_online(&self, online: bool) {
        fs::write(&self.0, if online { "1" } else { "0" }).unwrap();
    }
}

impl Drop for Cpu1 {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "1");
    }
}

/// CLOCK_MONOTONIC, as samples have it.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) }, 0);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap()
}
