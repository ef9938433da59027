//! Names of JIT code, as a parser process holds them: bytes of perf maps and jitdumps in, names by address out.
//!
//! The agent reads the files, and says which bytes are new. It takes nothing from them but what this process
//! answers.

pub(crate) mod functions;
pub mod jitdump;
pub mod perf_map;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use self::{functions::Span, jitdump::JitDump, perf_map::PerfMap};

/// The most of a file that is sent at once: of the shortest lines, what takes some tens of milliseconds.
pub(crate) const STEP: usize = 256 << 10;
/// Bytes of a name at most. What is not UTF-8 was replaced, which makes it longer.
pub(crate) const MAX_NAME: usize = 3 * functions::LIMIT_NAME;
/// Bytes for all names, unless another limit is set.
const LIMIT_BYTES: usize = 128 << 20;

/// Which file of a process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    PerfMap,
    Jitdump,
}

/// What is new in a file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Text {
    /// The process, by a number that no other has had.
    pub(crate) process: u64,
    pub(crate) kind: Kind,
    /// Whether the file is another one than before. What was known from that is forgotten.
    pub(crate) is_new: bool,
    /// Whether it begins within a line, which is then left out.
    pub(crate) is_cut: bool,
    /// Bytes of the file from the first of these on.
    pub(crate) behind: u64,
    /// At most [`STEP`]; fewer at the file's end.
    pub(crate) bytes: Vec<u8>,
}

/// What became of it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// Bytes that need not be sent again; of a jitdump maybe more than were sent, since code is skipped.
    pub(crate) bytes: u64,
    /// Whether nothing more is wanted of this file.
    pub(crate) is_over: bool,
    /// Whether something in the file can't be read.
    pub(crate) is_malformed: bool,
    /// Why nothing can be read from here on.
    pub(crate) problem: Option<jitdump::Problem>,
    /// Bytes of heap that the names of this process take.
    pub(crate) held_bytes: u64,
}

/// What is at an address, and at those around it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// The first address of which the same holds.
    pub(crate) first: u64,
    /// The last one.
    pub(crate) last: u64,
    /// The function that is there, unless there is none.
    pub(crate) function: Option<Function>,
}

/// A function.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Function {
    /// Where it begins.
    pub(crate) start: u64,
    pub(crate) name: String,
    /// The file that names it.
    pub(crate) kind: Kind,
}

/// The names of all processes.
#[derive(Debug)]
pub(crate) struct JitNames {
    processes: FxHashMap<u64, Files>,
    limit_bytes: usize,
}

/// The names in the files of a process.
#[derive(Debug, Default)]
struct Files {
    jit_dump: JitDump,
    perf_map: PerfMap,
}

impl Files {
    fn bytes(&self) -> usize {
        self.jit_dump.bytes() + self.perf_map.bytes()
    }

    /// The jitdump knows when code has been replaced, so it is asked first.
    fn find(&self, address: u64) -> Found {
        let found = |Span { first, last, function }: Span<'_>, kind| {
            let function =
                function.map(|(start, name)| Function { start, name: name.to_string(), kind });
            Found { first, last, function }
        };
        let dumped = self.jit_dump.span(address);
        if dumped.function.is_some() {
            return found(dumped, Kind::Jitdump);
        }
        let mapped = self.perf_map.span(address);
        // Around it the jitdump may have functions.
        let (first, last) = (mapped.first.max(dumped.first), mapped.last.min(dumped.last));
        found(Span { first, last, ..mapped }, Kind::PerfMap)
    }
}

impl Default for JitNames {
    fn default() -> Self {
        Self::within(LIMIT_BYTES)
    }
}

impl JitNames {
    /// None yet, and so many bytes for all. Functions beyond that are left out.
    pub(super) fn within(limit_bytes: usize) -> Self {
        Self { processes: FxHashMap::default(), limit_bytes }
    }

