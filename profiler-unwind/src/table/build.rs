//! Builds a table: sorts the functions of a file, and packs their rows into pages.

use std::ops::Range;

use profiler_common::unwind::rule::{Cfa, Rule};

use super::{MAX_FUNCTIONS, MAX_ROWS};
use crate::{
    NoTable, Rules,
    cfi::{Counts, Function},
    packer::{Packed, Packer},
    section::Describes,
    source::{Code, MAX_BYTES},
};

/// A function by its offset in the file, and where its entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Placed {
    pub(crate) offset: u64,
    /// The number of the section, and the offset of the entry in it.
    entry: u32,
    pub(crate) bytes: u32,
}

/// Bits of [`Placed::entry`] for the offset in a section, which has at most [`MAX_BYTES`].
const ENTRY_BITS: u32 = 28;
const _: () = assert!(MAX_BYTES == 1 << ENTRY_BITS, "each entry has a number");

/// Sections with unwind information, by number.
pub(super) type Described<'s> = [Box<dyn Describes + 's>];

impl Placed {
    fn section<'d, 's>(
        &self,
        of: &'d mut Described<'s>,
    ) -> Option<&'d mut Box<dyn Describes + 's>> {
        of.get_mut((self.entry >> ENTRY_BITS) as usize)
    }

    fn at(&self) -> u32 {
        self.entry & ((1 << ENTRY_BITS) - 1)
    }

    /// One of a function at these offsets.
    #[cfg(test)]
    pub(crate) fn of(offsets: Range<u64>) -> Self {
        let bytes = u32::try_from(offsets.end - offsets.start).unwrap_or(u32::MAX);
        Self { offset: offsets.start, entry: 0, bytes }
    }
}

/// The words of a table. `described` has the functions of each section; `others` gives the rules for code that none
/// of these functions covers, in the order of their offsets.
pub(super) fn build(
    described: &mut Described<'_>,
    code: &Code,
    others: impl FnOnce(&[Placed]) -> Vec<(Range<u64>, Rule)>,
    rules: &mut Rules,
) -> Result<(Vec<u32>, Counts, Packed), NoTable> {
    let mut functions = placed(described, code)?;
    // Linkers leave nearly all of them in order. Of two for the same code, the first section's wins.
    functions.sort_unstable();
    functions.dedup_by_key(|it| it.offset);
    let others = others(&functions);
    let starts = functions.first().map(|it| it.offset).into_iter();
    let start = starts.chain(others.first().map(|(offsets, _)| offsets.start)).min();
    let ends = functions.iter().map(|it| it.offset.saturating_add(it.bytes.into()));
    let end = ends.chain(others.iter().map(|(offsets, _)| offsets.end)).max();
    let (Some(start), Some(end)) = (start, end) else { return Err(NoTable::NoInfo) };

    let mut packer = Packer::new(start..end, rules)?;
    let mut others = others.into_iter().peekable();
    let mut functions = functions.into_iter().peekable();
    let mut rows = 0;
    while let Some(function) = functions.next() {
        while let Some((offsets, rule)) = others.next_if(|(it, _)| it.start < function.offset) {
            packer.push(offsets.start, offsets.end, &rule)?;
        }
        let next = functions.peek().map(|next| next.offset);
        let mut pushed = Ok(());
        let Some(section) = function.section(described) else { continue };
        section.rows(function.at(), &mut |row| {
            rows += 1;
            let Some((start, bytes)) = code.offsets(&(row.start..row.end)) else { return };
            let mut end = start + bytes;
            // A signal trampoline ends in a system call; while the kernel runs that, the program
            // counter points behind it.
            if row.rule.cfa == Cfa::SIGNAL && next != Some(end) {
                end += 1;
            }
            if pushed.is_ok() {
                pushed = packer.push(start, end, &row.rule);
            }
        });
        pushed?;
        if rows > MAX_ROWS {
            return Err(NoTable::TooLarge);
        }
    }
    for (offsets, rule) in others {
        packer.push(offsets.start, offsets.end, &rule)?;
    }
    let (words, packed) = packer.finish()?;
    let counts = described.iter().fold(Counts::default(), |sum, it| sum.with(&it.counts()));
    Ok((words, counts, packed))
}

/// The functions whose code is in the file.
pub(super) fn placed(described: &mut Described<'_>, code: &Code) -> Result<Vec<Placed>, NoTable> {
    let mut functions = Vec::new();
    let mut fits = true;
    for (number, section) in (0..).zip(described) {
        section.functions(&mut |Function { start, end, at }| {
            // Linkers leave the entries of functions that they have dropped at address zero, where the
            // header is.
            if start == 0 {
                return;
            }
            let Some((offset, bytes @ 1..)) = code.offsets(&(start..end)) else { return };
            fits &= functions.len() < MAX_FUNCTIONS;
            if fits {
                // A function that large would make the table too large anyway.
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                functions.push(Placed { offset, entry: (number << ENTRY_BITS) | at, bytes });
            }
        });
    }
    if fits { Ok(functions) } else { Err(NoTable::TooLarge) }
}
