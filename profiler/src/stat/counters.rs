//! The events of a run, opened wherever they are counted.

use std::{
    collections::VecDeque,
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    thread,
    time::Duration,
};

use perf_event_open_sys as sys;
use profiler_profile::{cpus::CpuList, ledger::EventCount};

use super::{
    count::{Total, since},
    group,
    plan::{Group, Plan, Target, is_tracepoint},
    row::{Failure, Row, id, set_filter},
    tasks,
};
use crate::{
    error::{Error, Result},
    perf::{attr::Counting, event::Event, open::Scope},
    stderr,
};

/// How often the threads of a process are opened anew, since it has started others meanwhile.
const TRIES: u32 = 20;
/// How often a group is read again that the kernel can't read, as a task with a part of it is just ending, and after
/// which time.
const READINGS: u32 = 20;
const AGAIN: Duration = Duration::from_millis(1);

/// What an event has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// It was counted for some of the time at least.
    Counted(Total),
    /// There was no counter for it, or nothing ran.
    NotCounted,
    /// Nothing on this machine counts it.
    NotSupported,
    /// It was to be on the PMU always, and there was no place: the kernel has given it up.
    Failed,
}

/// Events that are open. They are closed when this is dropped.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(super) rows: Vec<Row>,
    /// Those of the plan, as the PMU had room for them.
    pub(super) groups: Vec<Group>,
    pub(super) open: Vec<OpenGroup>,
    /// What events that are closed had counted, by row, and has not been taken.
    pub(super) closed: Vec<Total>,
    pub(super) filter: Option<CString>,
    /// Whether they begin when a command is executed.
    on_exec: bool,
}

/// A group in one place, its leader first.
#[derive(Debug)]
pub(super) struct OpenGroup {
    /// The CPU, if it is on one and only there.
    pub(super) cpu: Option<u32>,
    counters: Vec<OpenCounter>,
}

#[derive(Debug)]
struct OpenCounter {
    row: usize,
    fd: OwnedFd,
    /// By which the kernel's answer tells it from the others of its group.
    id: u64,
    /// What it had counted when it was last read.
    before: EventCount,
}

impl Counters {
    /// Opens all events of a plan, disabled. Those of a command begin when this process of ours executes it.
    pub(crate) fn open(plan: &Plan, target: &Target, command: Option<u32>) -> Result<Self> {
        let counters = match target {
            Target::Tasks { pids, tids } => Self::of_tasks(plan, pids, tids)?,
            Target::Command => {
                let tid = command.ok_or_else(|| Error::Usage("no command was given".into()))?;
                Self::at(plan, &[Scope::Task { tid, cpu: None }], true)?
            }
            Target::Cpus(cpus) => {
                let scopes: Vec<_> = cpus.iter().map(Scope::Cpu).collect();
                Self::at(plan, &scopes, false)?
            }
            Target::Cgroup { folder, cpus } => {
                let folder = folder.as_fd();
                let scopes: Vec<_> = cpus.iter().map(|cpu| Scope::Cgroup { folder, cpu }).collect();
                Self::at(plan, &scopes, false)?
            }
        };
        counters.check_any()
    }

    /// Opens those of the threads that processes have. What a thread starts is counted with it, so one that was started
    /// meanwhile may be counted twice or not at all: then all are opened anew.
    fn of_tasks(plan: &Plan, pids: &[u32], tids: &[u32]) -> Result<Self> {
        let mut tries = 0;
        loop {
            let before = tasks::threads(pids, tids)?;
            let scopes: Vec<_> = before.iter().map(|&tid| Scope::Task { tid, cpu: None }).collect();
            let counters = Self::at(plan, &scopes, false)?;
            if tasks::threads(pids, tids)?.is_subset(&before) && counters.are_whole() {
                return Ok(counters);
            }
            tries += 1;
            if tries == TRIES {
                stderr::notice(
                    "threads are started all the time: some of them may be counted twice, or not at all",
                );
                return Ok(counters);
            }
        }
    }

