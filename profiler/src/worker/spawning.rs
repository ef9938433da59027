//! Tells a screen of the processes that begin.

use std::sync::Arc;

use profiler_profile::live::{Live, Spawns};

use crate::process::{
    manager::Manager,
    table::{Event, Kind},
};

/// Who is told, and of which processes.
#[derive(Debug)]
pub(super) struct Spawning {
    live: Arc<Live>,
    /// Only of what these have begun, and that in turn; of all if empty.
    of: Vec<u32>,
}

impl Spawning {
    pub(super) fn new(live: Arc<Live>, of: Vec<u32>) -> Self {
        Self { live, of }
    }

    /// Takes in what happened, in the order of time, and tells what has begun or is known of that since.
    pub(super) fn apply(&self, events: &[Event], processes: &Manager) {
        let mut spawns = self.live.spawns();
        for event in events {
            tell(&mut spawns, event, processes, &self.of);
        }
    }
}

fn tell(spawns: &mut Spawns, event: &Event, processes: &Manager, of: &[u32]) {
    let &Event { time_ns, tgid, ref kind } = event;
    match kind {
        Kind::Forked(parent) if of.is_empty() || processes.descends(*parent, time_ns, of) => {
            let known = processes.known_at(*parent, time_ns);
            let name = known.as_ref().map_or_else(Default::default, |it| it.name);
            let process = known.and_then(|it| it.metadata);
            spawns.forked((tgid, *parent), name, process.as_deref(), time_ns);
        }
        Kind::Exec(name) => spawns.executed(tgid, *name),
        Kind::Described(process) => spawns.described(tgid, process),
        Kind::Ended => spawns.ended(tgid, time_ns),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use profiler_profile::{live::Span, process::Metadata, sample::Comm};

    use super::*;

    fn event(time_ns: u64, tgid: u32, kind: Kind) -> Event {
        Event { time_ns, tgid, kind }
    }

    fn found(tgid: u32, parent: u32, name: &str, unit: &str) -> Event {
        let (parent, unit) = (Some(parent), Some(unit.to_owned()));
        let metadata = Some(Box::new(Metadata { parent, unit, ..Metadata::default() }));
        event(1, tgid, Kind::Found { mappings: Vec::new(), name: Comm::of(name), metadata })
    }

    /// What begins on a machine where `cron` runs a script that starts a process, and another does, too: name, parent's
    /// name, and unit.
    fn begun(of: &[u32]) -> Vec<(String, String, Option<String>)> {
        let processes = Manager::new(100);
        let mut spawns = Spawns::new(Duration::from_secs(9), 0);
        let events = [
            found(3, 1, "cron", "cron.service"),
            found(5, 1, "sshd", "ssh.service"),
            event(2, 7, Kind::Forked(3)),
            event(3, 7, Kind::Exec(Comm::of("storm.sh"))),
            event(4, 8, Kind::Forked(7)),
            event(5, 8, Kind::Exec(Comm::of("expr"))),
            event(6, 8, Kind::Ended),
            event(7, 9, Kind::Forked(5)),
            // Of one that no record has told of.
            event(8, 10, Kind::Forked(99)),
        ];
        // All is known when the first is told.
        processes.apply(events.clone(), 9);
        for event in &events {
            tell(&mut spawns, event, &processes, of);
        }
        let all = spawns.snapshot(Span::Window, 9).spawns;
        let text = |it: Comm| it.text().into_owned();
        let group = |it: &Option<Arc<str>>| it.as_ref().map(ToString::to_string);
        all.iter()
            .map(|it| (text(it.kind.name), text(it.kind.parent), group(&it.kind.group)))
            .collect()
    }

    #[test]
    fn each_process_is_told_with_who_began_it() {
        let row = |name: &str, parent: &str, unit: Option<&str>| {
            (name.to_owned(), parent.to_owned(), unit.map(str::to_owned))
        };
        let (cron, ssh) = (Some("cron.service"), Some("ssh.service"));
        let of_cron = [row("storm.sh", "cron", cron), row("expr", "storm.sh", cron)];
        let others = [row("sshd", "sshd", ssh), row("", "", None)];
        assert_eq!(begun(&[]), [of_cron.clone(), others].concat());
        assert_eq!(begun(&[3]), of_cron);
        assert_eq!(begun(&[7]), of_cron[1..]);
    }
}
