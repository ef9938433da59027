//! The same event on many CPUs: opened together, enabled together, and followed as CPUs come and go.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
};

use aya::programs::ProgramFd;
use profiler_profile::{
    cpus::CpuList,
    ledger::CpuEvent,
    source::{self, Rate},
};

use super::{
    config::CountedEvent,
    dither::{self, Dither},
    event::Event,
    hotplug::Changes,
    open::{OpenEvent, Scope},
    opening::{self, Failure, less_precise, try_open, with_ring},
    per_cpu::PerCpu,
    refusal::{self, Use},
    sampled_cpu::SampledCpu,
};
use crate::{
    bpf::{
        load::{Slot, SlotSettings},
        periods::Periods,
    },
    error::{Error, Result},
    kernel::{self, IdleTimes, OnlineCpus},
    source::Source,
};

/// One event on each CPU that is sampled and online.
pub struct EventSet {
    /// The event that was opened: the fallback, where the default was not to be had.
    pub event: Event,
    /// What the user should know, a line each: why the event is not the default, and which CPUs went
    /// offline before theirs was open.
    pub notices: Vec<String>,
    rate: Rate,
    /// Whether CPUs that come online later are sampled, too.
    newcomers: bool,
    /// The folder of the cgroup that is counted; everything if `None`.
    cgroup: Option<Arc<OwnedFd>>,
    /// Every CPU to sample, online or not.
    cpus: PerCpu<SampledCpu>,
    /// Held open for the end of the run.
    online: OnlineCpus,
    /// Only of clocks: with other events, the account does not ask for it.
    idle: Option<IdleTimes>,
    /// Moves the periods while the events are enabled.
    dither: Option<Dither>,
    /// Where the program finds the periods, if they are not moved.
    periods: Option<Periods>,
    /// What each event runs.
    program: Option<ProgramFd>,
    is_enabled: bool,
    /// Whether the periods are or were moved.
    is_dithered: bool,
}

impl EventSet {
    /// Opens the event on each of these CPUs, which are the only ones to sample, or those that are
    /// online now. A CPU that has gone offline meanwhile gets its event when it is back.
    ///
    /// It samples at the event's own rate, or else at this one.
    pub fn open(
        choice: &CountedEvent,
        rate: Rate,
        cpus: &CpuList,
        only_these: bool,
    ) -> Result<Self> {
        Self::open_in(None, choice, rate, cpus, only_these)
    }

    /// The same of what is in a cgroup or below it, by its folder.
    pub(super) fn open_in(
        cgroup: Option<&Arc<OwnedFd>>,
        choice: &CountedEvent,
        rate: Rate,
        cpus: &CpuList,
        only_these: bool,
    ) -> Result<Self> {
        let open = |event: &Event, rate| {
            let (cpus, only_these) = opening::of_event(event, cpus, only_these)?;
            Self::open_event(cgroup.cloned(), event.clone(), rate, &cpus, only_these)
        };
        let (mut set, notice) = opening::chosen(choice, rate, open)?;
        set.notices.extend(notice);
        Ok(set)
    }

    fn open_event(
        cgroup: Option<Arc<OwnedFd>>,
        event: Event,
        rate: Rate,
        cpus: &CpuList,
        only_these: bool,
    ) -> Result<Self, Failure> {
        let mut sampled = Vec::new();
        let mut changes = Changes::default();
        let mut lowest = None;
        for cpu in cpus.iter() {
            let state = match try_open(&event, rate, scope(cgroup.as_deref(), cpu), |_| ()) {
                Ok((fd, precise)) => {
                    lowest = Some(lowest.map_or(precise, |it: u8| it.min(precise)));
                    SampledCpu::new(with_ring(fd, cpu, 1).map_err(Failure::Other)?)
                }
                // ENODEV also says that the CPU is offline.
                Err(_) if kernel::cpus("online").is_ok_and(|online| !online.contains(cpu)) => {
                    changes.gone.push(cpu);
                    SampledCpu::default()
                }
                Err(error) => return Err(Failure::Open(error)),
            };
            sampled.push((cpu, state));
        }
        let mut notices: Vec<String> = changes.notices("sampled").collect();
        notices.extend(lowest.and_then(|precise| less_precise(&event, precise)));
        let newcomers = !only_these;
        let online = OnlineCpus::open().map_err(Failure::Other)?;
        // Without /proc nobody says how long a CPU slept: its periods count as missed. The clock of a cgroup stands
        // still then.
        let has_times = event.is_clock() && cgroup.is_none() && kernel::has_proc();
        let idle = has_times.then(IdleTimes::open).transpose().map_err(Failure::Other)?;
        let cpus = sampled.into_iter().collect();
        Ok(Self {
            event,
            notices,
            rate,
            newcomers,
            cgroup,
            cpus,
            online,
            idle,
            dither: None,
            periods: None,
            program: None,
            is_enabled: false,
            is_dithered: false,
        })
    }

