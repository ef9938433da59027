//! Where an ELF file has its call frame information, and where its code is.

use std::{borrow::Cow, fmt, ops::Range};

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};
use object::{
    Endianness,
    elf::{
        CompressionHeader64, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, EM_AARCH64, EM_X86_64, ET_REL,
        FileHeader32, FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_LOAD, ProgramHeader64, SHT_DYNSYM,
        SHT_NOBITS, SHT_SYMTAB, SectionHeader64, Sym64,
    },
    read::{
        ReadRef, SectionIndex,
        elf::{
            CompressionHeader as _, FileHeader as _, ProgramHeader as _, SectionHeader as _,
            SectionTable, Sym as _,
        },
    },
};

use super::{
    described::Section,
    pclntab::Pclntab,
    unpack::{self, Packing},
};

/// Most bytes of call frame information that are read of a file. The largest programs have a tenth.
pub const MOST_BYTES: u64 = 256 << 20;
/// Most bytes of `.eh_frame_hdr` that are looked at: its begin says where the rest is.
const HEADER_BYTES: u64 = 64;
/// Most executable segments. Real files have one or two, and each row is looked up among them.
const MOST_SEGMENTS: usize = 64;
/// Most bytes of a table of symbols, and of its names, to look for functions that matter in.
const MOST_SYMBOL_BYTES: u64 = 2 << 20;
/// Most of these functions. Each has a symbol for programs and one for debuggers, and other names.
const MOST_EXITS: usize = 16;
/// A stub on x86-64, and the part that all of a section share.
const STUB_BYTES: u64 = 16;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `bti c`.
const BTI: [u8; 4] = 0xd503_245f_u32.to_le_bytes();

/// Why a file has no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoTable {
    /// It can't be read, or its headers lead outside of it.
    #[error("it can't be read, or is cut short")]
    Unreadable,
    /// It is something else.
    #[error("not an ELF file")]
    NotElf,
    /// It is for 32 bits.
    #[error("an ELF file of 32 bits")]
    Bits32,
    /// It is for a machine that we have no rules for.
    #[error("an ELF file for another machine")]
    Machine,
    /// Its parts have no addresses yet.
    #[error("an object that is not linked (.o, .ko)")]
    NotLinked,
    /// It has no code, or none that is described.
    #[error("no .eh_frame, nor .debug_frame, nor Go's table")]
    NoInfo,
    /// What describes its code is compressed, and is damaged, too large, or packed in another way.
    #[error("its .debug_frame can't be unpacked")]
    Compressed,
    /// It goes beyond a limit, such as [`MOST_BYTES`].
    #[error("too large")]
    TooLarge,
}

/// The machine that a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// aarch64.
    Aarch64,
}

impl Machine {
    /// The one that we run on.
    pub const NATIVE: Self =
        if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X86_64 => "x86-64",
            Self::Aarch64 => "aarch64",
        })
    }
}

/// Where the information was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The section `.eh_frame`.
    EhFrame,
    /// What the segment `PT_GNU_EH_FRAME` leads to, in a file without section headers.
    EhFrameHdr,
    /// The section `.debug_frame`.
    DebugFrame,
    /// The section `.gopclntab`.
    Pclntab,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EhFrame => ".eh_frame",
            Self::EhFrameHdr => "PT_GNU_EH_FRAME",
            Self::DebugFrame => ".debug_frame",
            Self::Pclntab => ".gopclntab",
        })
    }
}

/// The executable segments of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    addresses: Range<u64>,
    offset: u64,
}

impl Code {
    /// One segment at these addresses, and at this offset in the file.
    #[cfg(test)]
    pub(super) fn of(addresses: Range<u64>, offset: u64) -> Self {
        Self(vec![Segment { addresses, offset }])
    }

    /// The part of a range of addresses that lies in the segment of its first one, as an offset in the
    /// file, and how long it is.
    #[must_use]
    pub fn offsets(&self, addresses: &Range<u64>) -> Option<(u64, u64)> {
        let start = addresses.start;
        let segment = self.0.iter().find(|it| it.addresses.contains(&start))?;
        let bytes = addresses.end.min(segment.addresses.end).saturating_sub(start);
        Some(((start - segment.addresses.start).checked_add(segment.offset)?, bytes))
    }

    /// Where the segments are in the file.
    pub(super) fn in_file(&self) -> impl Iterator<Item = Range<u64>> {
        let bytes = |it: &Segment| it.addresses.end - it.addresses.start;
        self.0.iter().map(move |it| it.offset..it.offset.saturating_add(bytes(it)))
    }