    fn at(plan: &Plan, scopes: &[Scope<'_>], on_exec: bool) -> Result<Self> {
        let rows = plan.events.iter().map(Row::of);
        let mut counters = Self {
            rows: rows.collect::<Result<_>>()?,
            groups: Vec::new(),
            open: Vec::new(),
            closed: vec![Total::default(); plan.events.len()],
            filter: plan.filter.clone(),
            on_exec,
        };
        let mut left: VecDeque<Group> = plan.groups.iter().cloned().collect();
        while let Some(group) = left.pop_front() {
            match counters.open_group(&group, scopes) {
                Ok(opened) => {
                    counters.open.extend(opened);
                    counters.groups.push(group);
                }
                Err(_) if group.may_split && group.events.len() > 1 => {
                    let alone = |event| Group { events: vec![event], may_split: false };
                    group.events.into_iter().rev().for_each(|it| left.push_front(alone(it)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(counters)
    }

    /// Opens a group in each of these places.
    fn open_group(&mut self, group: &Group, scopes: &[Scope<'_>]) -> Result<Vec<OpenGroup>> {
        let cpus = self.cpus_of(group)?;
        let is_there = |scope: &&Scope<'_>| match (scope, &cpus) {
            (Scope::Cpu(cpu) | Scope::Cgroup { cpu, .. }, Some(cpus)) => cpus.contains(*cpu),
            _ => true,
        };
        let there: Vec<&Scope<'_>> = scopes.iter().filter(is_there).collect();
        if let (Some(cpus), Some(row), true) = (&cpus, self.row(group), there.is_empty()) {
            let why = format!("-e {}: it is counted on CPU {cpus}, not on those of -C", row.event);
            return Err(Error::Usage(why));
        }
        let mut opened = Vec::new();
        for scope in there {
            match self.open_at(group, *scope) {
                Ok(group) if group.counters.is_empty() => {}
                Ok(group) => opened.push(group),
                Err(Failure::Gone) => {}
                Err(Failure::NotSupported(error) | Failure::Refused(error)) => return Err(error),
            }
        }
        Ok(opened)
    }

    /// Opens a group in one place, apart from what nothing counts.
    pub(super) fn open_at(
        &mut self,
        group: &Group,
        scope: Scope<'_>,
    ) -> Result<OpenGroup, Failure> {
        let filter: Option<&CStr> = self.filter.as_deref();
        let mut opened: Vec<OpenCounter> = Vec::new();
        for &at in &group.events {
            let Some(row) = self.rows.get_mut(at).filter(|it| it.refused.is_none()) else {
                continue;
            };
            let leader = opened.first().map(|it| it.fd.as_fd());
            let inherit = matches!(scope, Scope::Task { .. });
            let how = Counting { leads: leader.is_none(), on_exec: self.on_exec, inherit };
            match row.open(scope, leader, how) {
                Ok(fd) => {
                    if let Some(filter) = filter.filter(|_| is_tracepoint(row.event.attr())) {
                        set_filter(&fd, filter, &row.event).map_err(Failure::Refused)?;
                    }
                    let id = id(&fd).map_err(Failure::Refused)?;
                    opened.push(OpenCounter { row: at, fd, id, before: EventCount::default() });
                }
                Err(Failure::NotSupported(error)) => row.refused = Some(error),
                Err(other) => return Err(other),
            }
        }
        let cpu = match scope {
            Scope::Cpu(cpu) | Scope::Cgroup { cpu, .. } => Some(cpu),
            Scope::Task { cpu, .. } => cpu,
        };
        Ok(OpenGroup { cpu, counters: opened })
    }

    /// The CPUs that a group has to be opened on, where its PMU says so.
    pub(super) fn cpus_of(&self, group: &Group) -> Result<Option<CpuList>> {
        let mut rows = group.events.iter().filter_map(|at| self.rows.get(*at));
        let Some(text) = rows.find_map(|row| row.event.attr().cpus.as_ref()) else {
            return Ok(None);
        };
        let failed =
            |why: String| Error::system(format!("cannot read the CPUs of a PMU: {text}"), why);
        text.parse().map(Some).map_err(failed)
    }

    fn row(&self, group: &Group) -> Option<&Row> {
        self.rows.get(*group.events.first()?)
    }

    /// Fails if nothing is counted at all.
    fn check_any(mut self) -> Result<Self> {
        if self.open.is_empty() {
            let refused = self.rows.iter_mut().find_map(|row| row.refused.take());
            let ended = || Error::system("nothing is counted", "what was to be counted has ended");
            return Err(refused.unwrap_or_else(ended));
        }
        Ok(self)
    }

    /// Why events of the plan are not supported, a line each.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = String> {
        self.rows.iter().filter_map(|row| row.refused.as_ref()).map(ToString::to_string)
    }

    /// The events, as they were opened: what a user may not count is left out of them.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.rows.iter().map(|row| row.event.clone()).collect()
    }

    /// Whether the events begin by themselves, when a command is executed.
    pub(crate) fn begin_on_exec(&self) -> bool {
        self.on_exec
    }

    /// Counts from now on.
    pub(crate) fn enable(&self) -> Result<()> {
        self.open.iter().try_for_each(OpenGroup::enable)
    }

    /// Counts no more.
    pub(crate) fn disable(&self) -> Result<()> {
        self.open.iter().try_for_each(|group| {
            group.tell("PERF_EVENT_IOC_DISABLE", |fd| {
                // SAFETY: the ioctl takes no pointer.
                unsafe { sys::ioctls::DISABLE(fd, 0) }
            })
        })
    }

    /// What each event has counted since this was last asked.
    pub(crate) fn take(&mut self) -> Result<Vec<Reading>> {
        let nothing = vec![Total::default(); self.rows.len()];
        let mut totals = std::mem::replace(&mut self.closed, nothing);
        let was_open = |it: &Total| it.enabled_ns > 0;
        let mut failed = vec![false; self.rows.len()];
        // Of a task that sleeps no time is counted, and no event: that is known. A command that was never executed has
        // not begun.
        let mut begun = vec![!self.on_exec; self.rows.len()];
        let mut open: Vec<bool> = totals.iter().map(was_open).collect();
        let mut unread = vec![false; self.rows.len()];
        for group in &mut self.open {
            let read = match group.read_whole() {
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    group.counters.iter().for_each(|it| set(&mut unread, it.row));
                    continue;
                }
                read => read.map_err(|error| Error::system("cannot read a counter", error))?,
            };
            for counter in &mut group.counters {
                set(&mut open, counter.row);
                let now = read.as_ref().map(|it| it.iter().find(|(id, _)| *id == counter.id));
                match now {
                    None => set(&mut failed, counter.row),
                    Some(None) => {
                        let why = "the kernel's answer lacks it";
                        return Err(Error::system("cannot read a counter", why));
                    }
                    Some(Some((_, now))) => {
                        if now.enabled_ns > 0 {
                            set(&mut begun, counter.row);
                        }
                        let before = std::mem::replace(&mut counter.before, *now);
                        let more = Total::of(since(*now, before));
                        totals.get_mut(counter.row).into_iter().for_each(|it| it.add(more));
                    }
                }
            }
        }
        let is_known = open.into_iter().zip(unread).map(|(open, unread)| open && !unread);
        let begun = begun.into_iter().zip(is_known).map(|(begun, is_known)| begun && is_known);
        let readings = self.rows.iter().zip(totals).zip(failed.into_iter().zip(begun));
        Ok(readings
            .map(|((row, total), (failed, begun))| row.reading(total, failed, begun))
            .collect())
    }

    /// Whether each group is that of all its tasks: the kernel can't read one if a task was started while it was being
    /// opened, and has only a part of it.
    fn are_whole(&self) -> bool {
        let is_in_parts = |group: &OpenGroup| {
            group.read().is_err_and(|error| error.raw_os_error() == Some(libc::ECHILD))
        };
        !self.open.iter().any(is_in_parts)
    }
}

impl OpenGroup {
    /// The same, also while tasks that it is inherited by are ending: the events of such a task go one after another.
    fn read_whole(&self) -> io::Result<Option<Vec<(u64, EventCount)>>> {
        for _ in 0..READINGS {
            match self.read() {
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => thread::sleep(AGAIN),
                read => return read,
            }
        }
        self.read()
    }

    /// Reads all of it at once; `None` if the kernel has given it up.
    ///
    /// The kernel takes a group apart when its CPU goes offline: then each event has an answer of its own.
    fn read(&self) -> io::Result<Option<Vec<(u64, EventCount)>>> {
        let Some((leader, others)) = self.counters.split_first() else {
            return Ok(Some(Vec::new()));
        };
        let Some(mut counts) = leader.read(self.counters.len())? else { return Ok(None) };
        if counts.len() == 1 {
            for other in others {
                let Some(count) = other.read_alone(self.counters.len())? else { return Ok(None) };
                counts.push((other.id, count));
            }
        }
        Ok(Some(counts))
    }

    /// Counts from now on.
    pub(super) fn enable(&self) -> Result<()> {
        self.tell("PERF_EVENT_IOC_ENABLE", |fd| {
            // SAFETY: the ioctl takes no pointer.
            unsafe { sys::ioctls::ENABLE(fd, 0) }
        })
    }

    /// By its first event.
    fn tell(&self, name: &str, call: impl Fn(i32) -> i32) -> Result<()> {
        match self.counters.first() {
            Some(leader) if call(leader.fd.as_raw_fd()) < 0 => {
                Err(Error::system(name, io::Error::last_os_error()))
            }
            _ => Ok(()),
        }
    }

    /// The rows of its events.
    pub(super) fn rows(&self) -> impl Iterator<Item = usize> {
        self.counters.iter().map(|it| it.row)
    }

    /// What each of its events, by row, has counted since it was last read; nothing of one that the kernel has given up.
    pub(super) fn rest(&self) -> io::Result<Vec<(usize, Total)>> {
        let counts = self.read()?.unwrap_or_default();
        let rest = self.counters.iter().filter_map(|counter| {
            let (_, now) = counts.iter().find(|(id, _)| *id == counter.id)?;
            Some((counter.row, Total::of(since(*now, counter.before))))
        });
        Ok(rest.collect())
    }
}

impl OpenCounter {
    /// Reads it, with those of its group, so many in all; `None` if the kernel has given it up.
    fn read(&self, group: usize) -> io::Result<Option<Vec<(u64, EventCount)>>> {
        let mut bytes = vec![0; group::bytes(group)];
        let read = rustix::io::read(&self.fd, &mut *bytes)?;
        if read == 0 {
            return Ok(None);
        }
        let parsed = bytes.get(..read).and_then(group::parse);
        parsed.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Reads one whose group of so many was taken apart; `None` if the kernel has given it up.
    ///
    /// Kernels such as 5.10 still want room for the whole group, and answer with what the leader has, and zeros. What it has counted
    /// since it was last read is not to be had there.
    fn read_alone(&self, group: usize) -> io::Result<Option<EventCount>> {
        let mut bytes = vec![0; group::bytes(group)];
        let read = rustix::io::read(&self.fd, &mut *bytes)?;
        if read == 0 {
            return Ok(None);
        }
        let parsed = bytes.get(..read.min(group::bytes(1))).and_then(group::parse);
        let counts = parsed.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let own = counts.into_iter().find(|(id, _)| *id == self.id);
        Ok(Some(own.map_or(self.before, |(_, count)| count)))
    }
}

fn set(flags: &mut [bool], at: usize) {
    flags.get_mut(at).into_iter().for_each(|it| *it = true);
}
