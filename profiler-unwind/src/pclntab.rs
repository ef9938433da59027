//! Reads Go's `.gopclntab`, by which Go's runtime walks stacks; it is there even in stripped programs. For each
//! address it has how many bytes of the stack the function has taken.
//!
//! Format: <https://github.com/golang/go/blob/go1.26/src/runtime/symtab.go> (`pcHeader`, `moduledata`,
//! `_func`, `step`), of Go 1.18 to 1.26. Since 1.26 only `moduledata` tells where the code begins.

mod frame;
mod header;
mod steps;
#[cfg(test)]
mod tests;

use std::ops::Range;

use profiler_common::unwind::rule::{Cfa, Rule};

use self::{
    frame::{Kind, rule, rule_with_link},
    steps::Step,
};
use crate::cfi::{Counts, Function, Row};

pub(crate) use self::header::{Version, text_of_module};

/// Offsets in the header.
const INSTRUCTION_AT: usize = 6;
const FUNCTIONS_AT: usize = 8;
const NAMES_AT: usize = 32;
const STEPS_AT: usize = 56;
const TABLE_AT: usize = 64;
/// The table has two numbers of 32 bits for each function.
const ENTRY_BYTES: u64 = 8;
/// The longest of the names that matter is shorter.
const NAME_BYTES: usize = 64;

/// The table of a program.
#[derive(Debug)]
pub(crate) struct Pclntab<'d> {
    bytes: &'d [u8],
    text: u64,
    functions: u32,
    names: u64,
    steps: u64,
    table: u64,
    /// Bytes of the smallest instruction, which steps count in.
    instruction_bytes: u8,
    counts: Counts,
}

/// A function's entry.
struct Entry {
    addresses: Range<u64>,
    name: u32,
    steps: u32,
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'d> Pclntab<'d> {
    /// The table in a section, of code that begins at an address; `None` if it is of another kind, or cut
    /// off.
    pub(crate) fn new(bytes: &'d [u8], text: u64) -> Option<Self> {
        let Version::Known { .. } = Version::of(bytes) else { return None };
        Some(Self {
            bytes,
            text,
            functions: u32::try_from(number(bytes, FUNCTIONS_AT)?).ok()?,
            names: number(bytes, NAMES_AT)?,
            steps: number(bytes, STEPS_AT)?,
            table: number(bytes, TABLE_AT)?,
            instruction_bytes: *bytes.get(INSTRUCTION_AT)?,
            counts: Counts::default(),
        })
    }

    /// Whether a call pushes the return address.
    fn call_pushes(&self) -> bool {
        self.instruction_bytes == 1
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Calls `tell` with each function.
    pub(crate) fn functions(&mut self, tell: &mut dyn FnMut(Function)) {
        for at in 0..self.functions {
            let Some(entry) = self.entry(at) else {
                // The table is truncated.
                self.counts.malformed += 1;
                return;
            };
            let Range { start, end } = self.described(at, &entry);
            if start < end {
                self.counts.functions += 1;
                tell(Function { start, end, at });
            } else {
                self.counts.malformed += 1;
            }
        }
    }

    /// Calls `tell` with each row of a function.
    pub(crate) fn rows(&mut self, at: u32, tell: &mut dyn FnMut(Row)) {
        let Some(entry) = self.entry(at) else { return };
        let Range { start, end } = self.described(at, &entry);
        let kind = self.kind(&entry);
        let (steps, call_pushes) = (self.steps_of(&entry), self.call_pushes());
        let mut row = |start: u64, end: u64, rule: Rule| {
            if start < end {
                self.counts.rows += 1;
                tell(Row { start, end, rule });
            }
        };
        if let Kind::Whole(cfa) = kind {
            return row(start, end, Rule::of(cfa));
        }
        let mut at = start;
        for Step { until, taken } in steps {
            let until = until.min(end);
            let rule = if call_pushes { rule(taken, kind) } else { rule_with_link(taken, kind) };
            row(at, until, rule);
            at = at.max(until);
            if at >= end {
                break;
            }
        }
        // What is left has no rule, as behind a step that makes no sense.
        row(at, end, Rule::of(Cfa::UNKNOWN));
    }

    fn entry(&self, at: u32) -> Option<Entry> {
        let place = self.table.checked_add(u64::from(at).checked_mul(ENTRY_BYTES)?)?;
        // The next function's follows, or that of the end.
        let [start, function, next] = self.numbers(place)?;
        let [_, name, _, _, steps] = self.numbers(self.table.checked_add(function.into())?)?;
        let address = |offset: u32| self.text.checked_add(offset.into());
        Some(Entry { addresses: address(start)?..address(next)?, name, steps })
    }

    /// What of the code the entry is to describe. A signal's handler returns to the first byte of what
    /// ends the signal, and return addresses are looked up one byte before.
    fn described(&self, at: u32, entry: &Entry) -> Range<u64> {
        let byte_of = |entry| u64::from(matches!(self.kind(entry), Kind::Whole(Cfa::SIGNAL)));
        let next = at.checked_add(1).filter(|next| *next < self.functions);
        let next = next.and_then(|next| self.entry(next));
        let Range { start, end } = entry.addresses;
        let start = start.saturating_sub(byte_of(entry));
        start..end.saturating_sub(next.as_ref().map_or(0, byte_of))
    }

    fn numbers<const N: usize>(&self, at: u64) -> Option<[u32; N]> {
        let bytes = self.bytes.get(usize::try_from(at).ok()?..)?;
        let mut numbers = [0; N];
        for (number, bytes) in numbers.iter_mut().zip(bytes.get(..N * 4)?.as_chunks().0) {
            *number = u32::from_le_bytes(*bytes);
        }
        Some(numbers)
    }

    fn kind(&self, entry: &Entry) -> Kind {
        let name = || {
            let at = usize::try_from(self.names.checked_add(entry.name.into())?).ok()?;
            let bytes = self.bytes.get(at..)?;
            let bytes = bytes.get(..NAME_BYTES).unwrap_or(bytes);
            bytes.split(|&byte| byte == 0).next()
        };
        match name().unwrap_or_default() {
            b"runtime.goexit" | b"runtime.mstart" | b"runtime.rt0_go" => Kind::Whole(Cfa::END),
            b"runtime.mcall" => Kind::Leaves,
            b"runtime.sigreturn" | b"runtime.sigreturn__sigaction" => Kind::Whole(Cfa::SIGNAL),
            b"runtime.systemstack" | b"runtime.morestack" | b"runtime.asmcgocall" => {
                Kind::Whole(Cfa::UNSUPPORTED)
            }
            b"runtime.nanotime1" | b"runtime.walltime" => Kind::Moves,
            // On aarch64 it is written in Go.
            b"time.now" if self.call_pushes() => Kind::Moves,
            _ => Kind::Usual,
        }
    }
}
