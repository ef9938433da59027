//! The agent, and the profilers beside it, as child processes that are looked at from outside.

use std::{
    fs::{self, File},
    io::Read as _,
    mem::MaybeUninit,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    Result,
    bpf::{self, Loaded},
    interrupts,
};

/// How long an agent may take to load its program, and a peer to open its events.
const START_LIMIT: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(10);

/// A profiler while it runs; killed when dropped.
pub(crate) struct Agent(Option<Child>);

/// Pages in RAM, in MiB.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Resident {
    /// Heap and stacks of threads.
    anon_mib: f64,
    /// Mapped files, the program's own among them, and the rings.
    file_mib: f64,
}

impl Resident {
    fn of(pid: &str) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mib = |name: &str| -> Result<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next());
            Ok(kib.ok_or("it says nothing of its memory")?.parse::<f64>()? / 1024.0)
        };
        let file_mib = mib("RssFile:")? + mib("RssShmem:")?;
        Ok(Self { anon_mib: mib("RssAnon:")?, file_mib })
    }

    pub(crate) fn text(self) -> String {
        let Self { anon_mib, file_mib } = self;
        format!("{:.0} ({anon_mib:.0} + {file_mib:.0})", anon_mib + file_mib)
    }
}

/// A program that has ended by itself.
pub(crate) struct Ended {
    /// In seconds.
    pub(crate) user: f64,
    /// In seconds.
    pub(crate) system: f64,
    /// The largest resident set, in KiB.
    pub(crate) peak_kib: i64,
    /// What it said on standard error.
    stderr: String,
}

impl Agent {
    /// Starts our own with these words as arguments. All it prints but the report goes to a pipe.
    pub(crate) fn start(path: &Path, arguments: &str, stdout: Stdio) -> Result<Self> {
        let mut command = Command::new(path);
        command.args(["-e", "cpu-clock"]).args(arguments.split_whitespace());
        Self::spawn(&mut command, stdout)
    }

    /// The same, with JSON to a file.
    pub(crate) fn start_json(path: &Path, arguments: &str, output: &Path) -> Result<Self> {
        Self::start(path, &format!("-f json {arguments}"), File::create(output)?.into())
    }

    /// Starts any.
    pub(crate) fn spawn(command: &mut Command, stdout: Stdio) -> Result<Self> {
        interrupts::heed(command);
        let child = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn();
        let child = child
            .map_err(|error| format!("cannot run {}: {error}", command.get_program().display()));
        Ok(Self(Some(child?)))
    }

    /// Waits until a program of it is loaded that runs at events.
    pub(crate) fn loaded(&self) -> Result<Loaded> {
        self.wait_until("load a program", |pid| Loaded::by(pid).ok().filter(Loaded::runs_at_events))
    }

    /// Waits until it has opened events, as perf does just before it enables them.
    pub(crate) fn opened(&self) -> Result<()> {
        self.wait_until("open events", |pid| bpf::has_events(pid).then_some(()))
    }

    fn wait_until<T>(&self, what: &str, found: impl Fn(u32) -> Option<T>) -> Result<T> {
        let pid = self.pid()?;
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            if let Some(found) = found(pid.try_into()?) {
                return Ok(found);
            }
            thread::sleep(STEP);
        }
        Err(format!("process {pid} did not {what} in {} s", START_LIMIT.as_secs()).into())
    }

    /// What it and its parser processes have in RAM.
    pub(crate) fn resident(&self) -> Result<(Resident, Resident)> {
        let pid = self.pid()?;
        let mut parsers = Resident::default();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let children = fs::read_to_string(thread?.path().join("children"))?;
            for child in children.split_whitespace() {
                let of_child = Resident::of(child)?;
                parsers.anon_mib += of_child.anon_mib;
                parsers.file_mib += of_child.file_mib;
            }
        }
        Ok((Resident::of(&pid.to_string())?, parsers))
    }

    /// Has it end as by Ctrl-C, and waits until it has.
    pub(crate) fn end(self) -> Result<Ended> {
        // SAFETY: takes no pointer; the child is not reaped yet, so the id is still its own.
        if unsafe { libc::kill(self.pid()?, libc::SIGINT) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        self.wait()
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Result<Ended> {
        let pid = self.pid()?;
        let mut stderr = String::new();
        if let Some(mut pipe) = self.0.as_mut().and_then(|child| child.stderr.take()) {
            pipe.read_to_string(&mut stderr)?;
        }
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: both pointers are valid, and the child is ours and not reaped yet.
        if unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) } != pid {
            return Err(std::io::Error::last_os_error().into());
        }
        // It is reaped: its id means nothing any more.
        self.0 = None;
        // perf ends by the signal that has ended its recording.
        let interrupted = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGINT;
        if status != 0 && !interrupted {
            return Err(format!("process {pid} ended with {status:#x}:\n{stderr}").into());
        }
        // SAFETY: `wait4` has filled it.
        let usage = unsafe { usage.assume_init() };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Ok(Ended {
            user: seconds(usage.ru_utime),
            system: seconds(usage.ru_stime),
            peak_kib: usage.ru_maxrss,
            stderr,
        })
    }

    fn pid(&self) -> Result<libc::pid_t> {
        let child = self.0.as_ref().ok_or("the profiler has ended")?;
        Ok(child.id().try_into()?)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Ended {
    /// How many samples it has delivered, by its table on standard error.
    pub(crate) fn delivered(&self) -> Result<u64> {
        let row = self.stderr.lines().find_map(|line| line.strip_prefix("total"));
        let delivered = row.and_then(|row| row.split_whitespace().nth(1));
        let delivered = delivered.ok_or_else(|| format!("no total in:\n{}", self.stderr))?;
        Ok(delivered.parse()?)
    }

    /// How many samples the profiler itself has lost, by reason, by its table on standard error.
    pub(crate) fn lost(&self) -> Vec<(String, u64)> {
        let line = self.stderr.lines().find_map(|line| line.strip_prefix("lost: "));
        let reasons = line.into_iter().flat_map(|line| line.split(", "));
        let reasons = reasons.filter_map(|it| {
            let (reason, count) = it.rsplit_once(' ')?;
            Some((reason.to_owned(), count.parse().ok()?))
        });
        reasons.filter(|(reason, _)| reason != "missed by the kernel").collect()
    }
}
