//! Programs to profile, and the profiler itself as a user runs it.

use std::{
    collections::HashSet,
    env, fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use profiler::{bpf::features::EntryRegisters, stderr};
use profiler_common::settings::Program as EbpfProgram;
use serde_json::Value;

use crate::interrupts;

/// A run that waits for something ends by itself after this long, and the test fails.
const FAR_AWAY: &str = "180s";
/// A condition that does not hold after this time never will.
const LONG: Duration = Duration::from_secs(180);
/// When the kernel has freed what nobody holds.
const SOON: Duration = Duration::from_secs(10);

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

    /// Stops it until it [goes on](Self::go_on): it does not execute.
    pub(crate) fn pause(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.0.id());
        wait_until("the program is stopped", || {
            let stat = fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(')').unwrap().1.starts_with(" T")
        });
    }

    pub(crate) fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.0.id()).unwrap();
        // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Waits until the program has run for so many more ticks of CPU time.
    pub(crate) fn wait_for_ticks(&self, ticks: u64) {
        let start = cpu_ticks(self.0.id());
        wait_until("the program has run", || cpu_ticks(self.0.id()) >= start + ticks);
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

/// CPU time that a process has used so far, in clock ticks.
pub(crate) fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
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
        while !self.has_said(part) {
            self.line();
        }
    }

    /// Whether standard error has said this.
    pub(crate) fn has_said(&self, part: &str) -> bool {
        self.noticed.lock().unwrap().contains(part)
    }

    /// Whether it has not ended.
    pub(crate) fn is_alive(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        stat.is_ok_and(|it| it.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z")))
    }

    /// What standard error has said so far.
    pub(crate) fn said(&self) -> String {
        self.noticed.lock().unwrap().clone()
    }

    /// Waits until the events are enabled, which nothing on standard output tells of a run that delivers
    /// nothing: by the report that it is asked for, and gives then.
    pub(crate) fn wait_until_it_samples(&self) {
        let status = format!("/proc/{}/status", self.child.id());
        let is_heeded = || {
            let status = fs::read_to_string(&status).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
            caught & 1 << (libc::SIGUSR1 - 1) != 0
        };
        wait_until("the profiler heeds signals", is_heeded);
        self.signal(libc::SIGUSR1);
        let start = Instant::now();
        while !self.has_said(", so far\n") {
            let waits = self.is_alive() && start.elapsed() < LONG;
            assert!(waits, "it does not report that it samples: {}{}", self.said(), self.threads());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What its threads do, by the kernel, or how it ended: for who has to find out why nothing comes.
    fn threads(&self) -> String {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let about = |task: fs::DirEntry| {
            let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            format!("\n{}{}{}", read("comm"), read("stat"), read("stack"))
        };
        tasks.flatten().map(about).collect()
    }

    /// Standard error to its end, where it is a pipe.
    pub(crate) fn stderr(&mut self) -> String {
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

    /// From here on it can open no file.
    pub(crate) fn exhaust_files(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // Below are standard input and output.
        let limit = rustix::process::Rlimit { current: Some(3), maximum: Some(3) };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
    }

    /// Sends the signal, and waits for the end.
    pub(crate) fn end_by(self, signal: i32) -> Ended {
        self.signal(signal);
        self.end()
    }

    /// Whether its program is loaded.
    pub(crate) fn is_in_kernel(&self) -> bool {
        !Held::by(self.child.id()).programs.is_empty()
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Ended {
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

/// The samples and the summary of a JSON run that has ended and has written to a file. The stacks are left
/// out: those of a fast run take more memory than an emulated machine has.
pub(crate) fn read_json(path: &Path) -> (Vec<Value>, Value) {
    let mut lines = BufReader::new(fs::File::open(path).unwrap()).lines();
    let mut samples = Vec::new();
    loop {
        let line = lines.next().expect("the summary comes last").unwrap();
        let mut value: Value = serde_json::from_str(&line).unwrap();
        if value["type"] == "summary" {
            assert!(lines.next().is_none());
            return (samples, value["summary"].take());
        }
        assert_eq!(value["type"], "sample");
        for half in ["kernel", "user"] {
            value[half] = Value::Null;
        }
        samples.push(value);
    }
}

/// The samples and the summary of a JSON run that has ended.
pub(crate) fn parse_json(text: &str) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut last = lines.pop().unwrap();
    assert_eq!(last["type"], "summary", "{last}");
    assert!(lines.iter().all(|line| line["type"] == "sample"));
    (lines, last["summary"].take())
}

/// The sum of the numbers in an object.
pub(crate) fn sum(object: &Value) -> u64 {
    object.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

/// Whether this kernel walks user stacks by tables; if not, says so.
pub(crate) fn has_tables() -> bool {
    let Err(lacks) = EntryRegisters::of_kernel() else { return true };
    stderr::say(&format!("skipped: this kernel lacks {lacks}"));
    false
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Names of the profiler's programs and maps that stay in the kernel, and that no process holds. Another instance may
/// run on this machine, and may be ending: what that gave up the kernel frees a moment later.
pub(crate) fn left_in_kernel() -> Vec<String> {
    let start = Instant::now();
    loop {
        let left = not_held();
        if left.is_empty() || start.elapsed() > SOON {
            return left;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Those that are there now.
fn not_held() -> Vec<String> {
    let names = EbpfProgram::ALL.map(EbpfProgram::names).concat();
    let maps = [
        "SAMPLES",
        "PERIODS",
        "SCRATCH",
        "COUNTERS",
        "PIDS",
        "OWN",
        "AYA_LOGS",
        "SPACES",
        "BLOCKS",
        "RULE",
        "WANTED",
        "CACHE",
        "HIT_FILTERS",
        "TEXTS",
    ];
    // What is freed while it is listed is gone, too.
    let named = |id: u32, name: Option<&str>, names: &[&str]| {
        name.filter(|name| names.contains(name)).map(|name| (id, name.to_owned()))
    };
    let programs = aya::programs::loaded_programs().flatten();
    let programs = programs.filter_map(|it| named(it.id(), it.name_as_str(), &names));
    let programs: Vec<(u32, String)> = programs.collect();
    let loaded: Vec<_> = aya::maps::loaded_maps().flatten().collect();
    let of_maps = loaded.iter().filter_map(|it| named(it.id(), it.name_as_str(), &maps));
    let of_maps: Vec<(u32, String)> = of_maps.collect();
    let tables = loaded.iter().filter_map(|it| named(it.id(), it.name_as_str(), &["TABLE"]));
    let tables: Vec<(u32, String)> = tables.collect();
    // After the list, since a process may load something while it is made.
    let held = Held::by_all();
    let left_programs = programs.iter().filter(|(id, _)| !held.programs.contains(id));
    let left_maps = of_maps.iter().filter(|(id, _)| !held.maps.contains(id));
    // A table is held by a map that is held.
    let is_other = programs.iter().any(|(id, _)| held.programs.contains(id));
    let left_tables = tables.iter().filter(|_| !is_other);
    let programs = left_programs.map(|(_, name)| format!("program {name}"));
    programs.chain(left_maps.chain(left_tables).map(|(_, name)| format!("map {name}"))).collect()
}

/// The programs and maps in the kernel that processes have open, by their ids.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) programs: HashSet<u32>,
    maps: HashSet<u32>,
}

impl Held {
    fn by_all() -> Self {
        let mut held = Self::default();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            if let Some(pid) = process.file_name().to_str().and_then(|it| it.parse().ok()) {
                held.add(pid);
            }
        }
        held
    }

    /// Those of one process, which may be gone.
    pub(crate) fn by(pid: u32) -> Self {
        let mut held = Self::default();
        held.add(pid);
        held
    }

    /// `/proc/PID/fdinfo` tells: <https://docs.kernel.org/filesystems/proc.html>.
    fn add(&mut self, pid: u32) {
        for file in fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
            for line in fs::read_to_string(file.path()).unwrap_or_default().lines() {
                let Some((name, value)) = line.split_once(":\t") else { continue };
                let ids = match name {
                    "prog_id" => &mut self.programs,
                    "map_id" => &mut self.maps,
                    _ => continue,
                };
                ids.extend(value.parse::<u32>());
            }
        }
    }
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
