//! The same event on many CPUs: opened together, enabled together.

use std::io;

use super::{
    attr::{self, Rate},
    cpus::CpuList,
    event::EventSpec,
    open::{self, SamplingEvent},
};
use crate::{
    config::EventChoice,
    error::{Error, Result},
    kernel,
};

/// One event on each of a list of CPUs, all opened and none enabled.
#[derive(Debug)]
pub struct EventSet {
    /// The event that was opened: the fallback, where the default was not to be had.
    pub event: EventSpec,
    /// One a CPU, in the order of the CPUs.
    pub events: Vec<SamplingEvent>,
    /// CPUs that went offline before their event was open.
    pub skipped: CpuList,
    /// What the user should know: why the event is not the default.
    pub notice: Option<String>,
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
    /// Opens the event on each CPU. A CPU that has gone offline meanwhile is skipped; with
    /// `must_have_all` it is an error.
    pub fn open(
        choice: EventChoice,
        rate: Rate,
        cpus: &CpuList,
        must_have_all: bool,
    ) -> Result<Self> {
        match choice {
            EventChoice::Named(event) => Self::open_event(event, rate, cpus, must_have_all)
                .map_err(|error| match error {
                    Failure::Open(error) => explain(event, rate, error),
                    Failure::Other(error) => error,
                }),
            EventChoice::Default => {
                match Self::open_event(EventSpec::CYCLES, rate, cpus, must_have_all) {
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
                        let mut set = Self::open(
                            EventChoice::Named(EventSpec::CPU_CLOCK),
                            rate,
                            cpus,
                            must_have_all,
                        )?;
                        set.notice = Some(format!(
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
        must_have_all: bool,
    ) -> Result<Self, Failure> {
        let mut events = Vec::with_capacity(cpus.len());
        let mut skipped = Vec::new();
        for cpu in cpus.iter() {
            match try_open(event, rate, cpu) {
                Ok(fd) => events.push(SamplingEvent::new(fd, cpu).map_err(Failure::Other)?),
                // ENODEV also says that the CPU is offline.
                Err(_) if kernel::cpus("online").is_ok_and(|it| it.iter().all(|it| it != cpu)) => {
                    if must_have_all {
                        return Err(Failure::Other(Error::Usage(format!(
                            "-C: CPU {cpu} has just gone offline"
                        ))));
                    }
                    skipped.push(cpu);
                }
                Err(error) => return Err(Failure::Open(error)),
            }
        }
        let skipped = skipped.into_iter().collect();
        Ok(Self { event, events, skipped, notice: None })
    }
}

enum Failure {
    Open(OpenError),
    Other(Error),
}

/// Opens the event on one CPU, without the guests' share of it where the PMU can tell.
pub(crate) fn try_open(
    event: EventSpec,
    rate: Rate,
    cpu: u32,
) -> Result<std::os::fd::OwnedFd, OpenError> {
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
            Error::system_with(what, error, "one file a CPU is needed: raise `ulimit -n`")
        }
        OpenError::NotCounted(error) | OpenError::Other(error) => {
            Error::system_with(what, error, "`profiler doctor` shows what is missing")
        }
    }
}
