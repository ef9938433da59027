//! The sideband: which code is mapped in which process, told by the kernel as it happens.
//!
//! An event that counts nothing on each CPU that is online, also on those that are not sampled, since
//! a process maps its files on any of them. The kernel writes the record before the mapping can be
//! used: `mmap` has not returned, and whoever runs into the mapping waits for the lock that is held
//! (<https://github.com/torvalds/linux/blob/v6.12/mm/mmap.c> calls `perf_event_mmap` under the lock of
//! all mappings); so it is with fork and exec. Who reads samples first and then the sideband has for each of these
//! samples every record that it needs, whichever CPUs they are from.

use std::{io, os::fd::AsFd as _};

use profiler_profile::cpus::CpuList;
use rustix::param::page_size;

use super::{
    attr,
    hotplug::Changes,
    mmap_ring::MmapRing,
    open::{self, OpenEvent, Scope},
    per_cpu::{OnCpu, PerCpu},
    record::{self, Malformed, Record, Timed},
    slot::Slot,
    wakeup::{Epoll, Wakeup},
};
use crate::{
    error::{Error, Result},
    kernel,
};

/// How large the ring of a CPU is: as that of `perf record`, for which the kernel's limit is made.
/// A mapping takes some 120 bytes.
pub const RING_BYTES: usize = 512 << 10;
/// A smaller ring is not tried when the kernel refuses a larger one.
const MIN_RING_BYTES: usize = 16 << 10;

/// The events of all CPUs that write records.
#[derive(Debug)]
pub struct Sideband {
    cpus: PerCpu<Source>,
    opener: Opener,
    /// What the user should know, a line each.
    pub notices: Vec<String>,
    /// Where records are put together; kept, since it is needed at each read.
    run: Vec<u8>,
    lost: u64,
    malformed: u64,
}

/// One CPU's event, and what was in the rings of those before it.
#[derive(Debug, Default)]
struct Source {
    slot: Slot,
    left: Vec<u8>,
}

/// How events are opened here.
#[derive(Debug)]
struct Opener {
    page_bytes: usize,
    /// Pages of a ring.
    pages: usize,
    wanted_pages: usize,
    epoll: Epoll,
}

/// Why there is no event of a CPU.
enum Failure {
    /// The ring is too large for the limit of locked memory (EPERM), or for the memory that is free
    /// (ENOMEM).
    Ring(Error),
    /// Anything else.
    Other(Error),
}

impl Sideband {
    /// Opens an event on each of these CPUs, and records from now on. Rings have so many bytes, or as
    /// many as the kernel allows for all of them. A CPU that has gone offline meanwhile gets its event
    /// when it is back.
    pub fn open(cpus: &CpuList, ring_bytes: usize) -> Result<Self> {
        let mut opener = Opener::new(ring_bytes)?;
        let mut notices = Vec::new();
        let cpus = loop {
            match opener.open_all(cpus) {
                Ok(cpus) => break cpus,
                Err(Failure::Ring(_)) if opener.shrink() => {}
                Err(failure) => return Err(failure.into()),
            }
        };
        if opener.pages < opener.wanted_pages {
            let kib = |pages| (opener.page_bytes * pages) >> 10;
            notices.push(format!(
                "the kernel allows rings of {} KiB a CPU for records of mappings, not {}: names may be \
                 missing; raise kernel.perf_event_mlock_kb, or add CAP_IPC_LOCK",
                kib(opener.pages),
                kib(opener.wanted_pages)
            ));
        }
        Ok(Self { cpus, opener, notices, run: Vec::new(), lost: 0, malformed: 0 })
    }

    /// Follows the CPUs that have come and gone since the last look, all that are online. On those
    /// that came or were revived, records are missing of the time before.
    pub fn look(&mut self) -> Changes {
        let Ok(online) = kernel::cpus("online") else { return Changes::default() };
        self.cpus.admit(&online);
        self.cpus.look(&online, None, |cpu| Ok(self.opener.open(cpu)?))
    }