    /// Has each event run the program, also those of CPUs that come.
    pub fn attach(&mut self, program: ProgramFd) -> Result<()> {
        self.events().try_for_each(|event| event.attach(program.as_fd()))?;
        self.program = Some(program);
        Ok(())
    }

    /// Takes what tells the program the period of each CPU. If `wanted`, has the sampling times moved, where
    /// the event is a clock that samples at a frequency. Other events have no even pace, and where a period was
    /// asked for, it is kept.
    fn dither(&mut self, periods: Periods, wanted: bool) -> Result<()> {
        let period_ns = match self.rate {
            Rate::Frequency(hz) if wanted && self.event.is_clock() => 1_000_000_000 / hz.max(1),
            _ => 0,
        };
        if period_ns >= dither::MIN_PERIOD_NS {
            self.dither = Some(Dither::start(periods, period_ns)?);
            self.is_dithered = true;
        } else {
            self.periods = Some(periods);
        }
        Ok(())
    }

    /// Starts sampling: all events are open and have the program attached.
    pub fn enable(&mut self) -> Result<()> {
        self.note_idle();
        if let Some(dither) = &self.dither {
            self.events().try_for_each(|event| dither.add(event.cpu(), event.fd()))?;
        }
        self.is_enabled = true;
        self.events().try_for_each(OpenEvent::enable)?;
        self.events().try_for_each(|it| check_counter(&self.event, it))
    }

    /// Has all events sample at another rate of the same kind, also those of CPUs that come.
    pub fn set_rate(&mut self, rate: Rate) -> Result<()> {
        self.rate = rate;
        let period = self.event.period(rate);
        if let Some(dither) = &self.dither {
            return dither.set_nominal(period);
        }
        for event in self.cpus.iter().filter_map(|(_, sampled)| sampled.event()) {
            // A clock goes on to tell the program its first period.
            if let Some(periods) = self.periods.as_ref().filter(|_| self.event.is_clock()) {
                periods.set(event.cpu(), period).map_err(|error| {
                    Error::system(
                        format!("cannot tell the program the period of CPU {}", event.cpu()),
                        error,
                    )
                })?;
            }
            event.set_period(period)?;
        }
        Ok(())
    }

    /// Stops sampling; when it returns, the program does not run any more. Of failures the first is
    /// returned.
    pub fn disable(&mut self) -> Result<()> {
        // It ends the thread.
        self.dither = None;
        let disabled = self.events().map(OpenEvent::disable).fold(Ok(()), Result::and);
        self.note_idle();
        self.is_enabled = false;
        if let Ok(online) = self.online.read() {
            self.cpus.close_absent(&online);
        }
        disabled
    }

    /// Follows the CPUs that have come and gone since the last look. Who has an event of each CPU knows which of them
    /// were away unseen: an event of a cgroup also stands still while nothing of that runs.
    pub fn look(&mut self, revived: &[u32]) -> Changes {
        let Ok(online) = self.online.read() else { return Changes::default() };
        let Some(program) = &self.program else { return Changes::default() };
        let program = program.as_fd();
        if self.newcomers {
            self.cpus.admit(&online);
        }
        if let Some(times) = &self.idle {
            note_idle(times, &mut self.cpus);
        }
        let (event, rate, dither) = (&self.event, self.rate, self.dither.as_ref());
        let cgroup = self.cgroup.as_deref();
        let dead = cgroup.map(|_| revived);
        self.cpus
            .look(&online, dead, |cpu| start(event, rate, scope(cgroup, cpu), cpu, program, dither))
    }

