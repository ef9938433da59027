//! Opening and driving a perf event.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    sync::{Arc, Weak},
};

use perf_event_open_sys as sys;
use profiler_profile::ledger::EventCount;

use super::{mmap_ring::MmapRing, record};
use crate::error::{Error, Result};

/// An open event of one CPU with its ring, if that is not another event's: closed, with the program detached from it,
/// when dropped.
#[derive(Debug)]
pub struct OpenEvent {
    cpu: u32,
    // Unmapped before the file is closed.
    ring: Option<MmapRing>,
    fd: Arc<OwnedFd>,
}

/// What an event counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    /// All that runs on this CPU.
    Cpu(u32),
    /// A thread, and with `inherit` what it starts: on every CPU, or only while it is on this one.
    Task { tid: u32, cpu: Option<u32> },
    /// What runs on this CPU and is in this cgroup or below it: its folder, in a hierarchy that has `perf_event`.
    Cgroup { folder: BorrowedFd<'a>, cpu: u32 },
}

/// `perf_event_open(2)`, close-on-exec. With a leader, the event joins its group.
pub(crate) fn open(
    attr: &mut sys::bindings::perf_event_attr,
    scope: Scope<'_>,
    leader: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let number =
        |it: u32| i32::try_from(it).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (pid, cpu, of_cgroup) = match scope {
        Scope::Cpu(cpu) => (-1, number(cpu)?, 0),
        Scope::Task { tid, cpu } => (number(tid)?, cpu.map_or(Ok(-1), number)?, 0),
        Scope::Cgroup { folder, cpu } => {
            (folder.as_raw_fd(), number(cpu)?, sys::bindings::PERF_FLAG_PID_CGROUP)
        }
    };
    let flags = u64::from(sys::bindings::PERF_FLAG_FD_CLOEXEC | of_cgroup);
    let leader = leader.map_or(-1, |it| it.as_raw_fd());
    // SAFETY: `attr` is initialized, with its size in it, and outlives the call.
    let fd = unsafe { sys::perf_event_open(attr, pid, cpu, leader, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl OpenEvent {
    /// Takes an event that [`open`] has opened on this CPU, with the ring that was mapped for it.
    pub(crate) fn new(cpu: u32, fd: OwnedFd, ring: MmapRing) -> Self {
        Self { cpu, ring: Some(ring), fd: Arc::new(fd) }
    }

    /// Takes an event that [`open`] has opened on the same CPU as another one, whose ring has the records of both.
    pub(crate) fn beside(fd: OwnedFd, other: &Self) -> Result<Self> {
        let event = Self { cpu: other.cpu, ring: None, fd: Arc::new(fd) };
        event.ioctl("PERF_EVENT_IOC_SET_OUTPUT", |fd| {
            // SAFETY: the ioctl takes two descriptors by value.
            unsafe { sys::ioctls::SET_OUTPUT(fd, other.fd.as_raw_fd()) }
        })?;
        Ok(event)
    }

    /// The event's file, for who changes the event while it is open.
    pub(super) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// The CPU that it is bound to.
    #[must_use]
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Has the event run a loaded `perf_event` program each time it fires. Works since Linux 4.9.
    pub fn attach(&self, program: BorrowedFd<'_>) -> Result<()> {
        let program = u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX);
        self.ioctl("PERF_EVENT_IOC_SET_BPF", |fd| {
            // SAFETY: the ioctl takes two descriptors by value.
            unsafe { sys::ioctls::SET_BPF(fd, program) }
        })
    }

    /// Its descriptor, as long as it is open.
    pub(crate) fn descriptor(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.fd)
    }

    /// Has it sample once every so many counts from now on. Of an event that the kernel holds at a
    /// frequency, this is the frequency.
    pub fn set_period(&self, period: u64) -> Result<()> {
        // The kernel wants the address of the period.
        let at = (&raw const period) as u64;
        // SAFETY: the kernel reads the period, which outlives the call.
        self.ioctl("PERF_EVENT_IOC_PERIOD", |fd| unsafe { sys::ioctls::PERIOD(fd, at) })
    }

    /// Starts sampling.
    pub fn enable(&self) -> Result<()> {
        // SAFETY: the ioctl takes no pointer.
        self.ioctl("PERF_EVENT_IOC_ENABLE", |fd| unsafe { sys::ioctls::ENABLE(fd, 0) })
    }

    /// Stops sampling; when it returns, the program does not run for this event any more.
    pub fn disable(&self) -> Result<()> {
        // SAFETY: the ioctl takes no pointer.
        self.ioctl("PERF_EVENT_IOC_DISABLE", |fd| unsafe { sys::ioctls::DISABLE(fd, 0) })
    }

    fn ioctl(&self, name: &str, call: impl FnOnce(i32) -> i32) -> Result<()> {
        if call(self.fd.as_raw_fd()) < 0 {
            let error = io::Error::last_os_error();
            return Err(Error::system(format!("{name} on the event of CPU {}", self.cpu), error));
        }
        Ok(())
    }

    /// What the event has counted since it was opened. One whose CPU has gone offline keeps what it
    /// had counted until then.
    pub fn count(&self) -> Result<EventCount> {
        // The layout that `attr` asks for by `read_format`.
        let mut words = [[0; size_of::<u64>()]; 3];
        let bytes = words.as_flattened_mut();
        let what = || format!("cannot read the event of CPU {}", self.cpu);
        let read = rustix::io::read(&self.fd, &mut *bytes);
        let read = read.map_err(|error| Error::system(what(), error))?;
        // An event that the kernel has given up reads as a file at its end.
        if read != bytes.len() {
            let why = format!("it gives {read} bytes of {}", bytes.len());
            return Err(Error::system(what(), why));
        }
        let [count, enabled_ns, running_ns] = words.map(u64::from_ne_bytes);
        Ok(EventCount { count, enabled_ns, running_ns })
    }

    /// Whether the kernel has given it up, as it does with a pinned event that there is no counter for: then it reads as a
    /// file at its end.
    pub(crate) fn is_given_up(&self) -> bool {
        matches!(rustix::io::read(&self.fd, &mut [0; 3 * size_of::<u64>()]), Ok(0))
    }

    /// Moves the records in its ring behind `bytes`.
    pub(crate) fn read_records(&mut self, bytes: &mut Vec<u8>) {
        if let Some(ring) = &mut self.ring {
            ring.read(bytes);
        }
    }

    /// How often the kernel has throttled the event since the last call.
    pub fn take_throttles(&mut self) -> u64 {
        let mut records = Vec::new();
        self.read_records(&mut records);
        let kinds = record::split(&records).map(|(kind, _)| kind);
        kinds.filter(|kind| *kind == sys::bindings::PERF_RECORD_THROTTLE).count() as u64
    }
}
