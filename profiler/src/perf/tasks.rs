//! The same event on many tasks: it counts and fires only while these run.
//!
//! Each thread has an event on each CPU, as a ring of records belongs to a CPU once events are inherited. What a task
//! starts inherits its events, with the program that they run: the kernel copies them before the new task runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Weak,
    time::Duration,
};

use profiler_profile::{
    cpus::CpuList,
    ledger::{CpuEvent, EventCount},
    source::{self, Rate},
};

use super::{
    attr::{self, Inherit},
    config::{CountedEvent, Tasks},
    event::Event,
    open::{self, OpenEvent, Scope},
    opening::{self, Failure, less_precise, try_open, with_ring},
    task_list, task_records, task_times,
};
use crate::{
    bpf::{
        load::{Slot, SlotSettings},
        periods::Periods,
    },
    error::{Error, Result, is_out_of_files},
    kernel::{self, OnlineCpus},
    limits,
    source::Source,
};

/// How often all events are opened, while threads begin as they are.
const PASSES: u32 = 8;
/// Pages of a CPU's ring: all events of a CPU share it, and each task that begins or ends takes 32 bytes.
const RING_PAGES: usize = 8;

/// One event for each of some threads on each CPU.
pub struct TaskSet {
    event: Event,
    notices: Vec<String>,
    rate: Rate,
    cpus: BTreeMap<u32, OnCpu>,
    /// Whether these are all CPUs that tasks may run on.
    is_on_all: bool,
    inherit: Inherit,
    enable_on_exec: bool,
    /// How many tasks have begun that may have inherited events.
    begun: u64,
    periods: Option<Periods>,
    online: OnlineCpus,
    /// CPUs that came later, of which the user knows.
    told: BTreeSet<u32>,
}

/// A CPU's events, the first with the ring for all.
#[derive(Default)]
struct OnCpu {
    events: Vec<OpenEvent>,
    throttled: u64,
}

/// The events that were opened, and what the least precise of them is.
#[derive(Default)]
struct Opened {
    cpus: BTreeMap<u32, OnCpu>,
    lowest: Option<u8>,
}

impl TaskSet {
    /// Opens the event on each of these tasks, on these CPUs or wherever they run.
    ///
    /// # Errors
    ///
    /// None of the tasks is left, or the kernel refuses the event or so many of it.
    pub fn open(
        choice: &CountedEvent,
        rate: Rate,
        tasks: &Tasks,
        cpus: &CpuList,
        only_these: bool,
    ) -> Result<Self> {
        let present;
        let (cpus, is_on_all) = if only_these {
            (cpus, false)
        } else {
            // Also those that are offline: the events wait for them.
            present = kernel::cpus("present")?;
            (&present, true)
        };
        let open = |event: &Event, rate| Self::open_event(event, rate, tasks, cpus, is_on_all);
        let (mut set, notice) = opening::chosen(choice, rate, open)?;
        set.notices.extend(notice);
        Ok(set)
    }

    fn open_event(
        event: &Event,
        rate: Rate,
        tasks: &Tasks,
        cpus: &CpuList,
        is_on_all: bool,
    ) -> Result<Self, Failure> {
        let (cpus, only_these) = opening::of_event(event, cpus, !is_on_all)?;
        let inherit = match (tasks.tids.is_empty(), tasks.children) {
            (false, _) => Inherit::Nothing,
            // Before Linux 5.13, child processes inherit, too, and the program drops their samples.
            (true, false) if can_inherit_threads() => Inherit::Threads,
            (true, _) => Inherit::All,
        };
        let mut set = Self {
            event: event.clone(),
            notices: Vec::new(),
            rate,
            cpus: BTreeMap::new(),
            is_on_all: !only_these,
            inherit,
            enable_on_exec: tasks.enable_on_exec,
            begun: 0,
            periods: None,
            online: OnlineCpus::open().map_err(Failure::Other)?,
            told: BTreeSet::new(),
        };
        let (opened, missing) = set.open_stable(tasks, &cpus)?;
        set.cpus = opened.cpus;
        set.notices.extend(opened.lowest.and_then(|precise| less_precise(event, precise)));
        if missing > 0 {
            set.notices.push(format!(
                "--per-task: {missing} threads began while events were opened, and may not be sampled"
            ));
        }
        Ok(set)
    }