    /// The offset in the file of an address.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        self.offsets(&(address..address.checked_add(1)?)).map(|(offset, _)| offset)
    }
}

/// What a file says of its frames.
#[derive(Clone, Debug)]
pub struct Source<'d> {
    /// The machine.
    pub machine: Machine,
    /// What describes code: where two do, the first holds.
    pub sections: Vec<Section<'d>>,
    /// The code.
    pub code: Code,
    /// Stubs that lead to other files, of which not every linker says anything.
    pub stubs: Vec<Stubs>,
}

/// A section of stubs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stubs {
    /// Where they are.
    pub addresses: Range<u64>,
    /// Whether each also has what finds the function when it is called first, and all of them
    /// together a part that they share, at the begin.
    pub is_lazy: bool,
    /// Whether each, or on aarch64 the part that they share, begins with an instruction that says that it
    /// may be jumped to (`endbr64`, `bti c`).
    pub is_marked: bool,
}

type Header = FileHeader64<Endianness>;
/// The files that we read are of little endian.
const ENDIAN: Endianness = Endianness::Little;

impl<'d> Source<'d> {
    /// Looks into an ELF file.
    pub fn find<R: ReadRef<'d>>(data: R) -> Result<Self, NoTable> {
        let ident = data.read_bytes_at(0, 4).map_err(|()| NoTable::NotElf)?;
        if ident != b"\x7fELF" {
            return Err(NoTable::NotElf);
        }
        let Ok(header) = Header::parse(data) else {
            let is_32 = FileHeader32::<Endianness>::parse(data).is_ok();
            return Err(if is_32 { NoTable::Bits32 } else { NoTable::Unreadable });
        };
        if header.endian() != Ok(ENDIAN) {
            return Err(NoTable::Machine);
        }
        let machine = match header.e_machine(ENDIAN) {
            EM_X86_64 => Machine::X86_64,
            EM_AARCH64 => Machine::Aarch64,
            _ => return Err(NoTable::Machine),
        };
        if header.e_type(ENDIAN) == ET_REL {
            return Err(NoTable::NotLinked);
        }
        let segments = header.program_headers(ENDIAN, data).map_err(|_| NoTable::Unreadable)?;
        let executable = segments
            .iter()
            .filter(|it| it.p_type(ENDIAN) == PT_LOAD && it.p_flags(ENDIAN) & PF_X != 0);
        let code = Code(executable.filter_map(segment).take(MOST_SEGMENTS + 1).collect());
        match code.0.len() {
            0 => return Err(NoTable::NoInfo),
            1..=MOST_SEGMENTS => {}
            _ => return Err(NoTable::TooLarge),
        }
        // A file may have lost its section headers, or be loaded without.
        let sections = header.sections(ENDIAN, data);
        let mut lacks = sections.is_err().then_some(NoTable::Unreadable);
        let sections = sections.unwrap_or_default();
        let go = pclntab(&sections, data).filter(|_| machine == Machine::X86_64);
        // Go's linker says the same in both.
        let debug_frame = if go.is_none() { debug_frame(&sections, data) } else { None };
        let eh_frame = eh_frame(&sections, data).or_else(|| eh_frame_of_segment(segments, data));
        let found = [eh_frame, go, debug_frame];
        let mut described = Vec::new();
        for section in found.into_iter().flatten() {
            match section {
                Ok(section) => described.push(section),
                Err(why) => lacks = Some(why),
            }
        }
        // What is left of the file says little.
        if let Some(why) = lacks.filter(|_| described.is_empty()) {
            return Err(why);
        }
        let stubs = stubs(&sections, data);
        Ok(Self { machine, sections: described, code, stubs })
    }
}

fn stubs<'d, R: ReadRef<'d>>(sections: &Sections<'d, R>, data: R) -> Vec<Stubs> {
    let names = [&b".plt"[..], b".plt.got", b".plt.sec"];
    let stubs = names.into_iter().filter_map(|name| {
        let (_, section) = by_name(sections, name)?;
        let start = section.sh_addr(ENDIAN);
        let addresses = start..start.checked_add(section.sh_size(ENDIAN))?;
        let first = data.read_bytes_at(section.sh_offset(ENDIAN), 8).unwrap_or_default();
        let is_lazy = name == b".plt" && is_shared_part(first);
        let own = section.sh_offset(ENDIAN).checked_add(if is_lazy { STUB_BYTES } else { 0 })?;
        let is_marked = first.starts_with(&BTI) || data.read_bytes_at(own, 4) == Ok(&ENDBR64);
        Some(Stubs { addresses, is_lazy, is_marked })
    });
    stubs.collect()
}

