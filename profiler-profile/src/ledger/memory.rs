//! What the profiler holds in memory, and which cache holds what.

use std::fmt::Write as _;

use serde::Serialize;

/// The profiler's memory at the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Of the agent.
    pub agent: Resident,
    /// Of the parser processes together.
    pub parsers: Resident,
    /// How many parser processes there were.
    pub parser_processes: u64,
    /// What takes the agent's memory.
    pub caches: Vec<Cache>,
}

/// Pages in RAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// Heap and stacks of threads.
    pub anon_bytes: u64,
    /// Files that are mapped, the program's own among them. The kernel can take these pages back, and
    /// processes share them.
    pub file_bytes: u64,
    /// Memory that is shared, such as the rings.
    pub shmem_bytes: u64,
}

/// A cache at the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// What it keeps.
    pub name: &'static str,
    /// How many it holds.
    pub entries: u64,
    /// What they take, as far as that is counted.
    pub bytes: u64,
    /// What they may take; `None` if their number is limited instead.
    pub limit_bytes: Option<u64>,
    /// How many there may be, if that is limited.
    pub limit_entries: Option<u64>,
    /// How many were evicted to make room.
    pub evicted: u64,
}

impl Resident {
    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.anon_bytes.saturating_add(self.file_bytes).saturating_add(self.shmem_bytes)
    }

    /// Adds what another process has.
    pub fn add(&mut self, other: Self) {
        self.anon_bytes = self.anon_bytes.saturating_add(other.anon_bytes);
        self.file_bytes = self.file_bytes.saturating_add(other.file_bytes);
        self.shmem_bytes = self.shmem_bytes.saturating_add(other.shmem_bytes);
    }
}

impl Memory {
    /// The table for people; nothing if nothing was counted.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        if *self == Self::default() {
            return text;
        }
        let parts = |it: &Resident| {
            let (all, anon, file) = (mib(it.bytes()), mib(it.anon_bytes), mib(it.file_bytes));
            format!("{all} MiB (anonymous {anon}, files {file})")
        };
        let _ = writeln!(
            text,
            "resident memory: agent {}; {} parser processes {}",
            parts(&self.agent),
            self.parser_processes,
            parts(&self.parsers)
        );
        if self.caches.is_empty() {
            return text;
        }
        let _ = writeln!(
            text,
            "{:<26} {:>9} {:>9} {:>9} {:>9}",
            "cache", "entries", "MiB", "limit", "evicted"
        );
        for it in &self.caches {
            let limit = match (it.limit_bytes, it.limit_entries) {
                (Some(bytes), _) => format!("{} M", bytes >> 20),
                (None, Some(entries)) => entries.to_string(),
                (None, None) => "-".to_owned(),
            };
            let _ = writeln!(
                text,
                "{:<26} {:>9} {:>9} {limit:>9} {:>9}",
                it.name,
                it.entries,
                mib(it.bytes),
                it.evicted
            );
        }
        text
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// A count for an account.
#[must_use]
pub fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_cache() {
        assert_eq!(Memory::default().table(), "");
        let agent = Resident { anon_bytes: 3 << 20, file_bytes: 2 << 20, shmem_bytes: 1 << 20 };
        let cache = |name, limit_bytes, limit_entries| Cache {
            name,
            entries: 7,
            bytes: 1 << 19,
            limit_bytes,
            limit_entries,
            evicted: 5,
        };
        let caches = vec![
            cache("a", Some(8 << 20), None),
            cache("b", None, Some(9)),
            cache("c", None, None),
        ];
        let text = Memory { agent, caches, ..Memory::default() }.table();
        assert!(
            text.starts_with("resident memory: agent 6.0 MiB (anonymous 3.0, files 2.0)"),
            "{text}"
        );
        let rows: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["a", "7", "0.5", "8", "M", "5"]);
        assert_eq!(rows[1], ["b", "7", "0.5", "9", "5"]);
        assert_eq!(rows[2], ["c", "7", "0.5", "-", "5"]);
    }
}
