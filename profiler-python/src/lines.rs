//! Which line an instruction is from.
//!
//! The encodings are told in CPython's `Objects/lnotab_notes.txt` (up to 3.10) and
//! `InternalDocs/code_objects.md` (from 3.11 on).

use serde::{Deserialize, Serialize};

use crate::offsets::Encoding;

/// The most bytes of a table that are read. A file of a hundred thousand lines takes less.
pub const MAX_TABLE_BYTES: u64 = 1 << 20;
/// The most runs of instructions of one line that are kept.
pub const MAX_RUNS: usize = 1 << 15;

/// The lines of a code object, by instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lines(Vec<Run>);

/// Instructions of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    /// The first instruction behind it.
    end: u32,
    /// 0 if it is from none.
    line: u32,
}

impl Lines {
    /// The line of an instruction, counted as the version counts.
    #[must_use]
    pub fn find(&self, instruction: u32) -> Option<u32> {
        let Self(runs) = self;
        let at = runs.partition_point(|run| run.end <= instruction);
        runs.get(at).map(|run| run.line).filter(|line| *line != 0)
    }

    /// Whether these are in order, as [`decode`](Self::decode) makes them.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        let Self(runs) = self;
        runs.len() <= MAX_RUNS && runs.is_sorted_by(|a, b| a.end < b.end)
    }

    /// Bytes of heap that they take.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Run>()
    }

    /// Decodes a table of a code object that begins at a line. Where it is damaged, or too long, lines end.
    #[must_use]
    pub fn decode(encoding: Encoding, table: &[u8], first_line: u32) -> Self {
        let mut runs = Runs { runs: Vec::new(), at: 0 };
        let line = i64::from(first_line);
        // What can't be decoded has no lines.
        let _ = match encoding {
            Encoding::Lnotab => lnotab(table, line, &mut runs),
            Encoding::LineTable => line_table(table, line, &mut runs),
            Encoding::Locations => locations(table, line, &mut runs),
        };
        runs.runs.shrink_to_fit();
        Self(runs.runs)
    }
}

/// Runs in the making.
struct Runs {
    runs: Vec<Run>,
    at: u32,
}

impl Runs {
    /// So many instructions more, of this line. `None` if there is no room any more.
    fn push(&mut self, count: u32, line: i64) -> Option<()> {
        let line = u32::try_from(line).unwrap_or_default();
        self.at = self.at.checked_add(count)?;
        let (run, has_room) = (Run { end: self.at, line }, self.runs.len() < MAX_RUNS);
        match self.runs.last_mut() {
            Some(last) if last.line == line => last.end = run.end,
            _ if count == 0 => {}
            _ if has_room => self.runs.push(run),
            _ => return None,
        }
        Some(())
    }
}

/// Pairs: so many bytes until so many lines are added.
fn lnotab(table: &[u8], mut line: i64, runs: &mut Runs) -> Option<()> {
    for [bytes, lines] in table.as_chunks().0 {
        runs.push(u32::from(*bytes), line)?;
        line += i64::from(lines.cast_signed());
    }
    runs.push(u32::MAX - runs.at, line)
}

/// Pairs: so many lines are added for so many bytes. An instruction has two.
fn line_table(table: &[u8], mut line: i64, runs: &mut Runs) -> Option<()> {
    /// Instead of a number of lines: these bytes are from none.
    const NONE: i8 = -128;
    for [bytes, lines] in table.as_chunks().0 {
        let lines = lines.cast_signed();
        let of = if lines == NONE {
            0
        } else {
            line += i64::from(lines);
            line
        };
        runs.push(u32::from(bytes / 2), of)?;
    }
    Some(())
}

/// Entries of several bytes: a head with a code and a number of instructions, and what the code says.
fn locations(table: &[u8], mut line: i64, runs: &mut Runs) -> Option<()> {
    let mut rest = table.iter();
    while let Some(head) = rest.next() {
        let count = u32::from(head & 7) + 1;
        let of = match head >> 3 & 15 {
            15 => 0,
            // Line, last line, column and last column.
            14 => {
                line += signed(&mut rest)?;
                for _ in 0..3 {
                    varint(&mut rest)?;
                }
                line
            }
            13 => {
                line += signed(&mut rest)?;
                line
            }
            code @ 10..=12 => {
                line += i64::from(code) - 10;
                rest.nth(1)?;
                line
            }
            _ => {
                rest.next()?;
                line
            }
        };
        runs.push(count, of)?;
    }
    Some(())
}

/// Six bits a byte, the lowest first; the seventh says that there are more.
fn varint(bytes: &mut std::slice::Iter<'_, u8>) -> Option<u32> {
    let mut number = 0;
    for shift in (0..32).step_by(6) {
        let byte = bytes.next()?;
        number |= u32::from(byte & 63).checked_shl(shift)?;
        if byte & 64 == 0 {
            return Some(number);
        }
    }
    None
}

fn signed(bytes: &mut std::slice::Iter<'_, u8>) -> Option<i64> {
    let number = varint(bytes)?;
    let magnitude = i64::from(number >> 1);
    Some(if number & 1 == 0 { magnitude } else { -magnitude })
}
