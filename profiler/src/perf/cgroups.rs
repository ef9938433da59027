//! The same event on some cgroups: on each CPU, it counts and fires only while that runs a task of one of them.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use profiler_profile::{
    cpus::CpuList,
    ledger::CpuEvent,
    source::{self, Rate},
};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{
    attr,
    config::CountedEvent,
    event::Event,
    open::{self, Scope},
    set::EventSet,
};
use crate::{
    bpf::load::{Slot, SlotSettings},
    error::{Error, Result},
    source::Source,
};

/// An event on each CPU for each of some cgroups, none of which is below another.
pub struct CgroupSet {
    sets: Vec<EventSet>,
    notices: Vec<String>,
}

impl CgroupSet {
    /// Opens the event for the cgroups with these folders, on these CPUs, which are the only ones to sample, or those
    /// that are online now.
    ///
    /// # Errors
    ///
    /// A cgroup is gone, or the kernel counts no events of it; or as of events of CPUs.
    pub fn open<'a>(
        choice: &CountedEvent,
        rate: Rate,
        folders: impl IntoIterator<Item = &'a PathBuf>,
        cpus: &CpuList,
        only_these: bool,
    ) -> Result<Self> {
        let mut sets = Vec::new();
        let mut notices = Vec::new();
        for path in folders {
            let folder = folder(path)?;
            if let Some(cpu) = cpus.iter().next() {
                check(path, &folder, cpu)?;
            }
            let set = EventSet::open_in(Some(&folder), choice, rate, cpus, only_these)?;
            notices.extend(set.notices.iter().cloned());
            sets.push(set);
        }
        if sets.is_empty() {
            return Err(Error::Usage("--per-cgroup: no cgroup was named".into()));
        }
        notices.dedup();
        Ok(Self { sets, notices })
    }
}

/// Opens the folder of a cgroup.
fn folder(path: &Path) -> Result<Arc<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, path, flags, Mode::empty());
    let what = || format!("cannot open the cgroup {}", path.display());
    folder.map(Arc::new).map_err(|error| Error::system(what(), error))
}

/// Whether the kernel counts events of this cgroup; tried with one that every kernel has.
pub(crate) fn check(path: &Path, folder: &OwnedFd, cpu: u32) -> Result<()> {
    let scope = Scope::Cgroup { folder: folder.as_fd(), cpu };
    match open::open(&mut attr::counting(&Event::dummy()), scope, None) {
        // The CPU has just gone offline, which says nothing of the cgroup.
        Err(error) if error.raw_os_error() != Some(libc::ENODEV) => Err(refusal(path, &error)),
        _ => Ok(()),
    }
}

fn refusal(path: &Path, error: &io::Error) -> Error {
    let next = match error.raw_os_error() {
        Some(libc::ENOENT) => {
            "perf_event is a controller of a hierarchy of version 1 here, or nothing was ever enabled in \
             cgroup.subtree_control of the root of this one"
        }
        Some(libc::EINVAL) => "that needs a kernel with CONFIG_CGROUP_PERF",
        Some(libc::EMFILE | libc::ENFILE) => {
            "each CPU takes a file for each cgroup and event: raise `ulimit -n`"
        }
        _ => "`profiler doctor` shows what is missing",
    };
    Error::system_with(format!("perf_event_open of the cgroup {}", path.display()), error, next)
}

impl Source for CgroupSet {
    fn describe(&self) -> source::Source {
        // There is one at least, and all are alike.
        let first = self.sets.first().map(Source::describe);
        first.unwrap_or_else(|| Event::dummy().source(Rate::Period(1)))
    }

