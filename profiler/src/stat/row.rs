//! One event of a plan, as it is opened in each place.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
};

use perf_event_open_sys as sys;
use profiler_events::{Attr, Exclude, syntax::Precise};

use super::{count::Total, counters::Reading};
use crate::{
    error::{Error, Result},
    kernel,
    perf::{
        attr::{self, Counting},
        event::Event,
        open::{self, Scope},
        probe::ProbePoint,
        refusal::{self, Use},
    },
};

/// One event of the plan.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) event: Event,
    /// Where it is put, if it is a probe.
    place: Option<ProbePoint>,
    /// Why nothing counts it.
    pub(super) refused: Option<Error>,
}

/// Why an event is not open in a place.
pub(super) enum Failure {
    /// The thread has ended, or the CPU is offline.
    Gone,
    /// Nothing on this machine counts it.
    NotSupported(Error),
    /// Anything else.
    Refused(Error),
}

impl Row {
    /// The row of an event, of which nothing is open yet.
    pub(super) fn of(event: &Event) -> Result<Self> {
        let place = ProbePoint::of(event.attr())?;
        Ok(Self { event: event.clone(), place, refused: None })
    }

    /// Opens it in one place. Who may not count the kernel counts user mode only, and its name says so.
    pub(super) fn open(
        &mut self,
        scope: Scope<'_>,
        leader: Option<BorrowedFd<'_>>,
        how: Counting,
    ) -> Result<OwnedFd, Failure> {
        let place = self.place.as_ref();
        let open = |event: &Event| {
            let mut attr = attr::counted(event, how);
            place.inspect(|it| it.put_into(&mut attr));
            let opened = open::open(&mut attr, scope, leader);
            // Before Linux 6.6, ARM's PMUs don't know the type in an event's number. The CPU says which is meant.
            let is_on_cpu = !matches!(scope, Scope::Task { .. });
            match opened {
                Err(error) if is_on_cpu && event.names_pmu() && may_be_of_pmu(&error) => {
                    attr.config &= u64::from(u32::MAX);
                    open::open(&mut attr, scope, leader)
                }
                opened => opened,
            }
        };
        let is_forbidden =
            |it: &io::Error| matches!(it.raw_os_error(), Some(libc::EACCES | libc::EPERM));
        let mut error = match open(&self.event) {
            Ok(fd) => return Ok(fd),
            Err(error) => error,
        };
        if let Some(event) = in_user_mode(self.event.attr()).filter(|_| is_forbidden(&error)) {
            match open(&event) {
                Ok(fd) => {
                    self.event = event;
                    return Ok(fd);
                }
                Err(other) if !is_forbidden(&other) => error = other,
                Err(_) => {}
            }
        }
        let is_gone = match (scope, error.raw_os_error()) {
            (Scope::Task { .. }, errno) => errno == Some(libc::ESRCH),
            (Scope::Cpu(cpu) | Scope::Cgroup { cpu, .. }, _) => {
                kernel::cpus("online").is_ok_and(|online| !online.contains(cpu))
            }
        };
        if is_gone {
            return Err(Failure::Gone);
        }
        let used = if self.place.is_some() { Use::Trace } else { Use::Count };
        let explained = refusal::explain(&self.event, used, &error);
        Err(if self.place.is_none() && refusal::is_not_counted(&error) {
            Failure::NotSupported(explained)
        } else {
            Failure::Refused(explained)
        })
    }

    pub(super) fn reading(&self, total: Total, failed: bool, has_begun: bool) -> Reading {
        if self.refused.is_some() {
            Reading::NotSupported
        } else if failed {
            Reading::Failed
        } else if !has_begun || total.share().is_none() {
            Reading::NotCounted
        } else {
            Reading::Counted(total)
        }
    }
}

/// Whether it may be the PMU's type in an event's number that was refused.
fn may_be_of_pmu(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP))
}

/// The same event without the kernel and the hypervisor; `None` if its modifiers say already what to count.
fn in_user_mode(event: &Attr) -> Option<Event> {
    let Exclude { user, kernel, hypervisor, .. } = event.exclude;
    if user || kernel || hypervisor {
        return None;
    }
    let has_modifiers = event.name.ends_with('/')
        || event.pinned
        || event.exclusive
        || event.precise != Precise::default()
        || event.exclude != Exclude::default();
    let name = format!("{}{}u", event.name, if has_modifiers { "" } else { ":" });
    let exclude = Exclude { kernel: true, hypervisor: true, ..event.exclude };
    Some(Event::new(Attr { name, exclude, ..event.clone() }))
}

/// Has the kernel count only the hits of a tracepoint that are as the filter says.
pub(super) fn set_filter(fd: &OwnedFd, filter: &CStr, event: &Event) -> Result<()> {
    // SAFETY: the kernel copies the text, which ends with a zero and outlives the call.
    let set = unsafe { sys::ioctls::SET_FILTER(fd.as_raw_fd(), filter.as_ptr().cast_mut()) };
    if set >= 0 {
        return Ok(());
    }
    let (error, shown) = (io::Error::last_os_error(), filter.to_string_lossy());
    let what = format!("--filter {shown}: the kernel refuses it for {event}");
    Err(Error::system_with(
        what,
        error,
        "it compares fields of the tracepoint with values, as in 'prev_pid == 1 && prev_comm ~ \"a*\"'; the fields are \
         in the file format of the tracepoint's folder in /sys/kernel/tracing/events",
    ))
}

/// By what the kernel calls an event where it gives several.
pub(super) fn id(fd: &OwnedFd) -> Result<u64> {
    let mut id = 0;
    // SAFETY: the kernel writes the id, which outlives the call.
    if unsafe { sys::ioctls::ID(fd.as_raw_fd(), &raw mut id) } < 0 {
        return Err(Error::system("PERF_EVENT_IOC_ID", io::Error::last_os_error()));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_count_the_kernel_is_told_what_was_counted() {
        let named = |name: &str| Attr { name: name.into(), ..Attr::new(0, 0) };
        let name = |it: Attr| in_user_mode(&it).map(|it| it.to_string());
        assert_eq!(name(named("cycles")).unwrap(), "cycles:u");
        assert_eq!(name(named("cpu/event=1/")).unwrap(), "cpu/event=1/u");
        assert_eq!(name(Attr { pinned: true, ..named("cycles:D") }).unwrap(), "cycles:Du");
        let exclude = Exclude { user: true, hypervisor: true, ..Exclude::default() };
        assert_eq!(name(Attr { exclude, ..named("cycles:k") }), None);
        assert!(in_user_mode(&named("cycles")).unwrap().attr().exclude.kernel);
    }
}
