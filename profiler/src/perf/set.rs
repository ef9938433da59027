//! The same event on many CPUs: opened together, enabled together, and followed as CPUs come and go.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use super::{
    attr::{self, Rate},
    cpus::CpuList,
    event::EventSpec,
    hotplug::Changes,
    mmap_ring::MmapRing,
    open::{self, OpenEvent},
    per_cpu::PerCpu,
    sampled_cpu::SampledCpu,
};
use crate::{
    config::EventChoice,
    error::{Error, Result},
    kernel,
    ledger::CpuEvent,
};

/// One event on each CPU that is sampled and online.
#[derive(Debug)]
pub struct EventSet {
    /// The event that was opened: the fallback, where the default was not to be had.
    pub event: EventSpec,
    /// What the user should know, a line each: why the event is not the default, and which CPUs went
    /// offline before theirs was open.
    pub notices: Vec<String>,
    rate: Rate,
    /// Whether CPUs that come online later are sampled, too.
    newcomers: bool,
    /// Every CPU to sample, online or not.
    cpus: PerCpu<SampledCpu>,
}

/// Why an event can't be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The machine has no PMU that counts it: ENOENT, EOPNOTSUPP or ENODEV.
    NotCounted(io::Error),
    /// Anything else.
    Other(io::Error),
}

impl EventSet {
    /// Opens the event on each of these CPUs, which are the only ones to sample, or those that are
    /// online now. A CPU that has gone offline meanwhile gets its event when it is back.
    pub fn open(choice: EventChoice, rate: Rate, cpus: &CpuList, only_these: bool) -> Result<Self> {
        match choice {
            EventChoice::Named(event) => {
                Self::open_event(event, rate, cpus, only_these).map_err(|error| match error {
                    Failure::Open(error) => explain(event, rate, error),
                    Failure::Other(error) => error,
                })
            }
            EventChoice::Default => {
                match Self::open_event(EventSpec::CYCLES, rate, cpus, only_these) {
                    // A period means cycles; as nanoseconds it would be another one.
                    Err(Failure::Open(OpenError::NotCounted(error)))
                        if matches!(rate, Rate::Period(_)) =>
                    {
                        Err(Error::system_with(
                            format!("perf_event_open of {}", EventSpec::CYCLES),
                            format!("this machine has no PMU that counts it ({error})"),
                            format!(
                                "-c counts cycles; -e {} -c NANOSECONDS works everywhere, and so \
                                 does -F",
                                EventSpec::CPU_CLOCK
                            ),
                        ))
                    }
                    Err(Failure::Open(OpenError::NotCounted(error))) => {
                        let clock = EventChoice::Named(EventSpec::CPU_CLOCK);
                        let mut set = Self::open(clock, rate, cpus, only_these)?;
                        set.notices.push(format!(
                            "no hardware PMU ({error}); sampling {} in place of {}",
                            EventSpec::CPU_CLOCK,
                            EventSpec::CYCLES
                        ));
                        Ok(set)
                    }
                    Err(Failure::Open(error)) => Err(explain(EventSpec::CYCLES, rate, error)),
                    Err(Failure::Other(error)) => Err(error),
                    Ok(set) => Ok(set),
                }
            }
        }
    }

    fn open_event(
        event: EventSpec,
        rate: Rate,
        cpus: &CpuList,
        only_these: bool,
    ) -> Result<Self, Failure> {
        let mut sampled = Vec::new();
        let mut changes = Changes::default();
        for cpu in cpus.iter() {
            let state = match try_open(event, rate, cpu) {
                Ok(fd) => SampledCpu::new(with_ring(fd, cpu).map_err(Failure::Other)?),
                // ENODEV also says that the CPU is offline.
                Err(_) if kernel::cpus("online").is_ok_and(|online| !online.contains(cpu)) => {
                    changes.gone.push(cpu);
                    SampledCpu::default()
                }
                Err(error) => return Err(Failure::Open(error)),
            };
            sampled.push((cpu, state));
        }
        let notices = changes.notices().collect();
        let newcomers = !only_these;
        Ok(Self { event, notices, rate, newcomers, cpus: sampled.into_iter().collect() })
    }

    /// Has each event run the program.
    pub fn attach(&self, program: BorrowedFd<'_>) -> Result<()> {
        self.events().try_for_each(|event| event.attach(program))
    }

    /// Starts sampling: all events are open and have the program attached.
    pub fn enable(&mut self) -> Result<()> {
        self.note_idle();
        self.events().try_for_each(OpenEvent::enable)
    }

