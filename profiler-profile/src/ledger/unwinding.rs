//! What unwinding user stacks by unwind tables used, and what it lacked.

use std::{collections::BTreeMap, fmt::Write as _};

use profiler_common::unwind::table::TABLES;
use serde::Serialize;

/// The unwind tables at the end of a run, and what became of earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unwinding {
    /// Tables in the kernel.
    pub tables: u64,
    /// Kernel memory of the tables.
    pub table_bytes: u64,
    /// Kernel memory of the unwinder's other maps.
    pub other_bytes: u64,
    /// The budget for both: `--max-unwind-memory`.
    pub limit_bytes: u64,
    /// Tables evicted to make room for others.
    pub evicted: u64,
    /// Tables that did not fit when a walk last needed them.
    pub no_room: u64,
    /// Mappings of files that found all table slots in use, and are unwound by frame pointers.
    pub no_slot: u64,
    /// Files that walks came to and that have no table, by reason.
    pub without_table: BTreeMap<String, u64>,
    /// Distinct rules of all tables.
    pub rules: u64,
    /// How many distinct rules fit.
    pub max_rules: u64,
    /// How often all tables were rebuilt because the rules were full, also with those of files now gone.
    pub rebuilt: u64,
    /// Processes whose mappings did not fit, so that the kernel could not unwind their stacks.
    pub unknown_processes: u64,
    /// Stacks that the agent unwound from snapshots, because what the kernel needs came too late.
    pub walked_from_snapshots: u64,
    /// Frames of Python without a place among the native ones, since these end before: they come last.
    pub python_appended: u64,
}

impl Unwinding {
    /// The lines for people: what is missing, or `all`.
    #[must_use]
    pub fn lines(&self, all: bool) -> String {
        let mut text = String::new();
        if all {
            let _ = writeln!(
                text,
                "unwind tables: {} with {} of {} rules, {}; with mappings and caches {} of {}",
                self.tables,
                self.rules,
                self.max_rules,
                mib(self.table_bytes),
                mib(self.table_bytes + self.other_bytes),
                mib(self.limit_bytes)
            );
            if self.walked_from_snapshots > 0 {
                let _ = writeln!(
                    text,
                    "stacks unwound by the agent from snapshots: {}",
                    self.walked_from_snapshots
                );
            }
            if self.python_appended > 0 {
                let _ = writeln!(
                    text,
                    "Python frames behind native ones that end too early: {}",
                    self.python_appended
                );
            }
            let mut why: Vec<(&String, &u64)> = self.without_table.iter().collect();
            why.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            if !why.is_empty() {
                let why: Vec<String> =
                    why.iter().map(|(why, count)| format!("{why} {count}")).collect();
                let _ = writeln!(text, "files without an unwind table: {}", why.join(", "));
            }
        }
        if self.evicted + self.no_room + self.unknown_processes > 0 {
            let processes = if self.unknown_processes > 0 { " or --max-processes" } else { "" };
            let _ = writeln!(
                text,
                "unwind tables: {} evicted, {} did not fit, and neither did {} processes: raise \
                 --max-unwind-memory{processes}",
                self.evicted, self.no_room, self.unknown_processes
            );
        }
        if self.no_slot > 0 {
            let _ = writeln!(
                text,
                "{} mappings were unwound by frame pointers: all {TABLES} table slots were in use",
                self.no_slot
            );
        }
        if self.rebuilt > 0 {
            let _ = writeln!(
                text,
                "all unwind tables were rebuilt {} times: there were too many distinct rules",
                self.rebuilt
            );
        }
        text
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_always_said() {
        let well = Unwinding {
            tables: 3,
            table_bytes: 3 << 19,
            other_bytes: 2 << 20,
            limit_bytes: 256 << 20,
            rules: 345,
            max_rules: 16_384,
            without_table: [("not an ELF file".to_owned(), 2)].into(),
            walked_from_snapshots: 7,
            ..Unwinding::default()
        };
        assert_eq!(well.lines(false), "");
        assert_eq!(
            well.lines(true),
            "unwind tables: 3 with 345 of 16384 rules, 1.5 MiB; with mappings and caches 3.5 MiB of \
             256.0 MiB\nstacks unwound by the agent from snapshots: 7\nfiles without an unwind table: not an ELF file 2\n"
        );
        let short = Unwinding { evicted: 5, no_room: 1, no_slot: 9, rebuilt: 2, ..well };
        assert_eq!(
            short.lines(false),
            "unwind tables: 5 evicted, 1 did not fit, and neither did 0 processes: raise \
             --max-unwind-memory\n9 mappings were unwound by frame pointers: all 4096 table slots were in \
             use\nall unwind tables were rebuilt 2 times: there were too many distinct rules\n"
        );
    }
}