/// Where the functions that end a program or a thread are in the file, if it has them.
pub(super) fn exits<'d, R: ReadRef<'d>>(data: R, code: &Code) -> Vec<u64> {
    let Ok(header) = Header::parse(data) else { return Vec::new() };
    let sections = header.sections(ENDIAN, data).unwrap_or_default();
    let of_kind = |kind| {
        let table = sections.iter().find(|it| it.sh_type(ENDIAN) == kind)?;
        let names = sections.section(table.link(ENDIAN)).ok()?;
        if table.sh_size(ENDIAN).max(names.sh_size(ENDIAN)) > MOST_SYMBOL_BYTES {
            return None;
        }
        let names = names.data(ENDIAN, data).ok()?;
        let symbols: &[Sym64<Endianness>] = table.data_as_array(ENDIAN, data).ok()?;
        Some(symbols.iter().filter_map(move |symbol| {
            let name = names.get(usize::try_from(symbol.st_name(ENDIAN)).ok()?..)?;
            let is_exit = name.starts_with(b"exit\0") || name.starts_with(b"pthread_exit\0");
            (is_exit && !symbol.is_undefined(ENDIAN)).then(|| symbol.st_value(ENDIAN))
        }))
    };
    let addresses = [SHT_DYNSYM, SHT_SYMTAB].into_iter().filter_map(of_kind).flatten();
    addresses.filter_map(|address| code.offset(address)).take(MOST_EXITS).collect()
}

/// Whether stubs begin with the part that finds functions: static programs have none. It pushes first, on
/// aarch64 after a landing pad where these are used.
fn is_shared_part(first: &[u8]) -> bool {
    const PUSH: [u8; 2] = [0xff, 0x35];
    const STP: [u8; 4] = 0xa9bf_7bf0_u32.to_le_bytes();
    first.starts_with(&PUSH) || first.strip_prefix(&BTI).unwrap_or(first).starts_with(&STP)
}

fn segment(header: &ProgramHeader64<Endianness>) -> Option<Segment> {
    let start = header.p_vaddr(ENDIAN);
    let (offset, bytes) = header.file_range(ENDIAN);
    // What is beyond the file's bytes is zero.
    let addresses = start..start.checked_add(bytes)?;
    offset.checked_add(bytes).map(|_| Segment { addresses, offset })
}

type Sections<'d, R> = SectionTable<'d, Header, R>;
type Found<'d> = Option<Result<Section<'d>, NoTable>>;