    /// Moves all records that are there behind those in `sink`; these ones in the order of time. The
    /// next read may still bring an earlier one, of a CPU that was read before another.
    pub fn read(&mut self, sink: &mut Vec<Timed>) {
        let start = sink.len();
        let mut malformed = 0;
        self.read_runs(|run| {
            for parsed in record::parse(run) {
                match parsed {
                    Ok(timed) => sink.push(timed),
                    Err(Malformed) => malformed += 1,
                }
            }
        });
        self.malformed += malformed;
        let read = sink.get_mut(start..).unwrap_or_default();
        for timed in read.iter() {
            if let Record::Lost { records } = timed.record {
                self.lost = self.lost.saturating_add(records);
            }
        }
        // Stable: what happened at the same time on one CPU stays in its order.
        read.sort_by_key(|timed| timed.time_ns);
    }

    /// Takes all records that are there, as the kernel wrote them: those of each CPU in their order.
    pub fn read_runs(&mut self, mut each: impl FnMut(&[u8])) {
        for (_, source) in self.cpus.iter_mut() {
            self.run.clear();
            self.run.append(&mut source.left);
            if let Some(event) = source.slot.event_mut() {
                event.read_records(&mut self.run);
            }
            each(&self.run);
        }
    }

    /// What wakes the reader at each record, of any CPU, also of those that come later; but once for a
    /// CPU until it is armed again.
    pub fn wakeup(&self) -> Result<Wakeup> {
        self.opener.epoll.wakeup().map_err(no_epoll)
    }

    /// How many records could not be read.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// How many records did not fit into the rings. The kernel tells it with the next record for which
    /// there is room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl OnCpu for Source {
    fn slot(&mut self) -> &mut Slot {
        &mut self.slot
    }

    fn replace(&mut self, event: OpenEvent) {
        self.close();
        self.slot = Slot::new(event);
    }

    fn close(&mut self) -> bool {
        let Some((mut event, _)) = self.slot.take() else { return false };
        event.read_records(&mut self.left);
        true
    }
}

fn no_epoll(error: io::Error) -> Error {
    Error::system("cannot wait for records of mappings with epoll", error)
}

impl Opener {
    fn new(ring_bytes: usize) -> Result<Self> {
        let page_bytes = page_size();
        // A power of two, as the kernel demands.
        let pages = ring_bytes.div_ceil(page_bytes).next_power_of_two();
        let epoll = Epoll::new().map_err(no_epoll)?;
        Ok(Self { page_bytes, pages, wanted_pages: pages, epoll })
    }

    fn open_all(&mut self, cpus: &CpuList) -> Result<PerCpu<Source>, Failure> {
        let open = |cpu| match self.open(cpu) {
            Ok(event) => Ok((cpu, Source { slot: Slot::new(event), left: Vec::new() })),
            Err(_) if kernel::cpus("online").is_ok_and(|online| !online.contains(cpu)) => {
                Ok((cpu, Source::default()))
            }
            Err(failure) => Err(failure),
        };
        cpus.iter().map(open).collect()
    }

    /// Halves the rings that are opened from now on; whether that is still worth a try.
    fn shrink(&mut self) -> bool {
        self.pages /= 2;
        self.pages > 0 && self.pages * self.page_bytes >= MIN_RING_BYTES
    }

    fn open(&mut self, cpu: u32) -> Result<OpenEvent, Failure> {
        let fd = open::open(&mut attr::sideband(), Scope::Cpu(cpu), None).map_err(|error| {
            let next = match error.raw_os_error() {
                Some(libc::EMFILE) => "two files a CPU are needed: raise `ulimit -n`",
                _ => "`profiler doctor` shows what is missing",
            };
            let what = format!("perf_event_open of records of mappings on CPU {cpu}");
            Failure::Other(Error::system_with(what, error, next))
        })?;
        let ring = MmapRing::map(fd.as_fd(), self.pages).map_err(|error| {
            let too_large = matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOMEM));
            let what = format!("cannot map the ring of records of mappings of CPU {cpu}");
            let next = "raise kernel.perf_event_mlock_kb, or add CAP_IPC_LOCK";
            let kind = if too_large { Failure::Ring } else { Failure::Other };
            kind(Error::system_with(what, error, next))
        })?;
        self.epoll.add(&fd).map_err(|error| Failure::Other(no_epoll(error)))?;
        Ok(OpenEvent::new(cpu, fd, ring))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let (Failure::Ring(error) | Failure::Other(error)) = failure;
        error
    }
}
