//! From a file to its table.

#[cfg(test)]
mod hostile;

use std::{
    fs::File,
    ops::Range,
    panic::{self, AssertUnwindSafe},
};

use gimli::Vendor;
use object::read::ReadRef;
use profiler_common::unwind::{
    aarch64::Aarch64,
    rule::{Cfa, Rule},
    step::Arch,
    table::{Chunk, Chunks, find},
    x86_64::X86_64,
};

use super::{
    cfi::{Counts, Function},
    compact::{Packed, Packer, TooLarge},
    described::Describes,
    rules::Rules,
    source::{Code, MOST_BYTES, Machine, NoTable, Place, Source},
    undescribed, vdso,
};
use crate::elf;

/// Most rows that the functions of a file may have. The largest programs have some millions.
pub const MOST_ROWS: u64 = 1 << 24;
/// Most functions of a file, which are sorted in memory: 16 bytes each.
pub const MOST_FUNCTIONS: usize = 1 << 22;
/// What may be read of a file besides the call frame information: headers, symbols, and code that is
/// not described.
const HEADER_BYTES: u64 = 48 << 20;

/// Rules, and at which offsets in a file they hold.
pub(super) type Rows = Vec<(Range<u64>, Rule)>;

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
    /// Where the information was found, and the bytes of it.
    pub places: Vec<(Place, usize)>,
    /// The file's code.
    pub code: Code,
    /// What was read.
    pub counts: Counts,
    /// What became of it.
    pub packed: Packed,
}

impl Table {
    /// The table of a file for the machine that we run on. Its rules are added to `rules`, also if
    /// there is an error.
    pub fn of_file(file: &File, rules: &mut Rules) -> Result<Self, NoTable> {
        guarded(|| Self::of_any_file(file, Some(Machine::NATIVE), rules))
    }

    /// The same, for a given machine or any that we know.
    pub fn of_any_file(
        file: &File,
        machine: Option<Machine>,
        rules: &mut Rules,
    ) -> Result<Self, NoTable> {
        let budget = MOST_BYTES + HEADER_BYTES;
        elf::read_within(file, budget, |data| Self::of_data(data, machine, rules))
    }

    /// The table of the vDSO, an ELF file in our own memory: offsets are from its start.
    pub fn of_vdso(bytes: &[u8], rules: &mut Rules) -> Result<Self, NoTable> {
        guarded(|| Self::of_any_vdso(bytes, Machine::NATIVE, rules))
    }

    /// The same, for a given machine.
    pub(super) fn of_any_vdso(
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
            Machine::Aarch64 => vdso::rows(bytes, &source),
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

    /// `of_code` are rows beside those of the information, by offsets in the file.
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
        let Source { machine, sections, code, stubs } = source;
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
            others.extend(undescribed::rules::<A>(data, code, stubs, functions));
            others.sort_unstable_by_key(|(offsets, _)| offsets.start);
            others
        };
        let (words, counts, packed) = build(&mut described, code, others, rules)?;
        let facts = Facts { machine: *machine, places, code: code.clone(), counts, packed };
        Ok(Self { words, facts })
    }

    /// One that has these rows only, in their order.
    #[cfg(test)]
    pub(super) fn of_rows(rows: &[(Range<u64>, Rule)], rules: &mut Rules) -> Result<Self, NoTable> {
        let start = rows.first().map_or(0, |(offsets, _)| offsets.start);
        let end = rows.last().map_or(start, |(offsets, _)| offsets.end);
        let mut packer = Packer::new(start..end, rules)?;
        for (offsets, rule) in rows {
            packer.push(offsets.start, offsets.end, rule)?;
        }
        let (words, packed) = packer.finish()?;
        let (machine, code) = (Machine::NATIVE, Code::of(start..end, start));
        let facts = Facts { machine, places: Vec::new(), code, counts: Counts::default(), packed };
        Ok(Self { words, facts })
    }

    /// What is known of it.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What goes into the kernel, element by element.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        self.words.as_chunks().0
    }

    /// The number of the rule for an offset in the file.
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

/// An entry, where it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Placed {
    pub(super) offset: u64,
    /// Of which section, and where in that.
    entry: u32,
    pub(super) bytes: u32,
}

/// Bits of [`Placed::entry`] for the place in a section, of at most [`MOST_BYTES`].
const ENTRY_BITS: u32 = 28;
const _: () = assert!(MOST_BYTES == 1 << ENTRY_BITS, "each entry has a number");