    /// Opens the events of all tasks; tells how many began meanwhile. Such a task may have inherited the events or
    /// not, which nobody tells, so that all are opened again; but not for ever.
    fn open_stable(&self, tasks: &Tasks, cpus: &CpuList) -> Result<(Opened, usize), Failure> {
        let mut tids = task_list::list(tasks);
        let mut pass = 1;
        loop {
            let opened = self.open_all(&tids, cpus)?;
            let now = task_list::list(tasks);
            let new = now.difference(&tids).count();
            if new == 0 || pass == PASSES {
                return Ok((opened, new));
            }
            (tids, pass) = (now, pass + 1);
        }
    }

    fn open_all(&self, tids: &BTreeSet<u32>, cpus: &CpuList) -> Result<Opened, Failure> {
        require_files(tids.len(), cpus.len()).map_err(Failure::Other)?;
        let mut opened = Opened::default();
        for tid in tids {
            match self.open_task(*tid, cpus) {
                Ok(events) => events.into_iter().try_for_each(|it| self.take(&mut opened, it))?,
                Err(error) if has_ended(&error) => {}
                Err(error) if is_out_of_files(&error) => {
                    return Err(Failure::Other(too_many(tids.len(), cpus.len())));
                }
                Err(error) => return Err(Failure::Open(error)),
            }
        }
        if opened.cpus.is_empty() {
            return Err(Failure::Open(io::Error::from_raw_os_error(libc::ESRCH)));
        }
        Ok(opened)
    }

