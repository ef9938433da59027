//! The unwind table of a file.

mod build;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    ops::Range,
    panic::{self, AssertUnwindSafe},
};

use gimli::Vendor;
use object::read::ReadRef;
use profiler_common::unwind::{
    aarch64::Aarch64,
    rule::Rule,
    step::Arch,
    table::{Chunk, Chunks, find},
    x86_64::X86_64,
};

use crate::{
    NoTable,
    cfi::Counts,
    heuristics,
    packer::{Packed, Packer, TooLarge},
    rules::Rules,
    source::{Code, MAX_BYTES, Machine, Place, Source},
};

pub(crate) use self::build::Placed;
use self::build::build;

/// The most rows of all functions of a file. The largest programs have some millions.
pub const MAX_ROWS: u64 = 1 << 24;
/// The most functions of a file, which are sorted in memory: 16 bytes each.
pub const MAX_FUNCTIONS: usize = 1 << 22;
/// What may be read of a file besides its unwind information: headers, symbols, and code that has none.
const HEADER_BYTES: u64 = 48 << 20;

/// Rules, each with the offsets in a file at which it holds.
pub type Rows = Vec<(Range<u64>, Rule)>;

/// The rules of a file's code, packed as the eBPF program searches them.
#[derive(Clone, Debug)]
pub struct Table {
    words: Vec<u32>,
    facts: Facts,
}

/// What is known of a table.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The machine that the file is for.
    pub machine: Machine,
    /// Where unwind information was found, and how many bytes of it.
    pub places: Vec<(Place, usize)>,
    /// The file's code.
    pub code: Code,
    /// What the sections held.
    pub counts: Counts,
    /// What became of their rows.
    pub packed: Packed,
    /// Whether there is a `.gopclntab` of a version that can't be read.
    pub is_newer_go: bool,
}

impl Table {
    /// The table of a file for the machine that we run on. Rules that it needs are added to `rules`, some of them
    /// even if there is an error. A panic of a parser below is [`NoTable::Unreadable`].
    pub fn of_file(file: &File, rules: &mut Rules) -> Result<Self, NoTable> {
        guarded(|| Self::of_any_file(file, Some(Machine::NATIVE), rules))
    }

    /// As [`Table::of_file`], for a given machine, or with `None` for any that is known. It does not catch panics.
    pub fn of_any_file(
        file: &File,
        machine: Option<Machine>,
        rules: &mut Rules,
    ) -> Result<Self, NoTable> {
        let budget = MAX_BYTES + HEADER_BYTES;
        profiler_elf::read_within(file, budget, |data| Self::of_data(data, machine, rules))
    }

    /// The table of the vDSO, an ELF file in memory. Offsets count from its first byte.
    pub fn of_vdso(bytes: &[u8], rules: &mut Rules) -> Result<Self, NoTable> {
        guarded(|| Self::of_any_vdso(bytes, Machine::NATIVE, rules))
    }

    /// As [`Table::of_vdso`], for a given machine.
    pub(crate) fn of_any_vdso(
        bytes: &[u8],
        machine: Machine,
        rules: &mut Rules,
    ) -> Result<Self, NoTable> {
        let source = Source::find(bytes)?;
        if machine != source.machine {
            return Err(NoTable::Machine);
        }
        let of_code = match machine {
            Machine::X86_64 => Vec::new(),
            Machine::Aarch64 => heuristics::vdso::rows(bytes, &source),
        };
        Self::of_source(&source, bytes, of_code, rules)
    }

    fn of_data<'d, R: ReadRef<'d>>(
        data: R,
        machine: Option<Machine>,
        rules: &mut Rules,
    ) -> Result<Self, NoTable> {
        let source = Source::find(data)?;
        if machine.is_some_and(|it| it != source.machine) {
            return Err(NoTable::Machine);
        }
        Self::of_source(&source, data, Vec::new(), rules)
    }

    /// `of_code` has rows that the code itself gives away, by offsets in the file.
    fn of_source<'d>(
        source: &Source<'d>,
        data: impl ReadRef<'d>,
        of_code: Rows,
        rules: &mut Rules,
    ) -> Result<Self, NoTable> {
        match source.machine {
            Machine::X86_64 => Self::of::<X86_64>(source, data, of_code, Vendor::Default, rules),
            Machine::Aarch64 => Self::of::<Aarch64>(source, data, of_code, Vendor::AArch64, rules),
        }
    }

    fn of<'d, A: Arch + 'static>(
        source: &Source<'d>,
        data: impl ReadRef<'d>,
        of_code: Rows,
        vendor: Vendor,
        rules: &mut Rules,
    ) -> Result<Self, NoTable> {
        let Source { machine, sections, code, stubs, is_newer_go } = source;
        let mut places = Vec::new();
        let mut described = Vec::new();
        for section in sections {
            if let Some(it) = section.read::<A>(vendor) {
                places.push((section.place, section.bytes.len()));
                described.push(it);
            }
        }
        let others = |functions: &[Placed]| {
            let mut others = of_code;
            others.extend(heuristics::rules::<A>(data, code, stubs, functions));
            others.sort_unstable_by_key(|(offsets, _)| offsets.start);
            others
        };
        let (words, counts, packed) = build(&mut described, code, others, rules)?;
        let (machine, is_newer_go) = (*machine, *is_newer_go);
        let facts = Facts { machine, places, code: code.clone(), counts, packed, is_newer_go };
        Ok(Self { words, facts })
    }

    /// A table of these rows only, by offsets in a file and in their order.
    pub fn of_rows(rows: &[(Range<u64>, Rule)], rules: &mut Rules) -> Result<Self, NoTable> {
        let start = rows.first().map_or(0, |(offsets, _)| offsets.start);
        let end = rows.last().map_or(start, |(offsets, _)| offsets.end);
        let mut packer = Packer::new(start..end, rules)?;
        for (offsets, rule) in rows {
            packer.push(offsets.start, offsets.end, rule)?;
        }
        let (words, packed) = packer.finish()?;
        let (machine, code) = (Machine::NATIVE, Code::of(start..end, start));
        let (places, counts, is_newer_go) = (Vec::new(), Counts::default(), false);
        let facts = Facts { machine, places, code, counts, packed, is_newer_go };
        Ok(Self { words, facts })
    }

    /// What is known about it.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Its words, which are whole chunks.
    pub(crate) fn into_words(self) -> Vec<u32> {
        self.words
    }

    /// Its chunks, each an element of the kernel's map.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        self.words.as_chunks().0
    }

    /// The number of the rule for an offset in the file, in bytes; `None` outside of its code.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<u16> {
        find(self, offset)
    }
}

impl Chunks for Table {
    fn chunk(&self, number: u32) -> Option<&Chunk> {
        self.chunks().get(usize::try_from(number).ok()?)
    }
}

/// Turns a panic into an error: a file that a parser does not expect must cost its table, not the run. Rules that were
/// added stay; they are whole, and no other table refers to them.
fn guarded(make: impl FnOnce() -> Result<Table, NoTable>) -> Result<Table, NoTable> {
    panic::catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(NoTable::Unreadable))
}

impl From<TooLarge> for NoTable {
    fn from(TooLarge: TooLarge) -> Self {
        Self::TooLarge
    }
}
