//! What Go's linker says of frames: the table that its runtime walks stacks by, which is there however
//! a program was stripped. For each address it has how much the function has taken of the stack.
//!
//! Format: <https://github.com/golang/go/blob/go1.20/src/runtime/symtab.go> (`pcHeader`, `_func`,
//! `step`), of Go 1.18 to 1.25: later ones do not tell where the code begins.

use std::ops::Range;

use profiler_common::unwind::rule::{Cfa, Rule, Saved};

use super::cfi::{Counts, Function, Row};

/// Of Go 1.18, and of 1.20 and later.
const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// Offsets in the header, behind the number of functions.
const FUNCTIONS_AT: usize = 8;
const TEXT_AT: usize = 24;
const NAMES_AT: usize = 32;
const STEPS_AT: usize = 56;
const TABLE_AT: usize = 64;
/// The table has two numbers of 32 bits for each function.
const ENTRY_BYTES: u64 = 8;
/// Most steps of one function. The largest real ones have some thousands.
const MOST_STEPS: usize = 1 << 16;
/// The longest of the names that matter is shorter.
const NAME_BYTES: usize = 64;

/// The table of a program for x86-64.
#[derive(Debug)]
pub(super) struct Pclntab<'d> {
    bytes: &'d [u8],
    text: u64,
    functions: u32,
    names: u64,
    steps: u64,
    table: u64,
    counts: Counts,
}

/// A function's entry.
struct Entry {
    addresses: Range<u64>,
    name: u32,
    steps: u32,
}

impl<'d> Pclntab<'d> {
    /// The table in a section; `None` if it is of another kind, or cut off.
    pub(super) fn new(bytes: &'d [u8]) -> Option<Self> {
        // Two bytes of zero, the size of the smallest instruction, that of a pointer.
        let (magic, rest) = bytes.split_first_chunk()?;
        if !MAGICS.contains(&u32::from_le_bytes(*magic)) || rest.get(..4)? != [0, 0, 1, 8] {
            return None;
        }
        let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Self {
            bytes,
            // In a program that is loaded anywhere, and since Go 1.26 in each, it is not told.
            text: number(TEXT_AT).filter(|it| *it != 0)?,
            functions: u32::try_from(number(FUNCTIONS_AT)?).ok()?,
            names: number(NAMES_AT)?,
            steps: number(STEPS_AT)?,
            table: number(TABLE_AT)?,
            counts: Counts::default(),
        })
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Tells of each function.
    pub(super) fn functions(&mut self, tell: &mut dyn FnMut(Function)) {
        for at in 0..self.functions {
            let Some(entry) = self.entry(at) else {
                // The table is cut off.
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

    /// Tells the rows of a function.
    pub(super) fn rows(&mut self, at: u32, tell: &mut dyn FnMut(Row)) {
        let Some(entry) = self.entry(at) else { return };
        let Range { start, end } = self.described(at, &entry);
        let kind = self.kind(&entry);
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
        for Step { until, taken } in self::steps(self.bytes, self.steps, &entry) {
            let until = until.min(end);
            row(at, until, rule(taken, kind));
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
            b"runtime.nanotime1" | b"runtime.walltime" | b"time.now" => Kind::Moves,
            _ => Kind::Usual,
        }
    }
}

/// What is known of functions that do not keep to their stack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Usual,
    /// It goes to the system's stack and back, with the frame pointer where it was.
    Moves,
    /// It goes to the system's stack for good, and calls what is the outermost frame there.
    Leaves,
    /// The same all over: the outermost frame of a goroutine or a thread, the end of a signal, or what
    /// was called on another stack.
    Whole(u8),
}

fn rule(taken: u32, kind: Kind) -> Rule {
    let Some(cfa_offset) = taken.checked_add(8).and_then(|it| i32::try_from(it).ok()) else {
        return Rule::of(Cfa::UNSUPPORTED);
    };
    let by_sp = Rule { cfa_offset, ra: Saved::AT_CFA, ra_words: -1, ..Rule::of(Cfa::SP) };
    match (taken, kind) {
        // A function that takes nothing of the stack leaves the frame pointer, too.
        (0, _) => by_sp,
        (_, Kind::Moves) => {
            Rule { cfa: Cfa::FP, cfa_offset: 16, fp: Saved::AT_CFA, fp_words: -2, ..by_sp }
        }
        (_, Kind::Leaves) => Rule::of(Cfa::END),
        _ => Rule { fp: Saved::AT_CFA, fp_words: -2, ..by_sp },
    }
}

/// Up to an address a function has taken so many bytes.
struct Step {
    until: u64,
    taken: u32,
}

/// The steps of a function: pairs of how much the bytes that are taken change, as a number with a sign,
/// and for how many bytes of code that holds.
fn steps<'d>(bytes: &'d [u8], steps: u64, entry: &Entry) -> impl Iterator<Item = Step> + use<'d> {
    let at = usize::try_from(steps.saturating_add(entry.steps.into())).unwrap_or(usize::MAX);
    let mut bytes = bytes.get(at..).unwrap_or_default();
    let mut until = entry.addresses.start;
    let mut taken = -1_i32;
    let mut is_first = true;
    let next = move || {
        let change = varint(&mut bytes)?;
        if change == 0 && !is_first {
            return None;
        }
        is_first = false;
        let change = (change >> 1).cast_signed() ^ -((change & 1).cast_signed());
        taken = taken.wrapping_add(change);
        // One for no code would take time and say nothing.
        let code = varint(&mut bytes).filter(|code| *code > 0)?;
        until = until.checked_add(code.into())?;
        Some(Step { until, taken: u32::try_from(taken).ok()? })
    };
    std::iter::from_fn(next).take(MOST_STEPS)
}

fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: u64 = 0x40_1000;

    /// A table of functions that follow each other: name, bytes of code, steps.
    fn table(functions: &[(&str, u32, &[u8])]) -> Vec<u8> {
        let (mut names, mut steps, mut table, mut entries) = (vec![], vec![0], vec![], vec![]);
        let mut at = 0_u32;
        let of = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
        let table_bytes = u32::try_from(functions.len()).unwrap() * 8 + 4;
        for (name, bytes, own) in functions {
            table.extend([at, table_bytes + of(&entries)].map(u32::to_le_bytes).concat());
            entries.extend([at, of(&names), 0, 0, of(&steps)].map(u32::to_le_bytes).concat());
            names.extend([name.as_bytes(), &[0]].concat());
            steps.extend([*own, &[0]].concat());
            at += bytes;
        }
        table.extend(at.to_le_bytes());
        let names_at = 72;
        let steps_at = names_at + names.len() as u64;
        let table_at = steps_at + steps.len() as u64;
        let count = functions.len() as u64;
        let header = [count, 0, TEXT, names_at, 0, 0, steps_at, table_at];
        let header = [&0xffff_fff1_u32.to_le_bytes()[..], &[0, 0, 1, 8]]
            .concat()
            .into_iter()
            .chain(header.map(u64::to_le_bytes).concat());
        header.chain([names, steps, table, entries].concat()).collect()
    }

    type Rows = Vec<(u64, u64, Rule)>;

    fn read(bytes: &[u8]) -> Option<(Rows, Counts)> {
        let mut table = Pclntab::new(bytes)?;
        let (mut functions, mut rows) = (Vec::new(), Vec::new());
        table.functions(&mut |function| functions.push(function));
        for Function { start, end, at } in functions {
            let mut covered = start;
            table.rows(at, &mut |row| {
                assert!(row.start == covered && row.start < row.end && row.end <= end);
                covered = row.end;
                rows.push((row.start, row.end, row.rule));
            });
            assert_eq!(covered, end);
        }
        Some((rows, table.counts()))
    }

    const ENTRY: Rule =
        Rule { cfa_offset: 8, ra: Saved::AT_CFA, ra_words: -1, ..Rule::of(Cfa::SP) };
    const FRAMED: Rule = Rule { cfa_offset: 24, fp: Saved::AT_CFA, fp_words: -2, ..ENTRY };

    #[test]
    fn a_function_has_a_row_for_each_change() {
        // From -1 to 0 for 10 bytes, by 16 for 200, and back.
        let steps = [2, 10, 32, 0xc8, 1, 31, 1];
        let bytes = table(&[("main.f", 211, &steps), ("main.g", 5, &[2, 4])]);
        let (rows, counts) = read(&bytes).unwrap();
        assert_eq!(
            rows,
            [
                (TEXT, TEXT + 10, ENTRY),
                (TEXT + 10, TEXT + 210, FRAMED),
                (TEXT + 210, TEXT + 211, ENTRY),
                (TEXT + 211, TEXT + 215, ENTRY),
                // The steps end before the function does.
                (TEXT + 215, TEXT + 216, Rule::of(Cfa::UNKNOWN)),
            ]
        );
        assert_eq!((counts.functions, counts.rows, counts.malformed), (2, 5, 0));
    }

    #[test]
    fn functions_that_leave_their_stack_are_known_by_name() {
        let steps = [2, 4, 32, 12];
        let names = [
            "runtime.goexit",
            "main.before",
            "runtime.sigreturn",
            "runtime.systemstack",
            "runtime.nanotime1",
            "runtime.mcall",
            "runtime.goexits",
        ];
        let bytes = table(&names.map(|name| (name, 16, &steps[..])));
        let (rows, _) = read(&bytes).unwrap();
        let moved = Rule { cfa: Cfa::FP, cfa_offset: 16, ..FRAMED };
        let at = |function: u64| TEXT + function * 16;
        assert_eq!(
            rows,
            [
                (at(0), at(1), Rule::of(Cfa::END)),
                (at(1), at(1) + 4, ENTRY),
                // The last byte before what ends a signal is looked up for what it returns to.
                (at(1) + 4, at(2) - 1, FRAMED),
                (at(2) - 1, at(3), Rule::of(Cfa::SIGNAL)),
                (at(3), at(4), Rule::of(Cfa::UNSUPPORTED)),
                (at(4), at(4) + 4, ENTRY),
                (at(4) + 4, at(5), moved),
                (at(5), at(5) + 4, ENTRY),
                (at(5) + 4, at(6), Rule::of(Cfa::END)),
                (at(6), at(6) + 4, ENTRY),
                (at(6) + 4, at(7), FRAMED),
            ]
        );
    }

    #[test]
    fn what_is_of_another_kind_is_refused() {
        let bytes = table(&[("main.f", 8, &[2, 8])]);
        assert!(read(&bytes).is_some());
        // The magic, the padding, the pointer's size; an address that is told at the start.
        for (at, len) in [(0, 1), (4, 1), (7, 1), (TEXT_AT, 8)] {
            let mut other = bytes.clone();
            for byte in &mut other[at..at + len] {
                *byte = if at == TEXT_AT { 0 } else { 9 };
            }
            assert!(Pclntab::new(&other).is_none(), "{at}");
        }
        for len in 0..bytes.len() {
            let _ = read(&bytes[..len]);
        }
    }

    proptest! {
        #[test]
        fn damage_is_no_harm(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..10),
            steps in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = table(&[("main.f", 8, &steps), ("main.g", 80, &steps)]);
            prop_assert!(read(&bytes).is_some());
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            // Of damaged ones a function may have no end, and so no rows.
            let Some(mut table) = Pclntab::new(&bytes) else { return Ok(()) };
            table.functions = table.functions.min(1000);
            let mut functions = Vec::new();
            table.functions(&mut |function| functions.push(function));
            for function in functions {
                table.rows(function.at, &mut |row| assert!(row.start < row.end));
            }
        }
    }
}