    /// Stops sampling; when it returns, the program does not run any more. Of failures the first is
    /// returned.
    pub fn disable(&mut self) -> Result<()> {
        let disabled = self.events().map(OpenEvent::disable).fold(Ok(()), Result::and);
        self.note_idle();
        if let Ok(online) = kernel::cpus("online") {
            self.cpus.close_absent(&online);
        }
        disabled
    }

    /// Follows the CPUs that have come and gone since the last look.
    pub fn look(&mut self, program: BorrowedFd<'_>) -> Changes {
        let Ok(online) = kernel::cpus("online") else { return Changes::default() };
        if self.newcomers {
            self.cpus.admit(&online);
        }
        self.note_idle();
        let (event, rate) = (self.event, self.rate);
        self.cpus.look(&online, |cpu| start(event, rate, cpu, program))
    }

    /// Counts how often the kernel has throttled the events since the last call.
    pub fn take_throttles(&mut self) {
        self.cpus.iter_mut().for_each(|(_, sampled)| sampled.take_throttles());
    }

    /// What the events of each CPU have done, with the first error of those that can't be read.
    pub fn account(&self) -> (Vec<CpuEvent>, Option<Error>) {
        let accounts = self.cpus.iter().map(|(cpu, sampled)| sampled.account(cpu));
        let (events, errors): (_, Vec<_>) = accounts.unzip();
        (events, errors.into_iter().flatten().next())
    }

    fn events(&self) -> impl Iterator<Item = &OpenEvent> {
        self.cpus.iter().filter_map(|(_, sampled)| sampled.event())
    }

    fn note_idle(&mut self) {
        // With the other events, the account does not ask for it.
        let idle = if self.event == EventSpec::CPU_CLOCK {
            kernel::idle_times()
        } else {
            HashMap::<u32, Duration>::new()
        };
        for (cpu, sampled) in self.cpus.iter_mut() {
            sampled.note_idle(idle.get(&cpu).copied());
        }
    }
}

/// Opens the event on one CPU while the others are enabled.
fn start(event: EventSpec, rate: Rate, cpu: u32, program: BorrowedFd<'_>) -> Result<OpenEvent> {
    let fd = try_open(event, rate, cpu).map_err(|error| explain(event, rate, error))?;
    let event = with_ring(fd, cpu)?;
    event.attach(program)?;
    event.enable()?;
    Ok(event)
}

/// The event with a ring of one page, in which the kernel tells that it throttles. Such a record takes
/// 32 bytes, so a page holds more than a timer tick's worth of them on every CPU.
fn with_ring(fd: OwnedFd, cpu: u32) -> Result<OpenEvent> {
    let ring = MmapRing::map(fd.as_fd(), 1).map_err(|error| {
        Error::system_with(
            format!("cannot map the record ring of the event on CPU {cpu}"),
            error,
            "each event maps 8 KiB: raise kernel.perf_event_mlock_kb, or add CAP_IPC_LOCK",
        )
    })?;
    Ok(OpenEvent::new(cpu, fd, ring))
}

enum Failure {
    Open(OpenError),
    Other(Error),
}

/// Opens the event on one CPU, without the guests' share of it where the PMU can tell.
pub(crate) fn try_open(event: EventSpec, rate: Rate, cpu: u32) -> Result<OwnedFd, OpenError> {
    let mut result = open::open(&mut attr::sampling(event, rate, true), cpu);
    if matches!(errno(&result), Some(libc::EINVAL | libc::EOPNOTSUPP)) {
        // Some PMUs refuse `exclude_guest`.
        result = open::open(&mut attr::sampling(event, rate, false), cpu);
    }
    match errno(&result) {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            result.map_err(OpenError::NotCounted)
        }
        _ => result.map_err(OpenError::Other),
    }
}

fn errno<T>(result: &io::Result<T>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}

/// The error in words, with what to try next.
fn explain(event: EventSpec, rate: Rate, error: OpenError) -> Error {
    let what = format!("perf_event_open of {event}");
    match error {
        OpenError::NotCounted(error) if !event.is_software() => Error::system_with(
            what,
            format!("this machine has no PMU that counts it ({error})"),
            format!(
                "virtual machines often have none; -e {} works everywhere",
                EventSpec::CPU_CLOCK
            ),
        ),
        OpenError::Other(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let rate = match rate {
                Rate::Frequency(hz) => format!("a frequency of {hz} Hz"),
                Rate::Period(period) => format!("a period of {period}"),
            };
            Error::system_with(what, error, format!("the kernel refuses {rate} for it"))
        }
        OpenError::Other(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            Error::system_with(what, error, "two files a CPU are needed: raise `ulimit -n`")
        }
        OpenError::NotCounted(error) | OpenError::Other(error) => {
            Error::system_with(what, error, "`profiler doctor` shows what is missing")
        }
    }
}
