//! The agent, as a child process that is looked at from outside.

use std::{
    fs,
    io::Read as _,
    mem::MaybeUninit,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use aya::programs::loaded_programs;

use crate::{Result, RunStats};

/// The agent while it runs; killed when dropped.
pub(crate) struct Agent(Option<Child>);

/// An agent that has ended by itself.
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
    /// Starts it with these words as arguments. All it prints but the report goes to a pipe.
    pub(crate) fn start(path: &Path, arguments: &str, stdout: Stdio) -> Result<Self> {
        let mut command = Command::new(path);
        command.args(["-e", "cpu-clock"]).args(arguments.split_whitespace());
        let child = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn()?;
        Ok(Self(Some(child)))
    }

    /// Waits until its program is loaded; returns the program's id.
    pub(crate) fn program_id(&self) -> Result<u32> {
        let pid = self.pid()?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            // The agent holds its program open, and fdinfo says which one it is.
            for file in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
                let text = fs::read_to_string(file?.path()).unwrap_or_default();
                let id = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
                if let Some(id) = id {
                    let id = id.trim().parse()?;
                    if run_stats(id).is_ok() {
                        return Ok(id);
                    }
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err("the agent has loaded no program".into())
    }

    /// Has it end as by Ctrl-C.
    pub(crate) fn interrupt(&self) -> Result<()> {
        // SAFETY: takes no pointer; the child is not reaped yet, so the id is still its own.
        if unsafe { libc::kill(self.pid()?, libc::SIGINT) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(())
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
        if status != 0 {
            return Err(format!("the agent ended with status {status:#x}:\n{stderr}").into());
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
        let child = self.0.as_ref().ok_or("the agent has ended")?;
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
}

/// What the kernel has counted of the sampling program with this id.
pub(crate) fn run_stats(id: u32) -> Result<RunStats> {
    let info = loaded_programs()
        .filter_map(std::result::Result::ok)
        .find(|info| info.id() == id && info.name_as_str() == Some("sample"))
        .ok_or_else(|| format!("there is no program `sample` with id {id}"))?;
    Ok(RunStats { time: info.run_time(), count: info.run_count() })
}
