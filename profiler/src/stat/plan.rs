//! What is counted, and where.

use std::{ffi::CString, os::fd::OwnedFd};

use profiler_events::{Attr, Machine, Purpose, abi::PERF_TYPE_TRACEPOINT, parse};
use profiler_profile::cpus::CpuList;

use crate::{
    error::{Error, Result},
    perf::event::Event,
};

/// Counted where no event is named: these, and one group of the processor.
const DEFAULT: &str = "context-switches,cpu-migrations,page-faults";
const DEFAULT_GROUP: &str = "{cycles,instructions,branches,branch-misses}";

/// The events, each a row of the output.
#[derive(Debug)]
pub(crate) struct Plan {
    /// In the order in which they were named.
    pub(crate) events: Vec<Event>,
    /// Which of them are on the PMU together: each is in one group, most often alone.
    pub(crate) groups: Vec<Group>,
    /// Which hits of tracepoints count.
    pub(crate) filter: Option<CString>,
    /// Whether the events were named.
    pub(crate) is_named: bool,
}

/// Events that are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Their places in the plan, the leader's first.
    pub(crate) events: Vec<usize>,
    /// Whether they are counted one by one where the PMU has not enough counters.
    pub(crate) may_split: bool,
}

/// Whose events are counted.
#[derive(Debug)]
pub(crate) enum Target {
    /// A command that is started for it, and all that it starts.
    Command,
    /// Processes and threads, and all that they start meanwhile.
    Tasks {
        /// Processes, with all their threads.
        pids: Vec<u32>,
        /// Threads.
        tids: Vec<u32>,
    },
    /// Whatever runs on these CPUs.
    Cpus(CpuList),
    /// What is in a cgroup, on these CPUs.
    Cgroup {
        /// The cgroup's folder.
        folder: OwnedFd,
        /// The CPUs.
        cpus: CpuList,
    },
}

impl Target {
    /// Whether the events are those of tasks, wherever these run.
    pub(crate) fn is_of_tasks(&self) -> bool {
        matches!(self, Self::Command | Self::Tasks { .. })
    }
}

impl Plan {
    /// What these events are on this machine; the usual ones if none is named.
    pub(crate) fn resolve(
        named: &[profiler_events::Events],
        filter: Option<&str>,
        target: &Target,
        machine: &Machine,
    ) -> Result<Self> {
        let mut plan = Self {
            events: Vec::new(),
            groups: Vec::new(),
            filter: None,
            is_named: !named.is_empty(),
        };
        for events in named {
            plan.add(events, false, target, machine)?;
        }
        if named.is_empty() {
            plan.add_default(target, machine)?;
        }
        plan.filter = plan.filter_of(filter)?;
        Ok(plan)
    }

    fn add_default(&mut self, target: &Target, machine: &Machine) -> Result<()> {
        let clock = if target.is_of_tasks() { "task-clock" } else { "cpu-clock" };
        for text in [clock, DEFAULT, DEFAULT_GROUP] {
            let events = parse(text).map_err(|why| Error::Usage(why.to_string()))?;
            self.add(&events, true, target, machine)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        events: &profiler_events::Events,
        may_split: bool,
        target: &Target,
        machine: &Machine,
    ) -> Result<()> {
        let refused = |why: &dyn std::fmt::Display| Error::Usage(format!("-e {events}: {why}"));
        for set in machine.resolve(events, Purpose::Count).map_err(|why| refused(&why))? {
            if let Some(why) = set.attrs.iter().find_map(|it| not_counted(it, target)) {
                return Err(refused(&why));
            }
            let first = self.events.len();
            self.events.extend(set.attrs.into_iter().map(Event::new));
            self.groups.push(Group { events: (first..self.events.len()).collect(), may_split });
        }
        Ok(())
    }

    fn filter_of(&self, filter: Option<&str>) -> Result<Option<CString>> {
        let Some(filter) = filter else { return Ok(None) };
        let refused = |why: &str| Error::Usage(format!("--filter: {why}"));
        if !self.events.iter().any(|it| is_tracepoint(it.attr())) {
            return Err(refused("it is for tracepoints, of which none was given: -e SYSTEM:NAME"));
        }
        CString::new(filter).map(Some).map_err(|_| refused("it can't have a zero byte"))
    }
}

/// Whether the kernel takes a filter for it.
pub(crate) fn is_tracepoint(event: &Attr) -> bool {
    event.kind == PERF_TYPE_TRACEPOINT
}

/// Why an event can't be counted like this, if it can't.
fn not_counted(event: &Attr, target: &Target) -> Option<&'static str> {
    // Of a PMU that several CPUs share nobody knows whose events they are.
    let is_shared = event.counting_only.is_some() && event.pmu.is_some() && event.cpus.is_some();
    match target {
        _ if !is_shared => None,
        Target::Cpus(_) => None,
        Target::Cgroup { .. } => Some("its PMU counts for the whole machine: leave --cgroup out"),
        Target::Command | Target::Tasks { .. } => Some(
            "its PMU counts for the whole machine, not for a process: add -a, and leave -p and -t out",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(named: &[&str], filter: Option<&str>, target: &Target) -> Result<Plan> {
        let named: Vec<_> = named.iter().map(|it| parse(it).unwrap()).collect();
        Plan::resolve(&named, filter, target, &Machine::here())
    }

    fn names(plan: &Plan) -> Vec<String> {
        plan.events.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn groups_stay_together() {
        let plan =
            plan(&["page-faults,{task-clock,cs:u}", "4:0x11"], None, &Target::Command).unwrap();
        assert_eq!(names(&plan), ["page-faults", "task-clock", "context-switches:u", "4:0x11"]);
        let groups: Vec<Vec<usize>> = plan.groups.iter().map(|it| it.events.clone()).collect();
        assert_eq!(groups, [vec![0], vec![1, 2], vec![3]]);
        assert!(plan.groups.iter().all(|it| !it.may_split) && plan.is_named);
    }

    #[test]
    fn the_usual_events_are_of_tasks_or_cpus() {
        let of_tasks = plan(&[], None, &Target::Command).unwrap();
        let of_cpus = plan(&[], None, &Target::Cpus(CpuList::default())).unwrap();
        assert_eq!((&*names(&of_tasks)[0], &*names(&of_cpus)[0]), ("task-clock", "cpu-clock"));
        assert!(names(&of_tasks).contains(&"branch-misses".to_owned()) && !of_tasks.is_named);
    }

    #[test]
    fn what_can_not_be_counted_is_refused_with_the_reason() {
        let message = |event: &str, filter| match plan(&[event], filter, &Target::Command) {
            Err(Error::Usage(message)) => message,
            other => panic!("{event}: {other:?}"),
        };
        for (event, part) in [
            ("page-faults/period=7/", "is only counted"),
            ("page-falts", "did you mean page-faults"),
        ] {
            assert!(message(event, None).contains(part), "{event}");
        }
        assert!(message("page-faults", Some("a == 1")).contains("tracepoints, of which none"));
        let shared = Attr {
            counting_only: Some("its PMU only counts"),
            pmu: Some("power".into()),
            cpus: Some("0".into()),
            ..Attr::new(9, 1)
        };
        assert!(not_counted(&shared, &Target::Command).unwrap().contains("add -a"));
        assert!(not_counted(&shared, &Target::Cpus(CpuList::default())).is_none());
    }
}
