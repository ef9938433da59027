//! An event on each of many CPUs, followed as CPUs come and go.

use std::collections::BTreeMap;

use profiler_profile::cpus::CpuList;

use super::{hotplug::Changes, open::OpenEvent, slot::Slot};
use crate::error::Result;

/// How many events a look asks for the time that has passed for them, in turns. Each answer takes an
/// interrupt of its CPU, for which the asking one waits, so a large machine is not asked all at once.
const ASKED_A_LOOK: usize = 8;

/// One CPU, with what its events leave behind.
pub(super) trait OnCpu: Default {
    /// Its event.
    fn slot(&mut self) -> &mut Slot;

    /// Goes on with another event, in place of a dead one or of none.
    fn replace(&mut self, event: OpenEvent);

    /// Closes the event and keeps what it has left; whether there was one.
    fn close(&mut self) -> bool;
}

/// CPUs by their number, online or not.
#[derive(Debug)]
pub(super) struct PerCpu<P> {
    cpus: BTreeMap<u32, P>,
    /// Where the next turn of asking begins.
    next_asked: u32,
}

impl<P> PerCpu<P> {
    /// Each of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &P)> {
        self.cpus.iter().map(|(&cpu, place)| (cpu, place))
    }

    /// Each of them, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut P)> {
        self.cpus.iter_mut().map(|(&cpu, place)| (cpu, place))
    }
}

impl<P: OnCpu> PerCpu<P> {
    /// Follows these CPUs, too, from the next look on.
    pub(super) fn admit(&mut self, cpus: &CpuList) {
        for cpu in cpus.iter() {
            self.cpus.entry(cpu).or_default();
        }
    }

    /// Closes the events of CPUs that are not online any more.
    pub(super) fn close_absent(&mut self, online: &CpuList) -> Vec<u32> {
        let absent = self.cpus.iter_mut().filter(|(cpu, _)| !online.contains(**cpu));
        absent.filter_map(|(&cpu, place)| place.close().then_some(cpu)).collect()
    }

    /// Follows the CPUs that have come and gone since the last look.
    ///
    /// The kernel takes a CPU's events out when it goes offline, and leaves them dead when it is back:
    /// they are closed, and others opened. Where both have happened since the last look, the list of
    /// CPUs is as before, but no more time passes for the event: it is asked, unless it is known which are `dead`.
    pub(super) fn look(
        &mut self,
        online: &CpuList,
        dead: Option<&[u32]>,
        mut open: impl FnMut(u32) -> Result<OpenEvent>,
    ) -> Changes {
        let mut changes = Changes { gone: self.close_absent(online), ..Changes::default() };
        let asked = if dead.is_none() { self.take_turn() } else { Vec::new() };
        for (&cpu, place) in self.cpus.iter_mut().filter(|(cpu, _)| online.contains(**cpu)) {
            let is_dead = match dead {
                Some(dead) => dead.contains(&cpu),
                None => asked.contains(&cpu) && place.slot().stands_still(),
            };
            if place.slot().event().is_some() && !is_dead {
                continue;
            }
            match open(cpu) {
                Ok(event) => {
                    place.replace(event);
                    let kind = if is_dead { &mut changes.revived } else { &mut changes.came };
                    kind.push(cpu);
                }
                Err(error) if place.slot().refuse() => changes.refused.push((cpu, error)),
                // Told already, or the CPU is just going offline.
                Err(_) => {}
            }
        }
        changes
    }

    /// The CPUs whose turn it is to be asked.
    fn take_turn(&mut self) -> Vec<u32> {
        let in_turn = self.cpus.range(self.next_asked..).chain(self.cpus.range(..self.next_asked));
        let asked: Vec<u32> = in_turn.map(|(&cpu, _)| cpu).take(ASKED_A_LOOK).collect();
        self.next_asked = asked.last().map_or(0, |last| last + 1);
        asked
    }
}

impl<P> FromIterator<(u32, P)> for PerCpu<P> {
    fn from_iter<I: IntoIterator<Item = (u32, P)>>(places: I) -> Self {
        Self { cpus: places.into_iter().collect(), next_asked: 0 }
    }
}
