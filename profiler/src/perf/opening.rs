//! Opening an event as well as the machine can: step by step down from what was asked for.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use perf_event_open_sys::bindings as sys;
use profiler_events::syntax::Precise;
use profiler_profile::{cpus::CpuList, source::Rate};

use super::{
    attr::{self, How},
    config::CountedEvent,
    event::Event,
    mmap_ring::MmapRing,
    open::{self, OpenEvent, Scope},
    refusal::{self, Use, is_not_counted},
};
use crate::error::{Error, Result};

/// Why an event is not open.
pub(super) enum Failure {
    /// `perf_event_open` has refused it.
    Open(io::Error),
    /// Anything else.
    Other(Error),
}

/// Opens what was chosen, at its own rate or else at this one: by default cycles, or a clock where nothing counts
/// them. Tells why it is not the default.
pub(super) fn chosen<T>(
    choice: &CountedEvent,
    rate: Rate,
    open: impl Fn(&Event, Rate) -> Result<T, Failure>,
) -> Result<(T, Option<String>)> {
    let event = match choice {
        CountedEvent::Named(event) => event.clone(),
        CountedEvent::Default => Event::cycles(),
    };
    let rate = event.rate(rate);
    match open(&event, rate) {
        Ok(opened) => Ok((opened, None)),
        Err(Failure::Other(error)) => Err(error),
        Err(Failure::Open(error)) if is_not_counted(&error) && *choice == CountedEvent::Default => {
            clock(rate, open, &error)
        }
        Err(Failure::Open(error)) => Err(refusal::explain(&event, Use::Sample(rate), &error)),
    }
}

/// Opens a clock in place of cycles, which the machine can't count.
fn clock<T>(
    rate: Rate,
    open: impl Fn(&Event, Rate) -> Result<T, Failure>,
    error: &io::Error,
) -> Result<(T, Option<String>)> {
    let (clock, cycles) = (Event::cpu_clock(), Event::cycles());
    // A period means cycles; as nanoseconds it would be another one.
    if matches!(rate, Rate::Period(_)) {
        return Err(Error::system_with(
            format!("perf_event_open of {cycles}"),
            format!("this machine has no PMU that counts it ({error})"),
            format!("-c counts cycles; -e {clock} -c NANOSECONDS works everywhere, and so does -F"),
        ));
    }
    let (opened, _) = chosen(&CountedEvent::Named(clock.clone()), rate, open)?;
    let notice = format!("no hardware PMU ({error}); sampling {clock} in place of {cycles}");
    Ok((opened, Some(notice)))
}

/// The CPUs to sample that the event can be counted on, and whether they are the only ones.
pub(super) fn of_event(
    event: &Event,
    cpus: &CpuList,
    only_these: bool,
) -> Result<(CpuList, bool), Failure> {
    let Some(own) = &event.attr().cpus else { return Ok((cpus.clone(), only_these)) };
    let own: CpuList = own.parse().map_err(|why| {
        let what = format!("cannot read the CPUs of the PMU that counts {event}");
        Failure::Other(Error::system(what, why))
    })?;
    let both: CpuList = cpus.iter().filter(|cpu| own.contains(*cpu)).collect();
    if both.is_empty() {
        let why = format!("-e {event}: only CPU {own} can count it, and none of these is sampled");
        return Err(Failure::Other(Error::Usage(why)));
    }
    // Where all CPUs are of one kind, those that come are, too.
    let is_all = both.len() == cpus.len();
    Ok((both, only_these || !is_all))
}

/// What the user should know where an event samples less exactly than was asked for.
pub(super) fn less_precise(event: &Event, precise: u8) -> Option<String> {
    let Precise::Level(asked) = event.attr().precise else { return None };
    (precise < asked).then(|| {
        format!("{event}: precise_ip {asked} is refused; sampling with precise_ip {precise}")
    })
}

/// Opens the event there, as precisely as it was asked for if the PMU can, and without the guests' share of it. Tells
/// how precise it is. `complete` says of the attributes what depends on where.
pub(crate) fn try_open(
    event: &Event,
    rate: Rate,
    scope: Scope<'_>,
    complete: impl Fn(&mut sys::perf_event_attr),
) -> io::Result<(OwnedFd, u8)> {
    let is_refused = |it: &io::Result<OwnedFd>| {
        let refusals = [libc::EINVAL, libc::EOPNOTSUPP];
        let is_unknown = event.names_pmu() && errno(it) == Some(libc::ENOENT);
        is_unknown || errno(it).is_some_and(|error| refusals.contains(&error))
    };
    let open = |how| {
        let mut attr = attr::sampling(event, rate, how);
        complete(&mut attr);
        open::open(&mut attr, scope, None)
    };
    let (mut result, mut opened) = (Err(io::Error::from_raw_os_error(libc::EINVAL)), 0);
    // Some PMUs refuse `exclude_guest`, and who asks for guests alone wants them.
    let of_guests = if event.attr().exclude.host { &[false][..] } else { &[true, false] };
    // Before Linux 6.6, ARM's PMUs don't know the type in an event's number. The CPU says which is meant.
    let of_pmus = if event.names_pmu() { &[false, true][..] } else { &[false] };
    for precise in event.precisions() {
        for (exclude_guest, of_any_pmu) in pairs(of_guests, of_pmus) {
            if is_refused(&result) {
                (result, opened) = (open(How { exclude_guest, precise, of_any_pmu }), precise);
            }
        }
    }
    result.map(|fd| (fd, opened))
}

/// The event with a ring of so many pages, in which the kernel tells that it throttles. Such a record takes
/// 32 bytes, so a page holds more than a timer tick's worth of them on every CPU.
pub(super) fn with_ring(fd: OwnedFd, cpu: u32, pages: usize) -> Result<OpenEvent> {
    let ring = MmapRing::map(fd.as_fd(), pages).map_err(|error| {
        Error::system_with(
            format!("cannot map the record ring of the event on CPU {cpu}"),
            error,
            "each event maps some pages: raise kernel.perf_event_mlock_kb, or add CAP_IPC_LOCK",
        )
    })?;
    Ok(OpenEvent::new(cpu, fd, ring))
}

/// Each of the first with each of the others.
fn pairs(first: &[bool], others: &[bool]) -> impl Iterator<Item = (bool, bool)> {
    first.iter().flat_map(|one| others.iter().map(|other| (*one, *other)))
}

fn errno<T>(result: &io::Result<T>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}
