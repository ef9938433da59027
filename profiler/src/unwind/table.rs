//! From a file to its table.

use std::{fs::File, ops::Range};

use gimli::{DebugFrame, EhFrame, LittleEndian, UnwindSection, Vendor};
use object::read::ReadRef;
use profiler_common::unwind::{
    aarch64::Aarch64,
    rule::{Cfa, Rule, Saved},
    step::Arch,
    table::{Chunk, Chunks, find},
    x86_64::X86_64,
};

use super::{
    cfi::{Bytes, Counts, Frames, Function},
    compact::{Packed, Packer, TooLarge},
    rules::Rules,
    source::{Code, MOST_BYTES, Machine, NoTable, Place, Source, Stubs},
    vdso,
};
use crate::elf;

/// Most rows that the functions of a file may have. The largest programs have some millions.
pub const MOST_ROWS: u64 = 1 << 24;
/// Most functions of a file, which are sorted in memory: 16 bytes each.
pub const MOST_FUNCTIONS: usize = 1 << 22;
/// What may be read of a file besides the call frame information.
const HEADER_BYTES: u64 = 4 << 20;

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
    /// Where the information was found.
    pub place: Place,
    /// The bytes of it.
    pub bytes: usize,
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
        Self::of_any_file(file, Some(Machine::NATIVE), rules)
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
        Self::of_any_vdso(bytes, Machine::NATIVE, rules)
    }

    /// The same, for a given machine.
    pub(super) fn of_any_vdso(
        bytes: &[u8],
        machine: Machine,
        rules: &mut Rules,
    ) -> Result<Self, NoTable> {
        let source = Source::of_vdso(bytes)?;
        if machine != source.machine {
            return Err(NoTable::Machine);
        }
        let of_code = match machine {
            Machine::X86_64 => Vec::new(),
            Machine::Aarch64 => vdso::rows(bytes, &source),
        };
        Self::of_source(source, of_code, rules)
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
        Self::of_source(source, Vec::new(), rules)
    }

    /// `of_code` are rows beside those of the information, by offsets in the file.
    fn of_source(source: Source<'_>, of_code: Rows, rules: &mut Rules) -> Result<Self, NoTable> {
        match source.machine {
            Machine::X86_64 => Self::of::<X86_64>(source, of_code, Vendor::Default, rules),
            Machine::Aarch64 => Self::of::<Aarch64>(source, of_code, Vendor::AArch64, rules),
        }
    }

    fn of<A: Arch>(
        source: Source<'_>,
        of_code: Rows,
        vendor: Vendor,
        rules: &mut Rules,
    ) -> Result<Self, NoTable> {
        let Source { machine, place, bytes, bases, code, stubs } = source;
        let ends_at_zero = place == Place::EhFrameHdr;
        let (words, counts, packed) = if place == Place::DebugFrame {
            let mut section = DebugFrame::new(bytes, LittleEndian);
            section.set_address_size(8);
            section.set_vendor(vendor);
            let frames = Frames::<_, A>::new(section, bytes, bases, ends_at_zero);
            build(frames, &code, &stubs, of_code, rules)?
        } else {
            let mut section = EhFrame::new(bytes, LittleEndian);
            section.set_address_size(8);
            section.set_vendor(vendor);
            let frames = Frames::<_, A>::new(section, bytes, bases, ends_at_zero);
            build(frames, &code, &stubs, of_code, rules)?
        };
        let facts = Facts { machine, place, bytes: bytes.len(), code, counts, packed };
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
struct Placed {
    offset: u64,
    at: u32,
}

fn build<'a, S: UnwindSection<Bytes<'a>>, A: Arch>(
    mut frames: Frames<'a, S, A>,
    code: &Code,
    stubs: &[Stubs],
    of_code: Rows,
    rules: &mut Rules,
) -> Result<(Vec<u32>, Counts, Packed), NoTable> {
    let (mut functions, mut range) = placed(&mut frames, code)?;
    // Linkers leave them in order, but for few.
    functions.sort_unstable();
    let mut more = of_code;
    more.extend(stubs.iter().flat_map(|stubs| undescribed::<A>(stubs, code, &functions)));
    more.sort_unstable_by_key(|(offsets, _)| offsets.start);
    if let (Some((first, _)), Some((last, _))) = (more.first(), more.last()) {
        range = range.start.min(first.start)..range.end.max(last.end);
    }
    if range.is_empty() {
        return Err(NoTable::NoInfo);
    }

    let mut packer = Packer::new(range, rules)?;
    let mut more = more.into_iter().peekable();
    let mut functions = functions.into_iter().peekable();
    while let Some(Placed { at, offset }) = functions.next() {
        while let Some((offsets, rule)) = more.next_if(|(it, _)| it.start < offset) {
            packer.push(offsets.start, offsets.end, &rule)?;
        }
        let next = functions.peek().map(|next| next.offset);
        let mut pushed = Ok(());
        frames.rows(at, |row| {
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
        if frames.counts().rows > MOST_ROWS {
            return Err(NoTable::TooLarge);
        }
    }
    for (offsets, rule) in more {
        packer.push(offsets.start, offsets.end, &rule)?;
    }
    let (words, packed) = packer.finish()?;
    Ok((words, frames.counts(), packed))
}

/// The rules of stubs of which the file says nothing, by offsets in it.
fn undescribed<A: Arch>(stubs: &Stubs, code: &Code, functions: &[Placed]) -> Rows {
    let Some((start, bytes @ 1..)) = code.offsets(&stubs.addresses) else { return Vec::new() };
    let end = start + bytes;
    let next = functions.partition_point(|function| function.offset < start);
    if functions.get(next).is_some_and(|function| function.offset < end) {
        return Vec::new();
    }
    // A stub leaves the stack as the call has left it, but for what finds the function: on x86-64
    // from byte 11 on it has pushed a word.
    let by_sp = |cfa_offset| Rule {
        cfa_offset,
        ra: if A::CALL_PUSHES || cfa_offset > 0 { Saved::AT_CFA } else { Saved::SAME },
        ra_words: if A::CALL_PUSHES || cfa_offset > 0 { -1 } else { 0 },
        ..Rule::of(Cfa::SP)
    };
    let entry = Rule { register: 11, cfa: Cfa::PLT, ..by_sp(0) };
    let rows = match (stubs.is_lazy, A::CALL_PUSHES) {
        (false, true) => vec![(0, by_sp(8))],
        (false, false) => vec![(0, by_sp(0))],
        // The shared part is entered with one word pushed, and pushes another.
        (true, true) => vec![(0, by_sp(16)), (6, by_sp(24)), (16, entry)],
        // The shared part pushes two words with its first instruction, and is as long as two stubs.
        (true, false) => vec![(0, by_sp(0)), (4, by_sp(16)), (32, by_sp(0))],
    };
    let ends = rows.iter().skip(1).map(|(from, _)| start + from).chain([end]);
    let rows = rows.iter().zip(ends);
    let rows = rows.map(|(&(from, rule), until)| (start + from..until.min(end), rule));
    rows.filter(|(offsets, _)| !offsets.is_empty()).collect()
}

/// The entries that describe code of the file, and from where to where that goes; an empty range if
/// there are none.
fn placed<'a, S: UnwindSection<Bytes<'a>>, A: Arch>(
    frames: &mut Frames<'a, S, A>,
    code: &Code,
) -> Result<(Vec<Placed>, Range<u64>), NoTable> {
    let mut functions = Vec::new();
    let (mut first, mut last) = (u64::MAX, 0);
    let mut fits = true;
    frames.functions(|Function { start, end, at }| {
        let Some((offset, bytes @ 1..)) = code.offsets(&(start..end)) else { return };
        fits &= functions.len() < MOST_FUNCTIONS;
        if fits {
            functions.push(Placed { offset, at });
            // It can't overflow: the segment's end in the file is known to be a number.
            (first, last) = (first.min(offset), last.max(offset + bytes));
        }
    });
    if fits { Ok((functions, first..last)) } else { Err(NoTable::TooLarge) }
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
        unwind::{agreement::vdso, equation::Equation},
    };
    use object::{Object as _, ObjectSection as _};
    use proptest::prelude::*;

    fn of(bytes: &[u8]) -> Result<Table, NoTable> {
        Table::of_vdso(bytes, &mut Rules::new())
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
        if table.facts().place == Place::Code {
            return stderr::say("skipped: the vDSO says nothing of its frames");
        }
        assert_eq!(same.facts().place, Place::EhFrameHdr);
        assert_eq!(table.chunks(), same.chunks());
    }

    #[test]
    fn stubs_of_which_the_linker_says_nothing_have_rules() {
        let code = Code::of(0x1000..0x2000, 0x400);
        let stubs = |is_lazy| Stubs { addresses: 0x1100..0x1150, is_lazy };
        let rows = |rows: Rows, machine| {
            let line = |(offsets, rule): &(Range<u64>, Rule)| {
                format!("{:x} {}", offsets.start, Equation(rule, machine))
            };
            assert!(rows.windows(2).all(|pair| pair[0].0.end == pair[1].0.start), "{rows:x?}");
            assert_eq!(rows.last().unwrap().0.end, 0x550);
            rows.iter().map(line).collect::<Vec<_>>()
        };
        let x86 = |lazy| rows(undescribed::<X86_64>(&stubs(lazy), &code, &[]), Machine::X86_64);
        assert_eq!(x86(false), ["500 CFA = sp + 8, fp unchanged, return address at CFA - 8"]);
        assert_eq!(
            x86(true),
            [
                "500 CFA = sp + 16, fp unchanged, return address at CFA - 8",
                "506 CFA = sp + 24, fp unchanged, return address at CFA - 8",
                "510 CFA = sp + 8, + 16 from byte 11 of 16 on, fp unchanged, return address at CFA - 8"
            ]
        );
        let arm = |lazy| rows(undescribed::<Aarch64>(&stubs(lazy), &code, &[]), Machine::Aarch64);
        let leaf = "CFA = sp, fp unchanged, return address in the link register";
        assert_eq!(arm(false), [format!("500 {leaf}")]);
        assert_eq!(
            arm(true),
            [
                format!("500 {leaf}"),
                "504 CFA = sp + 16, fp unchanged, return address at CFA - 8".to_owned(),
                format!("520 {leaf}")
            ]
        );
        // Where the linker says something, that holds.
        let described = [Placed { offset: 0x500, at: 0 }];
        assert_eq!(undescribed::<X86_64>(&stubs(true), &code, &described), []);
        let elsewhere = [Placed { offset: 0x4ff, at: 0 }, Placed { offset: 0x550, at: 8 }];
        assert_eq!(undescribed::<X86_64>(&stubs(true), &code, &elsewhere).len(), 3);
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