/// What describes code, by its number.
type Described<'s> = [Box<dyn Describes + 's>];

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
    pub(super) fn of(offsets: Range<u64>) -> Self {
        let bytes = u32::try_from(offsets.end - offsets.start).unwrap_or(u32::MAX);
        Self { offset: offsets.start, entry: 0, bytes }
    }
}

/// What the reader does not expect must cost this table, not the run. Rules that it has added stay: they are
/// whole, and others do not refer to them.
fn guarded(make: impl FnOnce() -> Result<Table, NoTable>) -> Result<Table, NoTable> {
    panic::catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(NoTable::Unreadable))
}

fn build(
    described: &mut Described<'_>,
    code: &Code,
    others: impl FnOnce(&[Placed]) -> Vec<(Range<u64>, Rule)>,
    rules: &mut Rules,
) -> Result<(Vec<u32>, Counts, Packed), NoTable> {
    let mut functions = placed(described, code)?;
    // Linkers leave them in order, but for few. Of two for the same code, the first section's holds.
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
            // What ends a signal ends in a system call, and while the kernel is at it the program
            // counter is behind that.
            if row.rule.cfa == Cfa::SIGNAL && next != Some(end) {
                end += 1;
            }
            if pushed.is_ok() {
                pushed = packer.push(start, end, &row.rule);
            }
        });
        pushed?;
        if rows > MOST_ROWS {
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

/// The entries that describe code of the file.
fn placed(described: &mut Described<'_>, code: &Code) -> Result<Vec<Placed>, NoTable> {
    let mut functions = Vec::new();
    let mut fits = true;
    for (number, section) in (0..).zip(described) {
        section.functions(&mut |Function { start, end, at }| {
            // Linkers leave what they know of functions that they have dropped there, where the header is.
            if start == 0 {
                return;
            }
            let Some((offset, bytes @ 1..)) = code.offsets(&(start..end)) else { return };
            fits &= functions.len() < MOST_FUNCTIONS;
            if fits {
                // Beyond, a table would be too large.
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                functions.push(Placed { offset, entry: (number << ENTRY_BITS) | at, bytes });
            }
        });
    }
    if fits { Ok(functions) } else { Err(NoTable::TooLarge) }
}

impl From<TooLarge> for NoTable {
    fn from(TooLarge: TooLarge) -> Self {
        Self::TooLarge
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        stderr,
        unwind::{
            agreement::vdso,
            cfi::tests::{cie, fde},
            described::Section,
            source::Place,
        },
    };
    use gimli::BaseAddresses;
    use object::{Object as _, ObjectSection as _};
    use proptest::prelude::*;
    use std::{
        fs,
        path::Path,
        process::{Command, Stdio},
    };

    fn of(bytes: &[u8]) -> Result<Table, NoTable> {
        Table::of_vdso(bytes, &mut Rules::new())
    }

    #[test]
    fn what_linkers_have_dropped_describes_nothing() {
        let cie = cie("", 16, &[0x0c, 7, 8, 0x90, 1]);
        let mut bytes = cie;
        for start in [0, 0x1000] {
            bytes.extend(fde(bytes.len(), start, 0x100, &[]));
        }
        let (bases, bytes) = (BaseAddresses::default(), bytes.into());
        let section = Section { place: Place::EhFrame, bytes, bases };
        let mut described = vec![section.read::<X86_64>(Vendor::Default).unwrap()];
        let placed = placed(&mut described, &Code::of(0..0x2000, 0)).unwrap();
        assert_eq!(
            placed.iter().map(|it| (it.offset, it.bytes)).collect::<Vec<_>>(),
            [(0x1000, 0x100)]
        );
    }

    /// Our vDSO with other bytes at some places of its header.
    fn changed(changes: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vdso().unwrap_or_else(|| vec![0; 64]);
        for (at, change) in changes {
            bytes[*at..][..change.len()].copy_from_slice(change);
        }
        bytes
    }

    #[test]
    fn without_section_headers_it_is_the_same() {
        let Some(bytes) = vdso() else { return stderr::say("skipped: there is no vDSO") };
        // e_shoff; e_shentsize, e_shnum, e_shstrndx
        let without = changed(&[(40, &[0; 8]), (58, &[0; 6])]);
        let (table, same) = (of(&bytes).unwrap(), of(&without).unwrap());
        if table.facts().places.is_empty() {
            return stderr::say("skipped: the vDSO says nothing of its frames");
        }
        assert_eq!(same.facts().places[0].0, Place::EhFrameHdr);
        assert_eq!(table.chunks(), same.chunks());
    }

    #[test]
    fn the_stubs_of_this_program_have_rules() {
        let file = File::open("/proc/self/exe").unwrap();
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let Some(plt) = elf.section_by_name(".plt") else {
            return stderr::say("skipped: it has no stubs");
        };
        let mut rules = Rules::new();
        let table = Table::of_file(&file, &mut rules).unwrap();
        let (start, bytes) = plt.file_range().unwrap();
        for offset in start..start + bytes {
            let rule = rules.get(table.find(offset).unwrap()).unwrap();
            assert!([Cfa::SP, Cfa::PLT].contains(&rule.cfa), "{offset:#x}: {rule:?}");
        }
    }

    /// A program of which only debuggers are told, with that compressed in a way.
    fn for_debuggers(dir: &Path, compression: &str) -> Option<File> {
        let (plain, program) = (dir.join("plain"), dir.join(compression));
        if !plain.exists() {
            let source = dir.join("source.c");
            fs::write(&source, "int f(int x) { return x * 3; } int main(void) { return f(1); }")
                .unwrap();
            let mut gcc = Command::new("gcc");
            gcc.args(["-g", "-O0", "-fomit-frame-pointer", "-fno-asynchronous-unwind-tables"]);
            gcc.arg("-gz=none").arg("-o").arg(&plain).arg(source);
            assert!(gcc.status().unwrap().success());
        }
        let mut objcopy = Command::new("objcopy");
        objcopy.arg(format!("--compress-debug-sections={compression}")).arg(&plain).arg(&program);
        let is_known = objcopy.stderr(Stdio::null()).status().unwrap().success();
        is_known.then(|| File::open(program).unwrap())
    }

    #[test]
    fn what_debuggers_are_told_may_be_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let of = |compression| {
            let file = for_debuggers(dir.path(), compression);
            if file.is_none() {
                stderr::say(&format!("skipped: objcopy does not know {compression}"));
            }
            Table::of_file(&file?, &mut Rules::new()).ok()
        };
        let plain = of("none").unwrap();
        let places: Vec<_> = plain.facts().places.iter().map(|it| it.0).collect();
        assert_eq!(places, [Place::EhFrame, Place::DebugFrame]);
        for table in ["zlib", "zlib-gnu", "zstd"].into_iter().filter_map(of) {
            assert_eq!(table.facts().places, plain.facts().places);
            // Where its code is in the file is the same, too.
            assert_eq!(table.chunks(), plain.chunks());
        }
    }

    #[test]
    fn what_has_no_table_has_a_reason() {
        if vdso().is_none() {
            return stderr::say("skipped: there is no vDSO");
        }
        let other = if Machine::NATIVE == Machine::X86_64 { 183 } else { 62 };
        for (changes, why) in [
            (&[(0, &b"elf"[..])][..], NoTable::NotElf),
            (&[(4, &[1])], NoTable::Bits32),
            (&[(5, &[2])], NoTable::Machine),
            (&[(16, &[1, 0])], NoTable::NotLinked), // e_type
            (&[(18, &[8, 0])], NoTable::Machine),
            (&[(18, &[other, 0])], NoTable::Machine),
            (&[(32, &[0xff; 7])], NoTable::Unreadable), // e_phoff
            (&[(56, &[0, 0])], NoTable::NoInfo),        // e_phnum
        ] {
            assert_eq!(of(&changed(changes)).unwrap_err(), why, "{changes:?}");
        }
        assert_eq!(of(&[]).unwrap_err(), NoTable::NotElf);
        assert_eq!(of(b"\x7fELF").unwrap_err(), NoTable::Unreadable);
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_no_harm() {
        let Some(bytes) = vdso() else { return stderr::say("skipped: there is no vDSO") };
        for len in 0..bytes.len() {
            let _ = of(&bytes[..len]);
        }
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_no_harm(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
            in_header in any::<bool>(),
        ) {
            let mut bytes = changed(&[]);
            let len = if in_header { 64 + 56 * 4 } else { bytes.len() }.min(bytes.len());
            for (at, byte) in damage {
                bytes[at.index(len)] = byte;
            }
            let _ = of(&bytes);
        }
    }
}