    /// Takes what is new in a file.
    pub(crate) fn take(&mut self, text: &Text) -> Taken {
        let others = self.processes.iter().filter(|(number, _)| **number != text.process);
        let others: usize = others.map(|(_, files)| files.bytes()).sum();
        let files = self.processes.entry(text.process).or_default();
        let mut problem = None;
        let (bytes, is_over, is_malformed) = match text.kind {
            Kind::PerfMap => {
                if text.is_new {
                    files.perf_map = PerfMap::default();
                }
                let taken_by_others = others.saturating_add(files.jit_dump.bytes());
                let map = &mut files.perf_map;
                map.limit(self.limit_bytes.saturating_sub(taken_by_others));
                let taken = map.take_step(&text.bytes, text.is_new && text.is_cut);
                (taken as u64, false, map.is_malformed())
            }
            Kind::Jitdump => {
                if text.is_new {
                    files.jit_dump = JitDump::default();
                }
                let taken_by_others = others.saturating_add(files.perf_map.bytes());
                let dump = &mut files.jit_dump;
                dump.limit(self.limit_bytes.saturating_sub(taken_by_others));
                let taken = dump.take_step(&text.bytes, text.behind);
                let bytes = taken.unwrap_or_else(|why| {
                    problem = Some(why);
                    0
                });
                (bytes, dump.is_over(), dump.is_malformed())
            }
        };
        Taken { bytes, is_over, is_malformed, problem, held_bytes: files.bytes() as u64 }
    }

    /// What is at these addresses of a process; `None` if nothing of it was read.
    pub(crate) fn find(&self, process: u64, addresses: &[u64]) -> Option<Vec<Found>> {
        let files = self.processes.get(&process)?;
        Some(addresses.iter().map(|address| files.find(*address)).collect())
    }

    /// Frees the names of processes.
    pub(super) fn forget(&mut self, processes: &[u64]) {
        for process in processes {
            self.processes.remove(process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(process: u64, text: &[u8]) -> Text {
        let (bytes, behind) = (text.to_vec(), text.len() as u64);
        Text { process, kind: Kind::PerfMap, is_new: false, is_cut: false, behind, bytes }
    }

    fn name(names: &JitNames, process: u64, address: u64) -> Option<String> {
        let found = names.find(process, &[address])?.pop()?;
        assert!((found.first..=found.last).contains(&address), "{found:?}");
        Some(found.function?.name)
    }

    #[test]
    fn names_are_those_of_the_process() {
        let mut names = JitNames::default();
        names.take(&map(1, b"1000 10 one\n"));
        names.take(&map(2, b"1000 10 two\n"));
        assert_eq!(name(&names, 1, 0x100f).as_deref(), Some("one"));
        assert_eq!(name(&names, 2, 0x1000).as_deref(), Some("two"));
        assert_eq!((name(&names, 1, 0x1010), names.find(3, &[1])), (None, None));
        names.forget(&[1]);
        assert_eq!((name(&names, 1, 0x1000), names.find(1, &[1])), (None, None));
        names.take(&Text { is_new: true, ..map(2, b"") });
        assert_eq!(name(&names, 2, 0x1000), None);
    }

    #[test]
    fn what_the_jitdump_says_cuts_what_the_map_does() {
        let mut names = JitNames::default();
        names.take(&map(1, b"1000 100 outer\n"));
        let files = names.processes.get_mut(&1).unwrap();
        files.jit_dump = jitdump::tests::with_function(0x1040, 0x10, b"inner");
        let spans = |address| {
            let found = names.find(1, &[address]).unwrap().pop().unwrap();
            (found.first, found.last, found.function.map(|it| (it.name, it.kind)))
        };
        let outer = Some(("outer".to_owned(), Kind::PerfMap));
        assert_eq!(spans(0x1000), (0x1000, 0x103f, outer.clone()));
        assert_eq!(spans(0x1045), (0x1040, 0x104f, Some(("inner".into(), Kind::Jitdump))));
        assert_eq!(spans(0x1050), (0x1050, 0x10ff, outer));
        assert_eq!(spans(0x1100), (0x1100, u64::MAX, None));
        assert_eq!(spans(0), (0, 0xfff, None));
    }

    #[test]
    fn all_names_are_bounded() {
        let limit = 64 << 10;
        let mut names = JitNames::within(limit);
        for process in 0..4 {
            let lines = (1..1000).map(|it| format!("{it:x}00 10 function{it}\n"));
            let text = lines.collect::<Vec<_>>().concat();
            names.take(&map(process, text.as_bytes()));
            let held: usize = names.processes.values().map(Files::bytes).sum();
            assert!(held <= limit, "{held}");
        }
        assert!(name(&names, 0, 0x100).is_some() && name(&names, 3, 0x100).is_none());
    }
}
