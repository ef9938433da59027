//! Names of what Python runs. They are read in the memory of its processes, once for all that is new in a stack, and
//! kept by code object: with the check that the eBPF program has made of it, so that what comes to lie at its address
//! later is another.

use std::{sync::Arc, time::Instant};

use profiler_common::python::wire::NO_INSTRUCTION;
use profiler_profile::{
    frame::{Frame, Origin},
    ledger::memory::Cache,
};
use profiler_python::{
    code::{Code, Unnamed},
    lines::Lines,
};

use super::{
    super::jit::With,
    memory::{Process, ProcessMemory},
};
use crate::{cache::Bounded, parser::MAX_PYTHON_CODE, time_budget::TimeBudget};

/// What a name or path has beside its bytes.
const TEXT_BYTES: usize = 32;

/// A frame to be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The code object.
    pub code: u64,
    /// Its check at the time of the sample; 0 if it could not be made.
    pub check: u64,
    /// The instruction.
    pub instruction: u32,
}

/// What was asked for, in its order.
#[derive(Debug)]
pub struct Named {
    /// `None` for a frame of the interpreter's own, which Python does not show either.
    pub frames: Vec<Option<Frame>>,
    /// Whether there will be no other answer later.
    pub is_final: bool,
}

/// A code object of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    image: u64,
    code: u64,
    check: u64,
}

/// What is known of a code object.
#[derive(Clone, Debug)]
enum Found {
    Function(Arc<Function>),
    /// It is the interpreter's own.
    Internal,
    Unnamed(Origin),
}

#[derive(Debug)]
struct Function {
    name: Arc<str>,
    file: Arc<str>,
    lines: Lines,
}

impl Found {
    fn heap_bytes(&self) -> usize {
        match self {
            Self::Function(it) => {
                size_of::<Function>()
                    + it.name.len()
                    + it.file.len()
                    + it.lines.heap_bytes()
                    + 2 * TEXT_BYTES
            }
            _ => 0,
        }
    }

    fn frame(&self, instruction: u32) -> Option<Frame> {
        // Before its first instruction, a function is on no line.
        let line = |it: &Lines| (instruction != NO_INSTRUCTION).then(|| it.find(instruction));
        match self {
            Self::Function(it) => Some(Frame {
                symbol: Some(Arc::clone(&it.name)),
                module: Some(Arc::clone(&it.file)),
                source: Some((Arc::clone(&it.file), line(&it.lines).flatten())),
                origin: Origin::Cpython,
                ..Frame::default()
            }),
            Self::Internal => None,
            Self::Unnamed(why) => Some(unnamed(*why)),
        }
    }
}

fn unnamed(why: Origin) -> Frame {
    Frame { origin: why, ..Frame::default() }
}

/// The names of all processes.
#[derive(Debug)]
pub(in super::super) struct PythonNames {
    found: Bounded<Key, Found>,
    time_budget: TimeBudget,
}

impl Default for PythonNames {
    fn default() -> Self {
        let found = Bounded::new(usize::MAX, Found::heap_bytes);
        Self { found, time_budget: TimeBudget::new(Instant::now()) }
    }
}

impl PythonNames {
    /// Sets how many bytes all names may take.
    pub(in super::super) fn limit(&mut self, bytes: usize) {
        self.found = Bounded::new(bytes, Found::heap_bytes);
    }

    /// What it holds.
    pub(in super::super) fn account(&self) -> Cache {
        self.found.account("names of Python code")
    }

    /// Names frames of a process.
    pub(in super::super) fn find(
        &mut self,
        mut with: With<'_>,
        process: Process<'_>,
        wanted: &[Wanted],
    ) -> Named {
        let key = |it: &Wanted| Key { image: process.image, code: it.code, check: it.check };
        let mut unknown: Vec<Key> =
            wanted.iter().map(key).filter(|it| self.found.get(it).is_none()).collect();
        unknown.sort_unstable();
        unknown.dedup();
        // What could not be read then can't be told from what is there now.
        let (checked, unchecked): (Vec<_>, Vec<_>) =
            unknown.into_iter().partition(|it| it.check != 0);
        for key in unchecked {
            self.found.insert(key, Found::Unnamed(Origin::NoCode));
        }
        // Beside what is kept, as far as there is room.
        let mut now = Vec::new();
        if !checked.is_empty() {
            let start = Instant::now();
            if self.time_budget.is_left(start) {
                let slow_before = with.parser.slow_time();
                now = self.read(&mut with, process, &checked);
                let end = Instant::now();
                // What others do to a file system does not count.
                let slow = with.parser.slow_time().saturating_sub(slow_before);
                self.time_budget.take(end, end.duration_since(start).saturating_sub(slow));
            }
        }
        let mut is_final = true;
        let frames = wanted.iter().map(|it| {
            let key = key(it);
            let in_now = now.binary_search_by_key(&key, |(key, _)| *key).ok();
            let new = in_now.and_then(|at| now.get(at)).map(|(_, found)| found.clone());
            match new.or_else(|| self.found.get(&key)) {
                Some(found) => found.frame(it.instruction),
                None => {
                    is_final = false;
                    Some(unnamed(Origin::Unread))
                }
            }
        });
        let frames = frames.collect();
        Named { frames, is_final }
    }

    /// Has the parser process read code objects, in the order of their keys, and keeps what will stay so.
    fn read(
        &mut self,
        with: &mut With<'_>,
        process: Process<'_>,
        keys: &[Key],
    ) -> Vec<(Key, Found)> {
        let all = |why| keys.iter().map(|key| (*key, Found::Unnamed(why))).collect::<Vec<_>>();
        let mut found = match ProcessMemory::open(with.parser, process) {
            Ok(memory) => {
                let mut found = Vec::new();
                for keys in keys.chunks(MAX_PYTHON_CODE) {
                    let read = ask(with, process, &memory, keys);
                    found.extend(keys.iter().copied().zip(read));
                }
                found
            }
            Err(why) => all(why),
        };
        found.retain(|(_, found)| !matches!(found, Found::Unnamed(Origin::Unread)));
        for (key, found) in &found {
            self.found.insert(*key, found.clone());
        }
        found
    }
}

/// Asks the parser process.
fn ask(
    with: &mut With<'_>,
    process: Process<'_>,
    memory: &ProcessMemory,
    keys: &[Key],
) -> Vec<Found> {
    let wanted: Vec<(u64, u64)> = keys.iter().map(|key| (key.code, key.check)).collect();
    let asked = memory.ask(with.parser, process, |parser, file| {
        parser.python_code(file, process.python, wanted.clone())
    });
    match asked {
        Ok(codes) => codes.into_iter().map(|it| found(with, it)).collect(),
        Err(why) => vec![Found::Unnamed(why); keys.len()],
    }
}

/// What was read, with names that are kept once.
fn found(with: &mut With<'_>, code: Result<Code, Unnamed>) -> Found {
    match code {
        Ok(code) if code.is_internal() => Found::Internal,
        Ok(Code { name, file, lines, .. }) => Found::Function(Arc::new(Function {
            name: with.interned.intern(&name),
            file: with.interned.intern(&file),
            lines,
        })),
        Err(why) => Found::Unnamed(match why {
            Unnamed::Gone => Origin::ProcessGone,
            Unnamed::Reused => Origin::CodeGone,
            Unnamed::NotCode => Origin::NoCode,
            Unnamed::Budget => Origin::Unread,
        }),
    }
}

#[cfg(test)]
mod tests;
