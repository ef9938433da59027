//! CPUs that go offline and come online while they are counted.

use std::{collections::BTreeSet, os::fd::AsFd as _};

use profiler_profile::cpus::CpuList;

use super::{
    counters::Counters,
    plan::{Group, Target},
    row::{Failure, Row},
};
use crate::{
    error::{Error, Result},
    kernel::OnlineCpus,
    perf::{hotplug::Changes, open::Scope},
};

/// Which CPUs are counted, and which of them are online.
#[derive(Debug)]
pub(crate) struct Followed<'a> {
    target: &'a Target,
    /// `None`: all that there are.
    wanted: Option<&'a CpuList>,
    online: OnlineCpus,
    /// Those that were online when it was last looked.
    seen: CpuList,
}

impl<'a> Followed<'a> {
    /// The CPUs of a target; `None` if it is counted wherever it runs.
    pub(crate) fn of(target: &'a Target, wanted: Option<&'a CpuList>) -> Result<Option<Self>> {
        let (Target::Cpus(seen) | Target::Cgroup { cpus: seen, .. }) = target else {
            return Ok(None);
        };
        let online = OnlineCpus::open()?;
        Ok(Some(Self { target, wanted, online, seen: seen.clone() }))
    }

    /// Looks again: closes the events of CPUs that have gone, whose counts stay, and opens those of CPUs that have come.
    pub(super) fn look(&mut self, counters: &mut Counters) -> Result<Changes> {
        let online = self.online.read()?;
        let online = match self.wanted {
            Some(wanted) => online.iter().filter(|cpu| wanted.contains(*cpu)).collect(),
            None => online,
        };
        let mut changes = Changes::default();
        for cpu in self.seen.without(&online).iter() {
            counters.close(cpu)?;
            changes.gone.push(cpu);
        }
        for cpu in online.without(&self.seen).iter() {
            let scope = match self.target {
                Target::Cgroup { folder, .. } => Scope::Cgroup { folder: folder.as_fd(), cpu },
                _ => Scope::Cpu(cpu),
            };
            match counters.open_on(cpu, scope) {
                Ok(()) => changes.came.push(cpu),
                Err(why) => changes.refused.push((cpu, why)),
            }
        }
        self.seen = online;
        Ok(changes)
    }
}

impl Counters {
    /// Closes the events of a CPU.
    fn close(&mut self, cpu: u32) -> Result<()> {
        // The kernel takes what several CPUs share to another of them.
        let shared = self.shared_rows();
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|it| it.cpu == Some(cpu) && !it.rows().any(|row| shared.contains(&row)));
        self.open = stay;
        for group in gone {
            let failed = |error| Error::system("cannot read a counter", error);
            for (row, rest) in group.rest().map_err(failed)? {
                self.closed.get_mut(row).into_iter().for_each(|it| it.add(rest));
            }
        }
        Ok(())
    }

    /// Opens the events of a CPU, and counts from now on.
    fn open_on(&mut self, cpu: u32, scope: Scope<'_>) -> Result<()> {
        let shared = self.shared_rows();
        let is_own = |it: &Group| !it.events.iter().any(|row| shared.contains(row));
        let groups: Vec<Group> = self.groups.iter().filter(|it| is_own(it)).cloned().collect();
        for group in groups {
            if self.cpus_of(&group)?.is_some_and(|it| !it.contains(cpu)) {
                continue;
            }
            match self.open_at(&group, scope) {
                Ok(opened) => {
                    opened.enable()?;
                    self.open.push(opened);
                }
                // The next look finds that.
                Err(Failure::Gone) => {}
                Err(Failure::NotSupported(error) | Failure::Refused(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// The events of PMUs that several CPUs share.
    fn shared_rows(&self) -> BTreeSet<usize> {
        let is_shared = |(_, row): &(usize, &Row)| {
            let event = row.event.attr();
            event.counting_only.is_some() && event.pmu.is_some() && event.cpus.is_some()
        };
        self.rows.iter().enumerate().filter(is_shared).map(|(at, _)| at).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use profiler_events::{Machine, parse};

    use super::*;
    use crate::stat::{counters::Reading, plan::Plan};

    #[test]
    fn a_cpu_that_has_gone_keeps_its_counts_and_is_counted_when_it_is_back() {
        let wanted: CpuList = "0".parse().unwrap();
        let target = Target::Cpus(wanted.clone());
        let named = [parse("{cpu-clock,page-faults},task-clock").unwrap()];
        let plan = Plan::resolve(&named, None, &target, &Machine::here()).unwrap();
        let Ok(mut counters) = Counters::open(&plan, &target, None) else {
            profiler_testing::skipped("CPUs may not be counted");
            return;
        };
        counters.enable().unwrap();
        let list = tempfile::NamedTempFile::new().unwrap();
        fs::write(list.path(), "0-3\n").unwrap();
        let online = OnlineCpus::told_by(list.path());
        let seen = wanted.clone();
        let mut followed = Followed { target: &target, wanted: Some(&wanted), online, seen };
        let mut look = |told: &str, counters: &mut Counters| {
            fs::write(list.path(), told).unwrap();
            let changes = followed.look(counters).unwrap();
            assert!(changes.refused.is_empty(), "{changes:?}");
            (changes.gone, changes.came)
        };
        // A clock of a CPU always goes on.
        let counted = |counters: &mut Counters| {
            let readings = counters.take().unwrap();
            let all = readings.iter().all(|it| matches!(it, Reading::Counted(_)));
            all.then(|| match readings.first() {
                Some(Reading::Counted(total)) => total.count,
                _ => 0,
            })
        };
        assert_eq!(look("0-3\n", &mut counters), (vec![], vec![]));
        assert!(counted(&mut counters) > Some(0));
        assert_eq!(look("1-3\n", &mut counters), (vec![0], vec![]));
        assert!(counted(&mut counters) > Some(0), "what it had counted before");
        assert_eq!(counters.take().unwrap(), [Reading::NotCounted; 3]);
        assert_eq!(look("0,2\n", &mut counters), (vec![], vec![0]));
        assert!(counted(&mut counters) > Some(0));
    }
}
