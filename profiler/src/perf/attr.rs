//! From an event and a rate to the kernel's `perf_event_attr`.

use perf_event_open_sys::bindings as sys;
use profiler_events::{Breakpoint, syntax::Precise};
use profiler_profile::source::Rate;

use super::event::Event;

/// What not every PMU can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// Don't count what runs in guests.
    pub exclude_guest: bool,
    /// `precise_ip`: 0 to 3.
    pub precise: u8,
    /// Leave out which PMU is meant, as kernels know events that can't be told it.
    pub of_any_pmu: bool,
}

/// How an event is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counting {
    /// It is alone or the first of its group: the others begin and end with it.
    pub(crate) leads: bool,
    /// It begins when its task executes a program.
    pub(crate) on_exec: bool,
    /// What its task starts is counted with it.
    pub(crate) inherit: bool,
}

/// The attributes of an event that is counted, opened disabled. Its group is read at once.
#[must_use]
pub(crate) fn counted(event: &Event, how: Counting) -> sys::perf_event_attr {
    let mut attr = counting(event);
    attr.read_format |= u64::from(sys::PERF_FORMAT_ID | sys::PERF_FORMAT_GROUP);
    attr.set_disabled(how.leads.into());
    attr.set_enable_on_exec((how.leads && how.on_exec).into());
    attr.set_inherit(how.inherit.into());
    // The kernel wants that of a group's leader alone, which stands for all.
    attr.set_pinned((how.leads && event.attr().pinned).into());
    attr.set_exclusive((how.leads && event.attr().exclusive).into());
    attr.set_exclude_guest(event.attr().exclude.guest.into());
    // Where `P` leaves it to the PMU, there is nothing to be precise about.
    if let Precise::Level(level) = event.attr().precise {
        attr.set_precise_ip(level.into());
    }
    attr
}

/// In `config1` of an event on aarch64: a counter of 64 bits, which its thread may read.
/// <https://docs.kernel.org/arch/arm64/perf.html>
const READ_BY_THREAD: u64 = 0b11;

/// The attributes of an event of the thread that opens it, counted at once; where that has to be asked for, to be read
/// without the kernel.
#[must_use]
pub(crate) fn own(event: &Event, direct: bool) -> sys::perf_event_attr {
    let mut attr = counting(event);
    // A breakpoint has its address there.
    if direct && event.attr().breakpoint.is_none() {
        attr.__bindgen_anon_3.config1 = event.attr().config1 | READ_BY_THREAD;
    }
    attr
}

/// The attributes of a sampling event, opened disabled.
#[must_use]
pub fn sampling(event: &Event, rate: Rate, how: How) -> sys::perf_event_attr {
    let mut attr = counting(event);
    match rate {
        Rate::Frequency(hz) => {
            attr.set_freq(1);
            attr.__bindgen_anon_1.sample_freq = hz;
        }
        Rate::Period(period) => attr.__bindgen_anon_1.sample_period = period,
    }
    attr.set_disabled(1);
    attr.set_exclude_guest(how.exclude_guest.into());
    attr.set_precise_ip(how.precise.into());
    // What such an event was hit at is not where the stack is taken. So the kernel takes the stack for the program, and
    // attaches none that asks for stacks where it doesn't:
    // <https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c>, `perf_event_set_bpf_handler`.
    if how.precise > 0 {
        attr.sample_type |= u64::from(sys::PERF_SAMPLE_CALLCHAIN);
    }
    if how.of_any_pmu {
        attr.config &= u64::from(u32::MAX);
    }
    // The event's own ring carries throttle records only, which are collected by a timer: no
    // wake-up is worth its cost.
    attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
    attr
}

/// What an event of a task goes on to count, when the task starts others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherit {
    /// Nothing else.
    Nothing,
    /// The threads that it starts, and theirs. Needs Linux 5.13.
    Threads,
    /// Its threads and its child processes, and theirs.
    All,
}

/// Makes a sampling event one of a task.
pub fn of_task(attr: &mut sys::perf_event_attr, inherit: Inherit, enable_on_exec: bool) {
    attr.set_inherit((inherit != Inherit::Nothing).into());
    attr.set_inherit_thread((inherit == Inherit::Threads).into());
    attr.set_enable_on_exec(enable_on_exec.into());
    // Each task that has begun may have left a period unfinished: their number is asked for in no other way.
    attr.set_task((inherit != Inherit::Nothing).into());
}