fn eh_frame<'d, R: ReadRef<'d>>(sections: &Sections<'d, R>, data: R) -> Found<'d> {
    let (_, section) = by_name(sections, b".eh_frame")?;
    let address = |name| by_name(sections, name).map(|(_, it)| it.sh_addr(ENDIAN));
    let mut bases = BaseAddresses::default().set_eh_frame(section.sh_addr(ENDIAN));
    if let Some(text) = address(b".text") {
        bases = bases.set_text(text);
    }
    if let Some(got) = address(b".got") {
        bases = bases.set_got(got);
    }
    if let Some(header) = address(b".eh_frame_hdr") {
        bases = bases.set_eh_frame_hdr(header);
    }
    Some(bytes(section, data).map(|bytes| Section { place: Place::EhFrame, bytes, bases }))
}

fn debug_frame<'d, R: ReadRef<'d>>(sections: &Sections<'d, R>, data: R) -> Found<'d> {
    let bytes = match by_name(sections, b".debug_frame") {
        Some((_, section)) => match section.compression(ENDIAN, data) {
            Ok(None) => bytes(section, data),
            Ok(Some((header, offset, bytes))) => unpacked(header, offset, bytes, data),
            Err(_) => Err(NoTable::Unreadable),
        },
        None => {
            let (_, section) = by_name(sections, b".zdebug_frame")?;
            let packed = if section.sh_size(ENDIAN) <= unpack::MOST_BYTES {
                section.data(ENDIAN, data).ok()
            } else {
                None
            };
            packed.and_then(unpack::unpack_old).map(Cow::Owned).ok_or(NoTable::Compressed)
        }
    };
    let bases = BaseAddresses::default();
    Some(bytes.map(|bytes| Section { place: Place::DebugFrame, bytes, bases }))
}

fn unpacked<'d, R: ReadRef<'d>>(
    header: &CompressionHeader64<Endianness>,
    offset: u64,
    bytes: u64,
    data: R,
) -> Result<Cow<'d, [u8]>, NoTable> {
    let packing = match header.ch_type(ENDIAN) {
        ELFCOMPRESS_ZLIB => Packing::Zlib,
        ELFCOMPRESS_ZSTD => Packing::Zstd,
        _ => return Err(NoTable::Compressed),
    };
    if bytes > unpack::MOST_BYTES {
        return Err(NoTable::TooLarge);
    }
    let packed = data.read_bytes_at(offset, bytes).map_err(|()| NoTable::Unreadable)?;
    let unpacked = unpack::unpack(packing, packed, header.ch_size(ENDIAN));
    unpacked.map(Cow::Owned).ok_or(NoTable::Compressed)
}

/// Go's, if it is one that we can read.
fn pclntab<'d, R: ReadRef<'d>>(sections: &Sections<'d, R>, data: R) -> Found<'d> {
    let (_, section) = by_name(sections, b".gopclntab")?;
    let bytes = bytes(section, data).ok().filter(|it| Pclntab::new(it).is_some())?;
    Some(Ok(Section { place: Place::Pclntab, bytes, bases: BaseAddresses::default() }))
}

/// A section that has bytes in the file: what was split off from it has its debug file only, and the
/// other way round.
fn by_name<'d, R: ReadRef<'d>>(
    sections: &Sections<'d, R>,
    name: &[u8],
) -> Option<(SectionIndex, &'d SectionHeader64<Endianness>)> {
    let found = sections.section_by_name(ENDIAN, name)?;
    (found.1.sh_type(ENDIAN) != SHT_NOBITS && found.1.sh_size(ENDIAN) > 0).then_some(found)
}

fn bytes<'d, R: ReadRef<'d>>(
    section: &SectionHeader64<Endianness>,
    data: R,
) -> Result<Cow<'d, [u8]>, NoTable> {
    if section.sh_size(ENDIAN) > MOST_BYTES {
        return Err(NoTable::TooLarge);
    }
    section.data(ENDIAN, data).map(Cow::Borrowed).map_err(|_| NoTable::Unreadable)
}

/// What a loaded file's own unwinder uses.
fn eh_frame_of_segment<'d, R: ReadRef<'d>>(
    segments: &'d [ProgramHeader64<Endianness>],
    data: R,
) -> Found<'d> {
    // What was stripped of it may have left the segment, of no bytes.
    let is_it =
        |it: &&ProgramHeader64<_>| it.p_type(ENDIAN) == PT_GNU_EH_FRAME && it.p_filesz(ENDIAN) > 0;
    let header = segments.iter().find(is_it)?;
    let at = header.p_vaddr(ENDIAN);
    let (offset, size) = header.file_range(ENDIAN);
    let Ok(bytes) = data.read_bytes_at(offset, size.min(HEADER_BYTES)) else {
        return Some(Err(NoTable::Unreadable));
    };
    let bases = BaseAddresses::default().set_eh_frame_hdr(at);
    let parsed = EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok()?;
    let Pointer::Direct(eh_frame) = parsed.eh_frame_ptr() else { return None };
    let loaded = segments.iter().filter(|it| it.p_type(ENDIAN) == PT_LOAD);
    let segment = loaded.filter_map(segment).find(|it| it.addresses.contains(&eh_frame))?;
    // It ends at an empty entry, which comes before the segment's end.
    let size = (segment.addresses.end - eh_frame).min(MOST_BYTES);
    let offset = segment.offset.checked_add(eh_frame - segment.addresses.start)?;
    let bytes = data.read_bytes_at(offset, size).map_err(|()| NoTable::Unreadable);
    let (place, bases) = (Place::EhFrameHdr, bases.set_eh_frame(eh_frame));
    Some(bytes.map(|bytes| Section { place, bytes: Cow::Borrowed(bytes), bases }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_of_static_programs_share_nothing() {
        // push GOT+8(%rip); stp x16, x30, [sp, #-16]!, also behind bti c
        for shared in [
            &[0xff, 0x35, 0xe2, 0x2f, 0, 0, 0xff, 0x25][..],
            &[0xf0, 0x7b, 0xbf, 0xa9, 0x10, 0, 0, 0x90],
            &[0x5f, 0x24, 0x03, 0xd5, 0xf0, 0x7b, 0xbf, 0xa9],
        ] {
            assert!(is_shared_part(shared), "{shared:x?}");
        }
        // jmp *GOT(%rip); adrp x16, also behind bti c
        for own in [
            &[0xff, 0x25, 0xe2, 0x2f, 0, 0, 0x66, 0x90][..],
            &[0x10, 0, 0, 0x90, 0x11, 0x02, 0x40, 0xf9],
            &[0x5f, 0x24, 0x03, 0xd5, 0x10, 0, 0, 0x90],
            &[],
        ] {
            assert!(!is_shared_part(own), "{own:x?}");
        }
    }
}
