//! What the running kernel says of itself in /proc and /sys.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use profiler_profile::cpus::CpuList;
use rustix::{
    process::{Resource, Rlimit, setrlimit},
    time::{ClockId, clock_gettime},
};

use crate::{
    error::{Error, Result},
    procfs::stat::{Stat, ticks},
};

/// A sysctl by its dotted name, trimmed.
pub(crate) fn sysctl(name: &str) -> io::Result<String> {
    let path = PathBuf::from("/proc/sys").join(name.replace('.', "/"));
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// A sysctl that is a number; `None` if the kernel doesn't have it.
pub(crate) fn sysctl_number(name: &str) -> Option<i64> {
    sysctl(name).ok()?.parse().ok()
}

const CPU_LISTS: &str = "/sys/devices/system/cpu";

/// A CPU list of `/sys/devices/system/cpu`: `online` or `possible`.
pub(crate) fn cpus(which: &str) -> Result<CpuList> {
    let path = Path::new(CPU_LISTS).join(which);
    let failed = |why: String| {
        Error::system_with(
            format!("cannot read {}", path.display()),
            why,
            "the list of CPUs comes from sysfs: mount -t sysfs sysfs /sys",
        )
    };
    let text = fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
    text.parse().map_err(failed)
}

/// A file of the kernel that is read again and again, and held open meanwhile: also a process that may open
/// no more files can read it.
#[derive(Debug)]
pub(crate) struct Reread {
    file: File,
    path: PathBuf,
}

impl Reread {
    fn open(path: PathBuf) -> Result<Self> {
        let file = File::open(&path)
            .map_err(|error| Error::system(format!("cannot open {}", path.display()), error))?;
        Ok(Self { file, path })
    }

    fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        let mut file = &self.file;
        file.seek(io::SeekFrom::Start(0))?;
        file.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// The CPUs that are online, time and again.
#[derive(Debug)]
pub(crate) struct OnlineCpus(Reread);

impl OnlineCpus {
    /// Opens the list.
    pub(crate) fn open() -> Result<Self> {
        Reread::open(Path::new(CPU_LISTS).join("online")).map(Self)
    }

    /// What a file says in the place of that list.
    #[cfg(test)]
    pub(crate) fn told_by(path: &Path) -> Self {
        Self(Reread::open(path.to_owned()).unwrap())
    }

    /// The CPUs that are online now.
    pub(crate) fn read(&self) -> Result<CpuList> {
        let failed =
            |why: String| Error::system(format!("cannot read {}", self.0.path.display()), why);
        let text = self.0.read().map_err(|error| failed(error.to_string()))?;
        text.parse().map_err(failed)
    }
}

/// For how long CPUs have been idle, time and again.
#[derive(Debug)]
pub(crate) struct IdleTimes(Reread);

impl IdleTimes {
    /// Opens `/proc/stat`.
    pub(crate) fn open() -> Result<Self> {
        Reread::open(PathBuf::from("/proc/stat")).map(Self)
    }

    /// For how long each CPU has been idle since boot, by its number; in steps of 10 ms.
    ///
    /// Format: `proc_stat(5)`; the fields of a line `cpuN` are ticks of `sysconf(_SC_CLK_TCK)`.
    pub(crate) fn read(&self) -> HashMap<u32, Duration> {
        let text = self.0.read().unwrap_or_default();
        let cpu = |line: &str| {
            let mut fields = line.strip_prefix("cpu")?.split(' ');
            let cpu = fields.next()?.parse().ok()?;
            let idle: u64 = fields.nth(3)?.parse().ok()?;
            let iowait: u64 = fields.next()?.parse().ok()?;
            Some((cpu, ticks(idle + iowait)))
        };
        text.lines().filter_map(cpu).collect()
    }
}

/// What `/proc/self/status` says, time and again.
#[derive(Debug)]
pub(crate) struct OwnStatus(Reread);

impl OwnStatus {
    /// Opens it.
    pub(crate) fn open() -> Result<Self> {
        Reread::open(PathBuf::from("/proc/self/status")).map(Self)
    }

    /// The text as it is now; empty if it can't be read.
    pub(crate) fn read(&self) -> String {
        self.0.read().unwrap_or_default()
    }
}

/// When a process began, as the clock on the wall is set now; `None` if it is gone. In steps of 10 ms.
pub(crate) fn began(tgid: u32) -> Option<SystemTime> {
    let boot = Duration::from_nanos(clock_ns(ClockId::Boottime));
    SystemTime::now().checked_sub(boot.saturating_sub(Stat::of(tgid)?.began))
}

/// Whether process ids here are those that the eBPF program sees.
///
/// The initial namespace's inode is fixed:
/// <https://github.com/torvalds/linux/blob/v6.12/include/linux/proc_ns.h#L42>.
pub(crate) fn in_initial_pid_namespace() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

/// Beyond the limit of a file's size a write fails from here on, in place of ending the process.
pub(crate) fn fail_beyond_file_limit() {
    // SAFETY: no preconditions.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Raises RLIMIT_MEMLOCK, once: before Linux 5.11 maps count against it, and its default is too small for any. Records'
/// rings always do. Whoever asks again gets the first answer.
pub(crate) fn raise_memlock() -> rustix::io::Result<()> {
    static RAISED: OnceLock<rustix::io::Result<()>> = OnceLock::new();
    *RAISED.get_or_init(|| setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }))
}

/// CLOCK_MONOTONIC, which samples and records have, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// For how long the threads of this process have had a CPU.
pub(crate) fn cpu_time() -> Duration {
    Duration::from_nanos(clock_ns(ClockId::ProcessCPUTime))
}

/// By how many nanoseconds CLOCK_REALTIME is ahead of CLOCK_MONOTONIC.
pub(crate) fn real_time_ahead_ns() -> i128 {
    i128::from(clock_ns(ClockId::Realtime)) - i128::from(monotonic_ns())
}

/// For how long the calling thread has had a CPU.
pub(crate) fn thread_cpu_time() -> Duration {
    Duration::from_nanos(clock_ns(ClockId::ThreadCPUTime))
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let (seconds, ns) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + ns.unwrap_or(0)
}

/// `uname -r`.
pub(crate) fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Whether a program goes on behind a breakpoint that runs an eBPF program. On aarch64 it does since Linux 6.6; before,
/// the kernel steps over what it has hit only for breakpoints without one, and the program hits it for ever:
/// <https://github.com/torvalds/linux/commit/d11a69873d9a7435fe6a48531e165ab80a8b1221>. Nothing but the version tells.
#[must_use]
pub fn steps_over_breakpoints() -> bool {
    !cfg!(target_arch = "aarch64") || is_since(&release(), (6, 6))
}

/// Whether a kernel's release is not older than a version.
fn is_since(release: &str, version: (u32, u32)) -> bool {
    let mut numbers =
        release.split(|it: char| !it.is_ascii_digit()).map_while(|it| it.parse().ok());
    numbers.next().zip(numbers.next()).is_some_and(|it| it >= version)
}

/// Whether there is a `/proc` that shows this process.
pub(crate) fn has_proc() -> bool {
    Path::new("/proc/self/stat").exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_began_when_it_was_started() {
        let before = SystemTime::now();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let after = SystemTime::now();
        let began = began(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        let step = Duration::from_millis(20);
        assert!(before - step <= began.unwrap() && began.unwrap() <= after + step);
        assert!(super::began(u32::MAX).is_none());
    }

    #[test]
    fn releases_are_compared_by_number() {
        for (release, expected) in [
            ("6.6.0", true),
            ("6.12.117+deb13-cloud-arm64", true),
            ("7.2", true),
            ("6.1.0-56", false),
        ] {
            assert_eq!(is_since(release, (6, 6)), expected, "{release}");
        }
        assert!(!is_since("5.10.0", (6, 6)) && !is_since("", (0, 0)));
    }

    #[test]
    fn a_file_of_the_kernel_is_read_again() {
        let (online, idle) = (OnlineCpus::open().unwrap(), IdleTimes::open().unwrap());
        assert_eq!(online.read().unwrap(), cpus("online").unwrap());
        assert_eq!(online.read().unwrap(), cpus("online").unwrap());
        let first = idle.read();
        assert!(!first.is_empty());
        assert!(idle.read().iter().all(|(cpu, time)| *time >= first[cpu]));
    }
}
