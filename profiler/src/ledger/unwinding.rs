//! What the walk of user stacks by unwind information had, and took.

use std::{collections::BTreeMap, fmt::Write as _};

use profiler_common::unwind::table::TABLES;
use serde::Serialize;

/// The tables at the end of a run, and what has become of those before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unwinding {
    /// Tables in the kernel.
    pub tables: u64,
    /// What they take of its memory.
    pub table_bytes: u64,
    /// What the other maps take that the walk needs.
    pub other_bytes: u64,
    /// What all may take: see `--max-unwind-memory`.
    pub limit_bytes: u64,
    /// How often a table was taken out to make room for another.
    pub taken_out: u64,
    /// Tables that a walk has looked for, and that found no room.
    pub no_room: u64,
    /// Mappings of files for which no place was left, so that they are walked by frame pointers.
    pub no_place: u64,
    /// Files that a walk has come to and that have no table, by why.
    pub without_table: BTreeMap<String, u64>,
    /// Distinct rules of all tables.
    pub rules: u64,
    /// How many there can be.
    pub most_rules: u64,
    /// How often all tables were made again, since rules of files that were gone had used up the room.
    pub started_over: u64,
    /// Processes whose mappings found no room, so that their stacks were not walked in the kernel.
    pub unknown_processes: u64,
    /// Stacks that the agent has walked, from a copy, since the kernel was not told in time what that needs.
    pub walked_later: u64,
}

impl Unwinding {
    /// The lines for people: of what is missing, or of `all`.
    #[must_use]
    pub fn lines(&self, all: bool) -> String {
        let mut text = String::new();
        if all {
            let _ = writeln!(
                text,
                "unwind tables: {} with {} of {} rules, {}; with mappings and caches {} of {}",
                self.tables,
                self.rules,
                self.most_rules,
                mib(self.table_bytes),
                mib(self.table_bytes + self.other_bytes),
                mib(self.limit_bytes)
            );
            if self.walked_later > 0 {
                let _ = writeln!(
                    text,
                    "stacks walked by the agent, from copies: {}",
                    self.walked_later
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
        if self.taken_out + self.no_room + self.unknown_processes > 0 {
            let processes = if self.unknown_processes > 0 {
                ", and --max-processes that of processes"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "unwind tables taken out for others {}, without room {}, and mappings of processes {}: \
                 --max-unwind-memory raises the limit{processes}",
                self.taken_out, self.no_room, self.unknown_processes
            );
        }
        if self.no_place > 0 {
            let _ = writeln!(
                text,
                "mappings walked by frame pointers, since {TABLES} other files are mapped: {}",
                self.no_place
            );
        }
        if self.started_over > 0 {
            let _ = writeln!(
                text,
                "all unwind tables were made again {} times, since there were too many distinct rules",
                self.started_over
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
    fn what_is_missing_is_said_in_any_case() {
        let well = Unwinding {
            tables: 3,
            table_bytes: 3 << 19,
            other_bytes: 2 << 20,
            limit_bytes: 256 << 20,
            rules: 345,
            most_rules: 16_384,
            without_table: [("not an ELF file".to_owned(), 2)].into(),
            walked_later: 7,
            ..Unwinding::default()
        };
        assert_eq!(well.lines(false), "");
        assert_eq!(
            well.lines(true),
            "unwind tables: 3 with 345 of 16384 rules, 1.5 MiB; with mappings and caches 3.5 MiB of \
             256.0 MiB\nstacks walked by the agent, from copies: 7\nfiles without an unwind table: not an ELF file 2\n"
        );
        let short = Unwinding { taken_out: 5, no_room: 1, no_place: 9, started_over: 2, ..well };
        assert_eq!(
            short.lines(false),
            "unwind tables taken out for others 5, without room 1, and mappings of processes 0: \
             --max-unwind-memory raises the limit\nmappings walked by frame pointers, since 4096 other \
             files are mapped: 9\nall unwind tables were made again 2 times, since \
             there were too many distinct rules\n"
        );
    }
}
