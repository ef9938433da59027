//! The CPU time of a command.

use std::{mem::MaybeUninit, time::Duration};

/// CPU time in user mode and in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    /// In user mode.
    pub(crate) user: Duration,
    /// In the kernel.
    pub(crate) system: Duration,
}

impl CpuTime {
    /// Of all children of this process that it has waited for, and all that these have waited for: `getrusage(2)`.
    pub(crate) fn of_children() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel fills the structure, which outlives the call.
        let asked = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
        if asked != 0 {
            return Self::default();
        }
        // SAFETY: the kernel has filled it.
        let usage = unsafe { usage.assume_init() };
        Self { user: duration(usage.ru_utime), system: duration(usage.ru_stime) }
    }

    /// The same without so much of both, in the proportion that they have. The kernel knows the sum to the nanosecond, but
    /// only by its ticks how much of it was which.
    pub(crate) fn without(self, unwanted: Duration) -> Self {
        let all = self.user + self.system;
        let share = all.saturating_sub(unwanted).as_secs_f64() / all.as_secs_f64().max(1e-9);
        let part = |it: Duration| it.mul_f64(share.clamp(0.0, 1.0));
        Self { user: part(self.user), system: part(self.system) }
    }

    /// What has come since then.
    pub(crate) fn since(self, before: Self) -> Option<Self> {
        Some(Self {
            user: self.user.checked_sub(before.user)?,
            system: self.system.checked_sub(before.system)?,
        })
    }
}

/// The CPU time of a process's first thread so far; none where the kernel doesn't tell.
///
/// Format: <https://docs.kernel.org/scheduler/sched-stats.html>
pub(crate) fn so_far(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|it| it.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

fn duration(time: libc::timeval) -> Duration {
    let (seconds, us) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
    Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_micros(us.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_wanted_is_taken_from_both() {
        let ms = Duration::from_millis;
        let time = CpuTime { user: ms(30), system: ms(10) };
        assert_eq!(time.without(ms(20)), CpuTime { user: ms(15), system: ms(5) });
        assert_eq!(time.without(ms(90)), CpuTime::default());
        assert_eq!(CpuTime::default().without(ms(1)), CpuTime::default());
    }

    #[test]
    fn a_child_that_was_waited_for_has_used_time() {
        let before = CpuTime::of_children();
        let mut child = std::process::Command::new("sh");
        child.args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"]);
        assert!(child.status().unwrap().success());
        let used = CpuTime::of_children().since(before).unwrap();
        assert!(used.user + used.system > Duration::ZERO);
        assert_eq!(CpuTime::default().since(used), None);
        assert!(so_far(std::process::id()) > Duration::ZERO);
        assert_eq!(so_far(u32::MAX), Duration::ZERO);
    }
}
