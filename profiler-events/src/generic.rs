//! The events that have the same name on every machine.

use crate::abi::{PERF_TYPE_HARDWARE, PERF_TYPE_SOFTWARE};

/// An event that has the same name on every machine, though not every machine can count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generic {
    /// The name that we print.
    pub name: &'static str,
    /// `perf_event_attr.type`: hardware or software.
    pub kind: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// What it counts, in a few words.
    pub description: &'static str,
    /// Another name that is understood.
    other: Option<&'static str>,
}

impl Generic {
    /// The event of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        GENERIC.iter().find(|it| it.names().any(|known| known == name)).copied()
    }

    /// All of them, those of the hardware first.
    pub fn all() -> impl Iterator<Item = Self> {
        GENERIC.into_iter()
    }

    /// Whether the processor's PMU counts it, not the kernel.
    #[must_use]
    pub fn is_hardware(&self) -> bool {
        self.kind == PERF_TYPE_HARDWARE
    }

    /// Its name, and its other one if it has one.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [Some(self.name), self.other].into_iter().flatten()
    }

    /// Why it can't be sampled, if it can't.
    #[must_use]
    pub fn counting_only(&self) -> Option<&'static str> {
        matches!(self.name, "dummy" | "bpf-output").then_some("it never fires")
    }
}

const fn hardware(
    config: u64,
    name: &'static str,
    other: Option<&'static str>,
    description: &'static str,
) -> Generic {
    Generic { name, kind: PERF_TYPE_HARDWARE, config, description, other }
}

const fn software(
    config: u64,
    name: &'static str,
    other: Option<&'static str>,
    description: &'static str,
) -> Generic {
    Generic { name, kind: PERF_TYPE_SOFTWARE, config, description, other }
}

/// The enums `perf_hw_id` and `perf_sw_ids`.
const GENERIC: [Generic; 22] = [
    hardware(0, "cycles", Some("cpu-cycles"), "cycles of a CPU that is not halted"),
    hardware(1, "instructions", None, "instructions that were retired"),
    hardware(2, "cache-references", None, "accesses to a cache, most often the last one"),
    hardware(3, "cache-misses", None, "accesses that missed that cache"),
    hardware(4, "branches", Some("branch-instructions"), "branches that were retired"),
    hardware(5, "branch-misses", None, "branches that were mispredicted"),
    hardware(6, "bus-cycles", None, "cycles of the bus"),
    hardware(
        7,
        "stalled-cycles-frontend",
        Some("idle-cycles-frontend"),
        "cycles in which no instruction could be fetched or decoded",
    ),
    hardware(
        8,
        "stalled-cycles-backend",
        Some("idle-cycles-backend"),
        "cycles in which no instruction could be executed or retired",
    ),
    hardware(9, "ref-cycles", None, "cycles at a constant frequency"),
    software(0, "cpu-clock", None, "time on a CPU, by a timer of the kernel"),
    software(1, "task-clock", None, "time that a task runs"),
    software(2, "page-faults", Some("faults"), "page faults"),
    software(3, "context-switches", Some("cs"), "changes from one task to another"),
    software(4, "cpu-migrations", Some("migrations"), "moves of a task to another CPU"),
    software(5, "minor-faults", None, "page faults that needed no I/O"),
    software(6, "major-faults", None, "page faults that needed I/O"),
    software(7, "alignment-faults", None, "accesses that the kernel had to align"),
    software(8, "emulation-faults", None, "instructions that the kernel had to emulate"),
    software(9, "dummy", None, "nothing; carries records"),
    software(10, "bpf-output", None, "nothing; carries what eBPF programs write"),
    software(11, "cgroup-switches", None, "changes to a task of another cgroup"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_name_is_one_event() {
        let mut seen = BTreeSet::new();
        for event in Generic::all() {
            for name in event.names() {
                assert!(seen.insert(name), "{name} is there twice");
                assert_eq!(Generic::named(name), Some(event));
            }
        }
        assert_eq!(Generic::named("Cycles"), None);
    }

    #[test]
    fn numbers_are_those_of_the_kernel() {
        let numbers = |name| Generic::named(name).map(|it| (it.kind, it.config));
        assert_eq!(numbers("cpu-cycles"), Some((0, 0)));
        assert_eq!(numbers("branch-instructions"), Some((0, 4)));
        assert_eq!(numbers("ref-cycles"), Some((0, 9)));
        assert_eq!(numbers("cs"), Some((1, 3)));
        assert_eq!(numbers("cgroup-switches"), Some((1, 11)));
    }
}