    /// The events of a task on each CPU, with how precise each is.
    fn open_task(&self, tid: u32, cpus: &CpuList) -> io::Result<Vec<(u32, OwnedFd, u8)>> {
        let mut events = Vec::with_capacity(cpus.len());
        for cpu in cpus.iter() {
            let scope = Scope::Task { tid, cpu: Some(cpu) };
            let complete = |attr: &mut _| attr::of_task(attr, self.inherit, self.enable_on_exec);
            match try_open(&self.event, self.rate, scope, complete) {
                Ok((fd, precise)) => events.push((cpu, fd, precise)),
                Err(error) if has_ended(&error) || is_out_of_files(&error) => return Err(error),
                // Some PMUs know no CPU that was never online.
                Err(_) if self.online.read().is_ok_and(|online| !online.contains(cpu)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(events)
    }

    fn take(
        &self,
        opened: &mut Opened,
        (cpu, fd, precise): (u32, OwnedFd, u8),
    ) -> Result<(), Failure> {
        let events = &mut opened.cpus.entry(cpu).or_default().events;
        let pages = if self.inherit == Inherit::Nothing { 1 } else { RING_PAGES };
        let event = match events.first() {
            Some(first) => OpenEvent::beside(fd, first),
            None => with_ring(fd, cpu, pages),
        };
        events.push(event.map_err(Failure::Other)?);
        opened.lowest = Some(opened.lowest.map_or(precise, |it| it.min(precise)));
        Ok(())
    }

    fn events(&self) -> impl Iterator<Item = &OpenEvent> {
        self.cpus.values().flat_map(|it| &it.events)
    }
}

impl Source for TaskSet {
    fn describe(&self) -> source::Source {
        self.event.source(self.rate)
    }

    fn settings(&self) -> SlotSettings {
        SlotSettings::Event { moved: self.event.is_clock() }
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The sampling times are not moved: a task's clock stands still while another runs, so nobody knows when it
    /// fires.
    fn attach(&mut self, slot: Slot, _dither: bool) -> Result<()> {
        self.events().try_for_each(|event| event.attach(slot.program.as_fd()))?;
        self.periods = Some(slot.periods);
        Ok(())
    }

    fn is_dithered(&self) -> bool {
        false
    }

    fn is_of_tasks(&self) -> bool {
        true
    }

    fn enable(&mut self) -> Result<()> {
        if self.enable_on_exec {
            return Ok(());
        }
        self.events().try_for_each(OpenEvent::enable)
    }

    fn disable(&mut self) -> Result<()> {
        self.events().map(OpenEvent::disable).fold(Ok(()), Result::and)
    }

    /// Tasks that have inherited an event keep its rate: the kernel changes only the one that was opened, and what is
    /// inherited from then on.
    fn set_rate(&mut self, rate: Rate) -> Result<()> {
        self.rate = rate;
        let period = self.event.period(rate);
        // A clock goes on to tell the program its first period.
        if let Some(periods) = self.periods.as_ref().filter(|_| self.event.is_clock()) {
            for cpu in self.cpus.keys() {
                periods.set(*cpu, period).map_err(|error| {
                    let what = format!("cannot tell the program the period of CPU {cpu}");
                    Error::system(what, error)
                })?;
            }
        }
        self.events().try_for_each(|event| event.set_period(period))
    }

    fn follow_cpus(&mut self, _revived: &[u32]) -> Vec<String> {
        let Ok(online) = self.online.read() else { return Vec::new() };
        let known: CpuList = self.cpus.keys().chain(&self.told).copied().collect();
        let new = online.without(&known);
        if !self.is_on_all || new.is_empty() {
            return Vec::new();
        }
        self.told.extend(new.iter());
        vec![format!(
            "CPU {new} came online, where --per-task samples nothing: start the run again"
        )]
    }

    fn poll(&mut self) {
        let mut records = Vec::new();
        for on_cpu in self.cpus.values_mut() {
            records.clear();
            if let Some(first) = on_cpu.events.first_mut() {
                first.read_records(&mut records);
            }
            let told = task_records::read(&records, self.inherit);
            on_cpu.throttled += told.throttles;
            self.begun += told.begun;
        }
    }

    fn account(&mut self) -> (Vec<CpuEvent>, Option<Error>) {
        self.poll();
        let mut unread = None;
        let mut counts: BTreeMap<u32, EventCount> = BTreeMap::new();
        for event in self.events() {
            let sum = counts.entry(event.cpu()).or_default();
            match event.count() {
                Ok(count) => *sum += count,
                Err(error) => unread = unread.or(Some(error)),
            }
        }
        task_times::settle(&mut counts, self.is_on_all && !self.event.is_software());
        let of_cpu = |(cpu, count)| {
            let (events, throttled) =
                self.cpus.get(&cpu).map_or((0, 0), |it| (it.events.len() as u64, it.throttled));
            CpuEvent {
                cpu,
                count,
                // Each may have left a period unfinished on each CPU.
                events: events.saturating_add(self.begun),
                whole: true,
                refused: false,
                throttled,
                idle: Duration::ZERO,
            }
        };
        (counts.into_iter().map(of_cpu).collect(), unread)
    }

    fn descriptors(&self) -> Vec<Weak<OwnedFd>> {
        self.events().map(OpenEvent::descriptor).collect()
    }
}

/// Whether events can be inherited by threads alone: since Linux 5.13.
fn can_inherit_threads() -> bool {
    let mut attr = attr::counting(&Event::dummy());
    attr::of_task(&mut attr, Inherit::Threads, false);
    // Of ourselves.
    open::open(&mut attr, Scope::Task { tid: 0, cpu: None }, None).is_ok()
}

/// Refuses more events than may be open beside what a run needs, which would fail somewhere else.
fn require_files(tasks: usize, cpus: usize) -> Result<()> {
    let events = (tasks as u64).saturating_mul(cpus as u64);
    let others = limits::least_open_files().saturating_add(limits::max_mapped_files() as u64);
    if events.saturating_add(others) <= limits::open_files() {
        return Ok(());
    }
    Err(too_many(tasks, cpus))
}

fn too_many(tasks: usize, cpus: usize) -> Error {
    let limit = limits::open_files();
    Error::system_with(
        format!("--per-task: {tasks} threads on {cpus} CPUs take a file each"),
        format!("open files are limited to {limit}, and the run needs some itself"),
        "raise `ulimit -n`, name fewer CPUs by -C, or leave --per-task out: events of CPUs take no file a thread",
    )
}

fn has_ended(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}