    /// Counts how often the kernel has throttled the events since the last call.
    fn take_throttles(&mut self) {
        self.cpus.iter_mut().for_each(|(_, sampled)| sampled.take_throttles());
    }

    /// What the events of each CPU have done, with the first error of those that can't be read.
    pub fn account(&mut self) -> (Vec<CpuEvent>, Option<Error>) {
        self.take_throttles();
        if self.is_enabled {
            self.note_idle();
        }
        let accounts = self.cpus.iter().map(|(cpu, sampled)| sampled.account(cpu));
        let (events, errors): (_, Vec<_>) = accounts.unzip();
        (events, errors.into_iter().flatten().next())
    }

    fn events(&self) -> impl Iterator<Item = &OpenEvent> {
        self.cpus.iter().filter_map(|(_, sampled)| sampled.event())
    }

    /// Adds up for how long CPUs are idle, up to now: the account is as exact as the last call is recent.
    fn note_idle(&mut self) {
        if let Some(times) = &self.idle {
            note_idle(times, &mut self.cpus);
        }
    }
}

impl Source for EventSet {
    fn describe(&self) -> source::Source {
        self.event.source(self.rate)
    }

    fn settings(&self) -> SlotSettings {
        SlotSettings::Event { moved: self.event.is_clock() }
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn attach(&mut self, slot: Slot, dither: bool) -> Result<()> {
        self.attach(slot.program)?;
        self.dither(slot.periods, dither)
    }

    fn is_dithered(&self) -> bool {
        self.is_dithered
    }

    fn enable(&mut self) -> Result<()> {
        self.enable()
    }

    fn disable(&mut self) -> Result<()> {
        self.disable()
    }

    fn set_rate(&mut self, rate: Rate) -> Result<()> {
        self.set_rate(rate)
    }

    fn follow_cpus(&mut self, revived: &[u32]) -> Vec<String> {
        self.look(revived).notices("sampled").collect()
    }

    fn poll(&mut self) {
        self.take_throttles();
    }

    fn account(&mut self) -> (Vec<CpuEvent>, Option<Error>) {
        self.account()
    }

    fn descriptors(&self) -> Vec<Weak<OwnedFd>> {
        self.events().map(OpenEvent::descriptor).collect()
    }
}

fn note_idle(times: &IdleTimes, cpus: &mut PerCpu<SampledCpu>) {
    let idle = times.read();
    for (cpu, sampled) in cpus.iter_mut() {
        sampled.note_idle(idle.get(&cpu).copied());
    }
}

/// All that runs on a CPU, or what is in the cgroup.
fn scope(cgroup: Option<&OwnedFd>, cpu: u32) -> Scope<'_> {
    match cgroup {
        Some(folder) => Scope::Cgroup { folder: folder.as_fd(), cpu },
        None => Scope::Cpu(cpu),
    }
}

/// Opens the event on one CPU while the others are enabled.
fn start(
    event: &Event,
    rate: Rate,
    scope: Scope<'_>,
    cpu: u32,
    program: BorrowedFd<'_>,
    dither: Option<&Dither>,
) -> Result<OpenEvent> {
    let (fd, _) = try_open(event, rate, scope, |_| ())
        .map_err(|error| refusal::explain(event, Use::Sample(rate), &error))?;
    let opened = with_ring(fd, cpu, 1)?;
    opened.attach(program)?;
    if let Some(dither) = dither {
        dither.add(cpu, opened.fd())?;
    }
    opened.enable()?;
    check_counter(event, &opened)?;
    Ok(opened)
}

/// Refuses an enabled event that should be on the PMU always, and for which there was no counter.
fn check_counter(event: &Event, opened: &OpenEvent) -> Result<()> {
    if !event.attr().pinned || !opened.is_given_up() {
        return Ok(());
    }
    Err(Error::system_with(
        event.to_string(),
        format!("CPU {} has no counter left for it", opened.cpu()),
        "other events have them always, as this one should by `D`: name fewer of those, or leave `D` out",
    ))
}
