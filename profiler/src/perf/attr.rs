//! From an event and a rate to the kernel's `perf_event_attr`.

use perf_event_open_sys::bindings as sys;
use profiler_profile::source::Rate;

use super::event::EventSpec;

/// The attributes of a sampling event, opened disabled.
#[must_use]
pub fn sampling(event: EventSpec, rate: Rate, exclude_guest: bool) -> sys::perf_event_attr {
    let mut attr = counting(event);
    match rate {
        Rate::Frequency(hz) => {
            attr.set_freq(1);
            attr.__bindgen_anon_1.sample_freq = hz;
        }
        Rate::Period(period) => attr.__bindgen_anon_1.sample_period = period,
    }
    attr.set_disabled(1);
    attr.set_exclude_guest(u64::from(exclude_guest));
    // The event's own ring carries throttle records only, which are collected by a timer: no
    // wake-up is worth its cost.
    attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
    attr
}

/// The attributes of an event that counts nothing, and has the kernel write records of what the tasks
/// on its CPU do: map code, exec, fork and exit.
///
/// It does not ask for build ids: the kernel sets the flag that a record has one once for all events
/// that the record goes to, and readers of the others, such as `perf record`, take an inode for a build id:
/// <https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c>, `perf_event_mmap_output`.
#[must_use]
pub fn sideband() -> sys::perf_event_attr {
    let mut attr = counting(EventSpec::DUMMY);
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_ksymbol(1);
    attr.set_sample_id_all(1);
    attr.sample_type = u64::from(sys::PERF_SAMPLE_TIME);
    // Each record: what a program has mapped has to be in the kernel before its stacks can be walked.
    attr.__bindgen_anon_2.wakeup_watermark = 1;
    attr
}

/// What all events have in common: layout and meaning are those of `perf_event_open(2)` and
/// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>.
fn counting(event: EventSpec) -> sys::perf_event_attr {
    let mut attr = sys::perf_event_attr::default();
    attr.size = u32::try_from(size_of_val(&attr)).unwrap_or(u32::MAX);
    attr.type_ = event.kind;
    attr.config = event.config;
    // Count, enabled and running time are what the ledger compares the samples with, and tell a dead
    // event from others.
    attr.read_format =
        u64::from(sys::PERF_FORMAT_TOTAL_TIME_ENABLED | sys::PERF_FORMAT_TOTAL_TIME_RUNNING);
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.set_use_clockid(1);
    attr.set_watermark(1);
    attr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequency_and_period_exclude_each_other() {
        let attr = sampling(EventSpec::CYCLES, Rate::Frequency(99), true);
        assert_eq!((attr.freq(), attr.exclude_guest(), attr.disabled()), (1, 1, 1));
        // SAFETY: `sampling` has written this member of the union.
        assert_eq!(unsafe { attr.__bindgen_anon_1.sample_freq }, 99);

        let attr = sampling(EventSpec::CPU_CLOCK, Rate::Period(1_000_000), false);
        assert_eq!((attr.freq(), attr.exclude_guest(), attr.type_), (0, 0, 1));
        // SAFETY: as above.
        assert_eq!(unsafe { attr.__bindgen_anon_1.sample_period }, 1_000_000);
    }

    #[test]
    fn records_of_mappings_are_asked_for_without_build_ids() {
        let attr = sideband();
        assert_eq!((attr.mmap(), attr.mmap2(), attr.build_id()), (1, 1, 0));
    }
}