    fn settings(&self) -> SlotSettings {
        self.sets.first().map(Source::settings).unwrap_or_default()
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The sampling times are not moved: a cgroup's clock stands still while others run, so nobody knows when it fires.
    fn attach(&mut self, slot: Slot, _dither: bool) -> Result<()> {
        self.sets.iter_mut().try_for_each(|set| Source::attach(set, slot.try_clone()?, false))
    }

    fn is_dithered(&self) -> bool {
        false
    }

    fn enable(&mut self) -> Result<()> {
        self.sets.iter_mut().try_for_each(EventSet::enable)
    }

    fn disable(&mut self) -> Result<()> {
        self.sets.iter_mut().map(EventSet::disable).fold(Ok(()), Result::and)
    }

    fn set_rate(&mut self, rate: Rate) -> Result<()> {
        self.sets.iter_mut().try_for_each(|set| set.set_rate(rate))
    }

    fn follow_cpus(&mut self, revived: &[u32]) -> Vec<String> {
        // It is the same CPUs for each.
        self.sets
            .iter_mut()
            .map(|set| set.follow_cpus(revived))
            .fold(Vec::new(), |all, lines| if all.is_empty() { lines } else { all })
    }

    fn poll(&mut self) {
        self.sets.iter_mut().for_each(Source::poll);
    }

    fn account(&mut self) -> (Vec<CpuEvent>, Option<Error>) {
        let mut cpus = BTreeMap::new();
        let mut unread = None;
        for set in &mut self.sets {
            let (events, error) = set.account();
            let is_clock = set.event.is_clock();
            for event in events {
                add(&mut cpus, event, is_clock);
            }
            unread = unread.or(error);
        }
        (cpus.into_values().collect(), unread)
    }

    fn descriptors(&self) -> Vec<Weak<OwnedFd>> {
        self.sets.iter().flat_map(Source::descriptors).collect()
    }
}

/// Adds the events of a cgroup on a CPU to those of the others.
fn add(cpus: &mut BTreeMap<u32, CpuEvent>, event: CpuEvent, is_clock: bool) {
    // Their time is that of the cgroup, so it does not tell for how long the CPU was away.
    let mut event = CpuEvent { whole: true, ..event };
    if is_clock {
        // For the root of the hierarchy the kernel begins with a time that is long past; what a clock counts is right.
        event.count.enabled_ns = event.count.count;
        event.count.running_ns = event.count.count;
    }
    cpus.entry(event.cpu)
        .and_modify(|sum| {
            sum.count += event.count;
            sum.events += event.events;
            sum.refused |= event.refused;
            sum.throttled += event.throttled;
        })
        .or_insert(event);
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_profile::ledger::EventCount;
    use std::time::Duration;

    #[test]
    fn cgroups_are_counted_together() {
        let event = |cpu, count, refused| CpuEvent {
            cpu,
            count: EventCount { count, enabled_ns: 2 * count, running_ns: count },
            events: 1,
            whole: false,
            refused,
            throttled: 1,
            idle: Duration::ZERO,
        };
        let mut cpus = BTreeMap::new();
        for it in [event(0, 5, false), event(3, 1, false), event(0, 2, true)] {
            add(&mut cpus, it, false);
        }
        let first = cpus[&0];
        assert_eq!((first.count.count, first.count.enabled_ns, first.count.running_ns), (7, 14, 7));
        assert_eq!((first.events, first.throttled, first.refused, first.whole), (2, 2, true, true));
        assert_eq!((cpus.len(), cpus[&3].count.count, cpus[&3].refused), (2, 1, false));
        add(&mut cpus, event(4, 9, false), true);
        assert_eq!((cpus[&4].count.enabled_ns, cpus[&4].count.running_ns), (9, 9));
    }

    #[test]
    fn what_can_not_be_counted_is_said() {
        let of = |errno| refusal(Path::new("/a"), &io::Error::from_raw_os_error(errno));
        assert!(of(libc::ENOENT).advice().unwrap().contains("version 1"));
        assert!(of(libc::EINVAL).advice().unwrap().contains("CONFIG_CGROUP_PERF"));
        assert!(folder(Path::new("/no/such")).is_err());
    }
}
