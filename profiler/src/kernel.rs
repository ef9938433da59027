//! What the running kernel says of itself in /proc and /sys.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
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
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpu = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split(' ');
        let cpu = fields.next()?.parse().ok()?;
        let idle: u64 = fields.nth(3)?.parse().ok()?;
        let iowait: u64 = fields.next()?.parse().ok()?;
        Some((cpu, ticks(idle + iowait)))
    };
    text.lines().filter_map(cpu).collect()
}

/// The real user id of a process; `None` if it is gone. The owner of its folder in /proc is not always
/// it: a process may have that be root.
pub(crate) fn user_of(tgid: u32) -> Option<u32> {
    status(tgid, "Uid:")?.split_ascii_whitespace().next()?.parse().ok()
}

/// A field of `/proc/PID/status`; `None` if the process is gone.
pub(crate) fn status(tgid: u32, field: &str) -> Option<String> {
    // The process's name need not be UTF-8.
    let status = fs::read(format!("/proc/{tgid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix(field)).map(str::to_owned)
}

/// When a process began, as the clock on the wall is set now; `None` if it is gone. In steps of 10 ms.
pub(crate) fn began(tgid: u32) -> Option<SystemTime> {
    let stat = fs::read(format!("/proc/{tgid}/stat")).ok()?;
    let began = began_in(&String::from_utf8_lossy(&stat))?;
    let boot = Duration::from_nanos(clock_ns(libc::CLOCK_BOOTTIME));
    SystemTime::now().checked_sub(boot.saturating_sub(began))
}

/// Field 22 of `proc_pid_stat(5)`, which counts from boot. The name before may hold anything.
fn began_in(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    Some(ticks(fields.split_ascii_whitespace().nth(19)?.parse().ok()?))
}

/// The time of so many ticks of `sysconf(_SC_CLK_TCK)`, in which /proc counts.
fn ticks(ticks: u64) -> Duration {
    // SAFETY: no preconditions.
    let hz = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    Duration::from_millis(ticks.saturating_mul(1000) / hz)
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

/// Beyond the limit of a file's size a write fails from here on, in place of ending the process.
pub(crate) fn fail_beyond_file_limit() {
    // SAFETY: no preconditions.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Before Linux 5.11 maps count against RLIMIT_MEMLOCK, and its default is too small for any.
pub(crate) fn raise_memlock() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` outlives the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// CLOCK_MONOTONIC, which samples and records have, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call, which can't fail for a clock that every kernel has.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    let (seconds, ns) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + ns.unwrap_or(0)
}

/// `uname -r`.
pub(crate) fn release() -> String {
    sysctl("kernel.osrelease").unwrap_or_else(|_| "unknown".into())
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
    fn a_process_has_a_user() {
        // SAFETY: no preconditions.
        let own = unsafe { libc::getuid() };
        assert_eq!(user_of(std::process::id()), Some(own));
        assert_eq!(user_of(u32::MAX), None);
    }

    #[test]
    fn a_name_may_hold_what_it_likes() {
        let stat = "7 (a) 1 2 (b) S 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 100 23\n";
        assert_eq!(began_in(stat), Some(ticks(100)));
        assert_eq!(began_in("7 (a) S 4 5"), None);
    }
}
