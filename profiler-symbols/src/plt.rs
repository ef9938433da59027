//! The stubs by which code calls functions of other files, named by what they lead to.
//!
//! A stub has no symbol. It jumps to the address in a slot, and a relocation says whose address the dynamic
//! linker puts there: <https://refspecs.linuxfoundation.org/elf/x86_64-abi-0.99.pdf>, section 5.2, and
//! <https://github.com/ARM-software/abi-aa/blob/main/sysvabi64/sysvabi64.rst>.

use std::ops::Range;

use object::{
    Endianness,
    elf::{
        EM_AARCH64, EM_X86_64, R_AARCH64_GLOB_DAT, R_AARCH64_IRELATIVE, R_AARCH64_JUMP_SLOT,
        R_X86_64_GLOB_DAT, R_X86_64_IRELATIVE, R_X86_64_JUMP_SLOT, Rela64, SHT_RELA, Sym64,
    },
};

use crate::{
    image::{Elf, Section},
    table::{Named, Table, name_in},
};

/// The most stubs of a file.
const MAX_STUBS: usize = 1 << 18;
/// The most relocations that are looked at: those of data, which are many, are among them.
const MAX_RELOCATIONS: usize = 8 << 20;
const LAZY: &[u8] = b".plt";
const NAMES: [&[u8]; 4] = [LAZY, b".plt.sec", b".plt.got", b".iplt"];
const INSTRUCTION_BYTES: usize = 4;

/// A stub, and the name of what it leads to.
#[derive(Clone, Copy, Debug)]
struct Stub<'d> {
    address: u64,
    bytes: u8,
    name: &'d [u8],
}

/// The stubs of a file.
#[derive(Debug, Default)]
pub(crate) struct Stubs<'d> {
    /// Sorted by address.
    all: Box<[Stub<'d>]>,
    /// `.plt`, whose begin calls the dynamic linker when a function is called for the first time.
    lazy: Range<u64>,
}

/// What the dynamic linker puts into a slot.
#[derive(Clone, Copy, Debug)]
struct Slot<'d> {
    address: u64,
    name: &'d [u8],
}

impl<'d> Stubs<'d> {
    /// The stubs of a file. What a stub of its own resolves to is named by the table.
    pub(crate) fn of(elf: &Elf<'d>, table: &Table<'d>) -> Self {
        let is_known = [EM_X86_64, EM_AARCH64].contains(&elf.machine) && elf.is_64;
        let sections = elf.sections.iter().filter(|it| it.is_code() && NAMES.contains(&it.name));
        let mut sections = sections.peekable();
        if !is_known || sections.peek().is_none() {
            return Self::default();
        }
        let slots = slots(elf, table);
        let mut stubs = Vec::new();
        for section in sections {
            let Ok(code) = elf.bytes_of(section) else { continue };
            let start = section.addresses.start;
            let found = match elf.machine {
                EM_X86_64 => x86_64(code, start, section),
                _ => aarch64(code, start),
            };
            for Jump { address, bytes, slot } in found {
                let name = slots.binary_search_by_key(&slot, |it| it.address);
                let Some(slot) = name.ok().and_then(|at| slots.get(at)) else { continue };
                if stubs.len() < MAX_STUBS {
                    stubs.push(Stub { address, bytes, name: slot.name });
                }
            }
        }
        stubs.sort_unstable_by_key(|it| it.address);
        let lazy = elf.sections.iter().find(|it| it.is_code() && it.name == LAZY);
        let lazy = lazy.map_or(0..0, |it| it.addresses.clone());
        Self { all: stubs.into(), lazy }
    }

    /// The stub that holds the address.
    pub(crate) fn find(&self, address: u64) -> Option<Named<'d>> {
        let behind = self.all.partition_point(|it| it.address <= address);
        let stub = self.all.get(behind.checked_sub(1)?)?;
        let is_in = address - stub.address < stub.bytes.into();
        is_in.then_some(Named { name: stub.name, start: stub.address })
    }

    /// The code that is no stub of its own, and that all stubs share which look for their function when they are
    /// called: by its section's name, as perf has it.
    pub(crate) fn find_shared(&self, address: u64) -> Option<Named<'d>> {
        let (name, start) = (LAZY, self.lazy.start);
        self.lazy.contains(&address).then_some(Named { name, start })
    }

    /// The first address of each stub.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.all.iter().map(|it| it.address)
    }
}

