//! A tracepoint or probe in the kernel, with the program that runs at each hit.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
};

use perf_event_open_sys as sys;
use profiler_profile::source::Rate;

use super::Site;
use crate::{
    error::{Error, Result},
    perf::{
        attr::{self, How},
        event::Event,
        open::{self, Scope},
        refusal::{self, Use},
    },
};

/// One that is open: taken out of the kernel, with the program detached from it, when dropped. The kernel waits then until
/// no run of the program is left.
#[derive(Debug)]
pub(super) struct Point {
    name: String,
    fd: OwnedFd,
}

impl Point {
    /// Puts it there. Hits are counted nowhere until a program is attached.
    pub(super) fn open(site: &Site, cpu: u32) -> Result<Self> {
        let event = Event::new(site.attr.clone());
        let how = How { exclude_guest: false, precise: 0, of_any_pmu: false };
        let mut attr = attr::sampling(&event, Rate::Period(1), how);
        if let Some(place) = &site.place {
            place.put_into(&mut attr);
        }
        let fd = open::open(&mut attr, Scope::Cpu(cpu), None)
            .map_err(|error| refusal::explain(&event, Use::Trace, &error))?;
        Ok(Self { name: site.attr.name.clone(), fd })
    }

    /// Has the kernel run a loaded program of the fitting type at each hit, from now on and on all CPUs.
    pub(super) fn attach(&self, program: BorrowedFd<'_>) -> Result<()> {
        let program = u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX);
        // SAFETY: the ioctl takes two descriptors by value.
        if unsafe { sys::ioctls::SET_BPF(self.fd.as_raw_fd(), program) } < 0 {
            let error = io::Error::last_os_error();
            let next = match error.raw_os_error() {
                Some(libc::E2BIG) => "64 programs are attached to it already, which is the most",
                _ => "`profiler doctor` shows what is missing",
            };
            let what = format!("cannot run a program at each hit of {}", self.name);
            return Err(Error::system_with(what, error, next));
        }
        Ok(())
    }
}