/// The attributes of an event that counts nothing, and has the kernel write records of what the tasks
/// on its CPU do: map code, exec, fork and exit.
///
/// It does not ask for build ids: the kernel sets the flag that a record has one once for all events
/// that the record goes to, and readers of the others, such as `perf record`, take an inode for a build id:
/// <https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c>, `perf_event_mmap_output`.
#[must_use]
pub fn sideband() -> sys::perf_event_attr {
    let mut attr = counting(&Event::dummy());
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
pub(super) fn counting(event: &Event) -> sys::perf_event_attr {
    let mut attr = sys::perf_event_attr::default();
    attr.size = u32::try_from(size_of_val(&attr)).unwrap_or(u32::MAX);
    let of = event.attr();
    attr.type_ = of.kind;
    attr.config = of.config;
    attr.__bindgen_anon_3.config1 = of.config1;
    attr.__bindgen_anon_4.config2 = of.config2;
    attr.config3 = of.config3;
    if let Some(Breakpoint { kind, address, length }) = of.breakpoint {
        attr.bp_type = kind;
        attr.__bindgen_anon_3.bp_addr = address;
        attr.__bindgen_anon_4.bp_len = length;
    }
    attr.set_exclude_user(of.exclude.user.into());
    attr.set_exclude_kernel(of.exclude.kernel.into());
    attr.set_exclude_hv(of.exclude.hypervisor.into());
    attr.set_exclude_idle(of.exclude.idle.into());
    attr.set_exclude_host(of.exclude.host.into());
    attr.set_pinned(of.pinned.into());
    attr.set_exclusive(of.exclusive.into());
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
        let how = |exclude_guest| How { exclude_guest, precise: 0, of_any_pmu: false };
        let attr = sampling(&Event::cycles(), Rate::Frequency(99), how(true));
        assert_eq!((attr.freq(), attr.exclude_guest(), attr.disabled()), (1, 1, 1));
        // SAFETY: `sampling` has written this member of the union.
        assert_eq!(unsafe { attr.__bindgen_anon_1.sample_freq }, 99);

        let attr = sampling(&Event::cpu_clock(), Rate::Period(1_000_000), how(false));
        assert_eq!((attr.freq(), attr.exclude_guest(), attr.type_), (0, 0, 1));
        // SAFETY: as above.
        assert_eq!(unsafe { attr.__bindgen_anon_1.sample_period }, 1_000_000);
    }

    #[test]
    fn the_stack_of_a_precise_event_is_taken_by_the_kernel() {
        let sample_type = |precise| {
            let how = How { exclude_guest: true, precise, of_any_pmu: false };
            let attr = sampling(&Event::cycles(), Rate::Frequency(99), how);
            assert_eq!(attr.precise_ip(), u64::from(precise));
            attr.sample_type
        };
        assert_eq!(sample_type(2), u64::from(sys::PERF_SAMPLE_CALLCHAIN));
        assert_eq!(sample_type(0), 0);
    }

    #[test]
    fn a_group_begins_with_its_leader() {
        let how = |leads| Counting { leads, on_exec: true, inherit: true };
        let [leader, other] = [true, false].map(|it| counted(&Event::cycles(), how(it)));
        assert_eq!((leader.disabled(), leader.enable_on_exec(), leader.inherit()), (1, 1, 1));
        assert_eq!((other.disabled(), other.enable_on_exec(), other.inherit()), (0, 0, 1));
        assert_eq!((leader.read_format, other.read_format), (0b1111, 0b1111));
    }

    #[test]
    fn records_of_mappings_are_asked_for_without_build_ids() {
        let attr = sideband();
        assert_eq!((attr.mmap(), attr.mmap2(), attr.build_id()), (1, 1, 0));
    }

    #[test]
    fn what_a_task_starts_is_asked_for() {
        let bits = |inherit, at_exec| {
            let how = How { exclude_guest: true, precise: 0, of_any_pmu: false };
            let mut attr = sampling(&Event::cpu_clock(), Rate::Frequency(99), how);
            of_task(&mut attr, inherit, at_exec);
            [attr.inherit(), attr.inherit_thread(), attr.task(), attr.enable_on_exec()]
        };
        assert_eq!(bits(Inherit::Nothing, false), [0, 0, 0, 0]);
        assert_eq!(bits(Inherit::Threads, false), [1, 1, 1, 0]);
        assert_eq!(bits(Inherit::All, true), [1, 0, 1, 1]);
    }

    #[test]
    fn an_event_can_be_told_without_its_pmu() {
        let event = Event::new(profiler_events::Attr::new(0, 7 << 32 | 1));
        let config = |of_any_pmu| {
            let how = How { exclude_guest: true, precise: 0, of_any_pmu };
            sampling(&event, Rate::Frequency(99), how).config
        };
        assert_eq!((config(false), config(true)), (7 << 32 | 1, 1));
        assert!(event.names_pmu() && !Event::cycles().names_pmu());
    }
}
