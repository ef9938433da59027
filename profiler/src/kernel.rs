//! What the running kernel says of itself in /proc and /sys.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    error::{Error, Result},
    perf::cpus::CpuList,
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

/// A CPU list of `/sys/devices/system/cpu`: `online` or `possible`.
pub(crate) fn cpus(which: &str) -> Result<CpuList> {
    let path = Path::new("/sys/devices/system/cpu").join(which);
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

/// For how long each CPU has been idle since boot, by its number; in steps of 10 ms.
///
/// Format: `proc_stat(5)`; the fields of a line `cpuN` are ticks of `sysconf(_SC_CLK_TCK)`.
pub(crate) fn idle_times() -> HashMap<u32, Duration> {
    // SAFETY: no preconditions.
    let hz = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpu = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split(' ');
        let cpu = fields.next()?.parse().ok()?;
        let idle: u64 = fields.nth(3)?.parse().ok()?;
        let iowait: u64 = fields.next()?.parse().ok()?;
        Some((cpu, Duration::from_millis((idle + iowait).saturating_mul(1000) / hz)))
    };
    text.lines().filter_map(cpu).collect()
}

/// Whether process ids here are those that the eBPF program sees.
///
/// The initial namespace's inode is fixed:
/// <https://github.com/torvalds/linux/blob/v6.12/include/linux/proc_ns.h#L42>.
pub(crate) fn in_initial_pid_namespace() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

/// Raises the limit of open files as far as that needs no privilege: each CPU takes some, and so does
/// each file that is mapped somewhere. Where it can't be raised, what is beyond it is told.
pub(crate) fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// CLOCK_MONOTONIC, which samples and records have, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call, which can't fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let (seconds, ns) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + ns.unwrap_or(0)
}

/// `uname -r`.
pub(crate) fn release() -> String {
    sysctl("kernel.osrelease").unwrap_or_else(|_| "unknown".into())
}