/// What relocations put into the slots of stubs, sorted by address.
fn slots<'d>(elf: &Elf<'d>, table: &Table<'d>) -> Vec<Slot<'d>> {
    let mut slots = Vec::new();
    let mut left = MAX_RELOCATIONS;
    let (named, own) = match elf.machine {
        EM_X86_64 => ([R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT], R_X86_64_IRELATIVE),
        _ => ([R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT], R_AARCH64_IRELATIVE),
    };
    for section in elf.sections.iter().filter(|it| it.kind == SHT_RELA && it.is_loaded()) {
        let Ok(relocations) = elf.bytes_of(section) else { continue };
        let symbols = elf.sections.get(section.link).filter(|_| section.link != 0);
        let strings = symbols.and_then(|it| elf.sections.get(it.link));
        let bytes = |section: Option<&Section<'_>>| section.and_then(|it| elf.bytes_of(it).ok());
        let symbols = array::<Sym64<Endianness>>(bytes(symbols).unwrap_or_default());
        let strings = bytes(strings).unwrap_or_default();
        let relocations = array::<Rela64<Endianness>>(relocations);
        let relocations = relocations.get(..left).unwrap_or(relocations);
        left -= relocations.len();
        for relocation in relocations {
            let kind = relocation.r_type(elf.endian, false);
            let name = if named.contains(&kind) {
                let symbol = symbols.get(relocation.r_sym(elf.endian, false) as usize);
                let at = symbol.map(|it| it.st_name.get(elf.endian) as usize);
                at.and_then(|at| strings.get(at..)).map(name_in)
            } else if kind == own {
                let resolver = relocation.r_addend.get(elf.endian).cast_unsigned();
                table.find(resolver).filter(|it| it.start == resolver).map(|it| it.name)
            } else {
                None
            };
            if let Some(name) = name.filter(|name| !name.is_empty())
                && slots.len() < MAX_STUBS
            {
                slots.push(Slot { address: relocation.r_offset.get(elf.endian), name });
            }
        }
    }
    slots.sort_unstable_by_key(|it| it.address);
    slots.dedup_by_key(|it| it.address);
    slots
}

fn array<T: object::Pod>(bytes: &[u8]) -> &[T] {
    let count = bytes.len() / size_of::<T>();
    object::pod::slice_from_bytes(bytes, count).map_or(&[], |(array, _)| array)
}

/// A stub that jumps to the address in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Jump {
    address: u64,
    bytes: u8,
    slot: u64,
}

/// Each entry of 8 or 16 bytes has `jmp *slot(%rip)`, at its begin or behind `endbr64`, also with the prefix
/// `bnd`.
fn x86_64(code: &[u8], start: u64, section: &Section<'_>) -> Vec<Jump> {
    const JUMP: [u8; 2] = [0xff, 0x25];
    // `.plt.got` without marks has entries of 8 bytes.
    let bytes: u8 = if section.entry_bytes == 8 { 8 } else { 16 };
    let entries = code.chunks_exact(bytes.into());
    let jumps = (0..).zip(entries).filter_map(|(number, entry)| {
        let address = start.checked_add(u64::from(bytes).checked_mul(number)?)?;
        let at = (0..=5).find(|&at| entry.get(at..).is_some_and(|it| it.starts_with(&JUMP)))?;
        let distance = i32::from_le_bytes(*entry.get(at + JUMP.len()..)?.first_chunk()?);
        let next = address.checked_add((at + JUMP.len() + size_of::<i32>()) as u64)?;
        let slot = next.wrapping_add_signed(distance.into());
        Some(Jump { address, bytes, slot })
    });
    jumps.collect()
}

/// Each stub has `adrp x16, page; ldr x17, [x16, offset]; add x16, x16, offset; br x17`, and may begin with
/// `bti c`.
fn aarch64(code: &[u8], start: u64) -> Vec<Jump> {
    const BTI_C: u32 = 0xd503_245f;
    let (instructions, _) = code.as_chunks::<INSTRUCTION_BYTES>();
    let instructions: Vec<_> = instructions.iter().map(|it| u32::from_le_bytes(*it)).collect();
    let mut jumps = Vec::new();
    for (at, pair) in instructions.windows(2).enumerate() {
        let &[adrp, ldr] = pair else { continue };
        // To x16, and from there to x17.
        if adrp & 0x9f00_001f != 0x9000_0010 || ldr & 0xffc0_03ff != 0xf940_0211 {
            continue;
        }
        let pages = i64::from((adrp >> 5 & 0x7_ffff) << 2 | adrp >> 29 & 3) << 43 >> 43;
        let address = start.wrapping_add((at * INSTRUCTION_BYTES) as u64);
        let page = (address & !0xfff).wrapping_add_signed(pages << 12);
        let slot = page.wrapping_add(u64::from(ldr >> 10 & 0xfff) * 8);
        let is_marked =
            at.checked_sub(1).and_then(|before| instructions.get(before)) == Some(&BTI_C);
        // What lies between the branch and the next stub is padding, or signs the address that is taken.
        let rest = instructions.get(at..).unwrap_or_default();
        let Some(last) = rest.iter().take(6).position(|it| it & 0xffff_fc1f == 0xd61f_0000) else {
            continue;
        };
        let before = u8::from(is_marked) * 4;
        let Ok(bytes) = u8::try_from((last + 1) * INSTRUCTION_BYTES) else { continue };
        let address = address.wrapping_sub(before.into());
        jumps.push(Jump { address, bytes: bytes + before, slot });
    }
    jumps
}
