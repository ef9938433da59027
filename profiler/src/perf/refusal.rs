//! What `perf_event_open` refuses: in words, with what to try next.

use std::io;

use profiler_profile::source::Rate;

use super::event::Event;
use crate::{error::Error, kernel};

/// What an event was opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// To sample at this rate.
    Sample(Rate),
    /// To run a program each time.
    Trace,
    /// To be counted.
    Count,
}

/// Whether nothing on the machine counts the event.
pub(crate) fn is_not_counted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV))
}

/// The refusal, as <https://man7.org/linux/man-pages/man2/perf_event_open.2.html> has its reasons.
pub(crate) fn explain(event: &Event, used: Use, error: &io::Error) -> Error {
    let what = format!("perf_event_open of {event}");
    let is_counted = !matches!(used, Use::Trace);
    if is_not_counted(error) && is_counted && !event.is_software() {
        return Error::system_with(
            what,
            format!("this machine has no PMU that counts it ({error})"),
            format!("virtual machines often have none; -e {} works everywhere", Event::cpu_clock()),
        );
    }
    Error::system_with(what, error, next(event, used, error))
}

fn next(event: &Event, used: Use, error: &io::Error) -> String {
    let text = match (error.raw_os_error(), used) {
        (Some(libc::EACCES | libc::EPERM), Use::Count) => {
            let level = kernel::sysctl_number("kernel.perf_event_paranoid");
            return forbidden_count(level);
        }
        (Some(libc::EACCES | libc::EPERM), Use::Trace) => {
            "run it as root: a probe in user code needs CAP_SYS_ADMIN, others CAP_PERFMON"
        }
        (Some(libc::EACCES | libc::EPERM), _) => {
            return match kernel::sysctl_number("kernel.perf_event_paranoid") {
                Some(level) => {
                    format!("run it as root; kernel.perf_event_paranoid is {level} for others")
                }
                None => "run it as root".to_owned(),
            };
        }
        (Some(libc::EINVAL), _) if event.attr().breakpoint.is_some() => {
            "an address is a multiple of the length, 1, 2, 4 or 8; x86 can't watch reads alone"
        }
        (Some(libc::EINVAL), Use::Sample(Rate::Frequency(hz))) => {
            return format!("the kernel refuses a frequency of {hz} Hz for it");
        }
        (Some(libc::EINVAL), Use::Sample(Rate::Period(period))) => {
            return format!("the kernel refuses a period of {period} for it");
        }
        (Some(libc::EINVAL | libc::EILSEQ | libc::EOPNOTSUPP), Use::Trace) => {
            "no probe can be put there: the place is no beginning of an instruction, or of one that the \
             kernel can't step over, or in code that the probes themselves use \
             (/sys/kernel/debug/kprobes/blacklist)"
        }
        (Some(libc::ENOENT), Use::Trace) => {
            "the kernel has no function of that name, or it was inlined: /proc/kallsyms has those that \
             there are"
        }
        (Some(libc::EADDRNOTAVAIL), Use::Trace) => {
            "several functions have that name: give the address of one of them in /proc/kallsyms, as in \
             kprobe:0xffffffff81000000"
        }
        (Some(libc::EINVAL), Use::Count) => {
            "the PMU can't count it like this, or has not enough counters for the whole group: try it without \
             modifiers, and alone"
        }
        (Some(libc::ENOSPC), _) => "the processor has no register left for it",
        (Some(libc::EBUSY), _) => {
            "somebody else has the PMU for an exclusive event, or its counters are taken: leave `e` \
             and `D` out, or try again later"
        }
        (Some(libc::E2BIG), _) => {
            "this kernel does not know one of its fields (config3: Linux 6.3)"
        }
        (Some(libc::EMFILE | libc::ENFILE), Use::Count) => {
            "each event takes a file for each CPU or thread: raise `ulimit -n`, or name fewer"
        }
        (Some(libc::ESRCH), _) => "the process or thread has ended",
        (Some(libc::EMFILE | libc::ENFILE), _) => {
            "each CPU takes a file for each event, and one more: raise `ulimit -n`"
        }
        _ => "`profiler doctor` shows what is missing",
    };
    text.to_owned()
}

/// What an ordinary user may count at a level of `kernel.perf_event_paranoid`:
/// <https://docs.kernel.org/admin-guide/sysctl/kernel.html#perf-event-paranoid>.
fn forbidden_count(paranoid: Option<i64>) -> String {
    let Some(level) = paranoid else { return "run it as root".to_owned() };
    let allowed = match level {
        ..=0 => return format!("run it as root; kernel.perf_event_paranoid is {level} for others"),
        1 => "their own processes",
        2 => "their own processes in user mode, as in -e cycles:u",
        _ => "nothing",
    };
    format!("run it as root; others may count {allowed}, as kernel.perf_event_paranoid is {level}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_count_says_what_may_be_counted() {
        for (level, part) in [
            (Some(-1), "is -1 for others"),
            (Some(1), "count their own processes, as"),
            (Some(2), "in user mode, as in -e cycles:u"),
            (Some(4), "may count nothing"),
            (None, "run it as root"),
        ] {
            assert!(forbidden_count(level).contains(part), "{level:?}");
        }
    }

    #[test]
    fn each_refusal_of_a_count_says_what_to_do() {
        for (errno, part) in [
            (libc::EINVAL, "not enough counters"),
            (libc::EMFILE, "ulimit -n"),
            (libc::ENOSPC, "no register left"),
            (libc::EBUSY, "leave `e` and `D` out"),
            (libc::E2BIG, "config3"),
            (libc::ESRCH, "has ended"),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            let explained = explain(&Event::cycles(), Use::Count, &error);
            assert!(explained.advice().unwrap().contains(part), "{explained}");
        }
        for errno in [libc::ENOENT, libc::EOPNOTSUPP, libc::ENODEV] {
            let error = io::Error::from_raw_os_error(errno);
            let explained = explain(&Event::cycles(), Use::Count, &error);
            assert!(is_not_counted(&error) && explained.to_string().contains("no PMU"));
        }
    }
}
