//! What a look at the CPUs finds: which have gone, and which have come.

use profiler_profile::cpus::CpuList;

use crate::error::Error;

/// The CPUs whose events were opened or closed.
#[derive(Debug, Default)]
pub struct Changes {
    /// Went offline: their events are closed.
    pub gone: Vec<u32>,
    /// Came online: they have an event now.
    pub came: Vec<u32>,
    /// Went and came back unseen, and have a new event for the dead one.
    pub revived: Vec<u32>,
    /// Online, but their event can't be opened. Each is told once.
    pub refused: Vec<(u32, Error)>,
}

impl Changes {
    /// A line for each kind of change, of CPUs that are sampled, or counted.
    pub fn notices(&self, done: &str) -> impl Iterator<Item = String> {
        let kinds = [
            (&self.gone, format!("went offline: not {done} until back online")),
            (&self.came, format!("came online: {done} from now on")),
            (&self.revived, format!("was offline for a moment: {done} again")),
        ];
        let changed = kinds.into_iter().filter(|(cpus, _)| !cpus.is_empty()).map(|(cpus, what)| {
            let cpus: CpuList = cpus.iter().copied().collect();
            format!("CPU {cpus} {what}")
        });
        let refused = self.refused.iter();
        let refused =
            refused.map(move |(cpu, why)| format!("CPU {cpu} is online, but not {done}: {why}"));
        changed.chain(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_change_is_a_line() {
        let changes = Changes {
            gone: vec![1, 2, 3, 7],
            revived: vec![4],
            refused: vec![(5, Error::system("perf_event_open", "too many"))],
            ..Changes::default()
        };
        let lines: Vec<String> = changes.notices("sampled").collect();
        assert_eq!(
            lines,
            [
                "CPU 1-3,7 went offline: not sampled until back online",
                "CPU 4 was offline for a moment: sampled again",
                "CPU 5 is online, but not sampled: perf_event_open: too many",
            ]
        );
        assert_eq!(Changes::default().notices("sampled").count(), 0);
    }
}
