//! Whose a sample is: its labels.

use crate::{
    export::tables::{Finished, Tables},
    printable::printable,
    profile_proto::Label,
    sample::Task,
};

/// The keys, by the numbers of their texts.
pub(super) struct Keys {
    pid: u32,
    tid: u32,
    comm: u32,
    process: u32,
    cgroup: u32,
    container: u32,
    service: u32,
}

impl Keys {
    pub(super) fn of(tables: &mut Tables) -> Self {
        let [pid, tid, comm, process, cgroup, container, service] =
            ["pid", "tid", "comm", "process", "cgroup", "container", "service"]
                .map(|key| tables.text(key));
        Self { pid, tid, comm, process, cgroup, container, service }
    }
}

/// A thread, by the numbers of the texts, or by their places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Who {
    pid: Option<u32>,
    tid: Option<u32>,
    comm: u32,
    process: u32,
    cgroup: Option<u32>,
    container: Option<u32>,
    service: Option<u32>,
}

impl Who {
    pub(super) fn of(task: &Task, tables: &mut Tables) -> Self {
        let process = task.process.as_deref();
        let cgroup = process.and_then(|it| it.cgroup.as_deref());
        let container = process.and_then(|it| it.container.as_ref()).map(|it| it.id.as_str());
        let service = process.and_then(|it| it.service.as_deref());
        let mut text = |it: &str| tables.text(&printable(it));
        Self {
            pid: task.pid(),
            tid: task.tid(),
            comm: text(&task.comm.text()),
            process: text(&task.process_name()),
            cgroup: cgroup.map(&mut text),
            container: container.map(&mut text),
            service: service.map(&mut text),
        }
    }

    /// The same, by the places.
    pub(super) fn placed(self, tables: &Finished) -> Self {
        let place = |number| tables.text_place(number);
        let (cgroup, container) = (self.cgroup.map(place), self.container.map(place));
        let (comm, process) = (place(self.comm), place(self.process));
        let service = self.service.map(place);
        Self { comm, process, cgroup, container, service, ..self }
    }

    /// The labels of one that is placed. What is not known has none.
    pub(super) fn labels(self, keys: &Keys, tables: &Finished) -> Vec<Label> {
        let texts = [
            (keys.comm, Some(self.comm)),
            (keys.process, Some(self.process)),
            (keys.cgroup, self.cgroup),
            (keys.container, self.container),
            (keys.service, self.service),
        ];
        let text = |(key, text): (u32, Option<u32>)| {
            let str = text.filter(|place| *place > 0)?.into();
            Some(Label { key: tables.text(key), str, ..Label::default() })
        };
        let numbers = [(keys.pid, self.pid), (keys.tid, self.tid)];
        let number = |(key, number): (u32, Option<u32>)| {
            Some(Label { key: tables.text(key), num: number?.into(), ..Label::default() })
        };
        let numbers = numbers.into_iter().filter_map(number);
        texts.into_iter().filter_map(text).chain(numbers).collect()
    }
}
