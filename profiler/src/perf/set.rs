//! The same event on many CPUs: opened together, enabled together, and followed as CPUs come and go.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    os::fd::BorrowedFd,
    time::Duration,
};

use super::{
    attr::{self, Rate},
    cpus::CpuList,
    event::EventSpec,
    hotplug::Changes,
    open::{self, SamplingEvent},
    sampled_cpu::SampledCpu,
};
use crate::{
    config::EventChoice,
    error::{Error, Result},
    kernel,
    ledger::CpuEvent,
};

/// How many events a look asks for the time that has passed for them, in turns. Each answer takes an
/// interrupt of its CPU, for which the asking one waits, so a large machine is not asked all at once.
const ASKED_A_LOOK: usize = 8;

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
    cpus: BTreeMap<u32, SampledCpu>,
    /// Where the next turn of asking begins.
    next_asked: u32,
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
        let mut sampled = BTreeMap::new();
        let mut changes = Changes::default();
        for cpu in cpus.iter() {
            let state = match try_open(event, rate, cpu) {
                Ok(fd) => SampledCpu::new(SamplingEvent::new(fd, cpu).map_err(Failure::Other)?),
                // ENODEV also says that the CPU is offline.
                Err(_) if kernel::cpus("online").is_ok_and(|online| !online.contains(cpu)) => {
                    changes.gone.push(cpu);
                    SampledCpu::default()
                }
                Err(error) => return Err(Failure::Open(error)),
            };
            sampled.insert(cpu, state);
        }
        let notices = changes.notices().collect();
        let newcomers = !only_these;
        Ok(Self { event, notices, rate, newcomers, cpus: sampled, next_asked: 0 })
    }

    /// Has each event run the program.
    pub fn attach(&self, program: BorrowedFd<'_>) -> Result<()> {
        self.events().try_for_each(|event| event.attach(program))
    }

    /// Starts sampling: all events are open and have the program attached.
    pub fn enable(&mut self) -> Result<()> {
        self.note_idle();
        self.events().try_for_each(SamplingEvent::enable)
    }

    /// Stops sampling; when it returns, the program does not run any more. Of failures the first is
    /// returned.
    pub fn disable(&mut self) -> Result<()> {
        let disabled = self.events().map(SamplingEvent::disable).fold(Ok(()), Result::and);
        self.note_idle();
        if let Ok(online) = kernel::cpus("online") {
            self.close_absent(&online);
        }
        disabled
    }

    /// Follows the CPUs that have come and gone since the last look.
    ///
    /// The kernel takes a CPU's events out when it goes offline, and leaves them dead when it is back:
    /// they are closed, and others opened. Where both have happened since the last look, the list of
    /// CPUs is as before, but no more time passes for the event.
    pub fn look(&mut self, program: BorrowedFd<'_>) -> Changes {
        let mut changes = Changes::default();
        let Ok(online) = kernel::cpus("online") else { return changes };
        if self.newcomers {
            for cpu in online.iter() {
                self.cpus.entry(cpu).or_default();
            }
        }
        self.note_idle();
        changes.gone = self.close_absent(&online);
        let asked = self.take_turn();
        let (event, rate) = (self.event, self.rate);
        for (&cpu, sampled) in self.cpus.iter_mut().filter(|(cpu, _)| online.contains(**cpu)) {
            let is_dead = asked.contains(&cpu) && sampled.stands_still();
            if sampled.event().is_some() && !is_dead {
                continue;
            }
            match start(event, rate, cpu, program) {
                Ok(event) => {
                    sampled.replace(event);
                    let kind = if is_dead { &mut changes.revived } else { &mut changes.came };
                    kind.push(cpu);
                }
                Err(error) if sampled.refuse() => changes.refused.push((cpu, error)),
                // Told already, or the CPU is just going offline.
                Err(_) => {}
            }
        }
        changes
    }

    /// Counts how often the kernel has throttled the events since the last call.
    pub fn take_throttles(&mut self) {
        self.cpus.values_mut().for_each(SampledCpu::take_throttles);
    }

    /// What the events of each CPU have done, with the first error of those that can't be read.
    pub fn account(&self) -> (Vec<CpuEvent>, Option<Error>) {
        let accounts = self.cpus.iter().map(|(&cpu, sampled)| sampled.account(cpu));
        let (events, errors): (_, Vec<_>) = accounts.unzip();
        (events, errors.into_iter().flatten().next())
    }

    fn events(&self) -> impl Iterator<Item = &SamplingEvent> {
        self.cpus.values().filter_map(SampledCpu::event)
    }

    /// Closes the events of CPUs that are not online any more.
    fn close_absent(&mut self, online: &CpuList) -> Vec<u32> {
        let absent = self.cpus.iter_mut().filter(|(cpu, _)| !online.contains(**cpu));
        absent.filter_map(|(&cpu, sampled)| sampled.close().then_some(cpu)).collect()
    }

    /// The CPUs whose turn it is to be asked.
    fn take_turn(&mut self) -> Vec<u32> {
        let in_turn = self.cpus.range(self.next_asked..).chain(self.cpus.range(..self.next_asked));
        let asked: Vec<u32> = in_turn.map(|(&cpu, _)| cpu).take(ASKED_A_LOOK).collect();
        self.next_asked = asked.last().map_or(0, |last| last + 1);
        asked
    }

    fn note_idle(&mut self) {
        // With the other events, the account does not ask for it.
        let idle = if self.event == EventSpec::CPU_CLOCK {
            kernel::idle_times()
        } else {
            HashMap::<u32, Duration>::new()
        };
        for (cpu, sampled) in &mut self.cpus {
            sampled.note_idle(idle.get(cpu).copied());
        }
    }
}

/// Opens the event on one CPU while the others are enabled.
fn start(event: EventSpec, rate: Rate, cpu: u32, program: BorrowedFd<'_>) -> Result<SamplingEvent> {
    let fd = try_open(event, rate, cpu).map_err(|error| explain(event, rate, error))?;
    let event = SamplingEvent::new(fd, cpu)?;
    event.attach(program)?;
    event.enable()?;
    Ok(event)
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
