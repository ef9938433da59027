//! `/proc/PID/stat`: whether a task runs, whose child it is, and since when it is there.
//!
//! Format: `proc_pid_stat(5)`.

use std::{fs, io, time::Duration};

use rustix::param::clock_ticks_per_second;

use super::known;

/// `include/linux/sched.h`
const PF_KTHREAD: u32 = 0x0020_0000;

/// What is used of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Field 3: a letter.
    pub(crate) state: char,
    /// Field 4: its process's parent; 0 where there is none.
    pub(crate) parent: u32,
    /// Field 9: whether it is a thread of the kernel's.
    pub(crate) is_kernel_thread: bool,
    /// Fields 14 and 15: for how long it has had a CPU; in steps of 10 ms.
    pub(crate) cpu: Duration,
    /// Field 20: how many threads its process has.
    pub(crate) threads: u32,
    /// Field 22: when it began, since boot; in steps of 10 ms.
    pub(crate) began: Duration,
}

impl Stat {
    /// That of a thread, or of the main thread of a process.
    pub(crate) fn of(tid: u32) -> Option<Self> {
        Self::read(tid).ok().flatten()
    }

    /// The same; an error where no file can be opened now, so that nobody knows whether it is gone.
    pub(crate) fn read(tid: u32) -> io::Result<Option<Self>> {
        let text = known(fs::read(format!("/proc/{tid}/stat")))?;
        Ok(text.and_then(|text| Self::parse(&text)))
    }

    /// That of a thread of this process, by the number that the process itself knows it by.
    pub(crate) fn of_own(tid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/self/task/{tid}/stat")).ok()?)
    }

    /// From the text of the file. The name before field 3 may hold anything.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let (_, fields) = text.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            is_kernel_thread: fields.nth(9 - 5)?.parse::<u32>().ok()? & PF_KTHREAD != 0,
            cpu: ticks(fields.nth(14 - 10)?.parse().ok()?) + ticks(fields.next()?.parse().ok()?),
            threads: fields.nth(20 - 16)?.parse().ok()?,
            began: ticks(fields.nth(22 - 21)?.parse().ok()?),
        })
    }

    /// Whether it runs, or would if it had a CPU.
    pub(crate) fn is_runnable(&self) -> bool {
        self.state == 'R'
    }

    /// Whether the thread has ended, which others of its process need not have.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The time of so many ticks, in which `/proc` counts.
pub(crate) fn ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / clock_ticks_per_second().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REST: &str = "4 5 6 7 8 2097153 10 11 12 13 14 15 16 17 18 19 20 21 100 23";

    #[test]
    fn a_name_may_hold_anything() {
        let (cpu, began) = (ticks(14) + ticks(15), ticks(100));
        let stat = Stat { state: 'R', parent: 4, is_kernel_thread: true, cpu, threads: 20, began };
        for name in ["a", "a) 1 2 (b", "a R", ") R 1", "\u{fffd}"] {
            let text = format!("7 ({name}) R {REST}\n");
            assert_eq!(Stat::parse(text.as_bytes()), Some(stat), "{name}");
        }
        assert_eq!(Stat::parse([b"7 (\xff) R ", REST.as_bytes()].concat().as_slice()), Some(stat));
        assert_eq!(Stat::parse(b"7 (a) S 4 5"), None);
    }

    #[test]
    fn a_task_is_what_it_is() {
        let own = Stat::of(std::process::id()).unwrap();
        assert!(!own.has_ended() && own.threads > 0 && own.parent > 0 && !own.is_kernel_thread);
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert!(Stat::of_own(tid).unwrap().is_runnable());
        assert_eq!(Stat::of(u32::MAX), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_stat_or_none(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Stat::parse(&text);
        }
    }
}
