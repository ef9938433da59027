//! Finds the unwind information of an ELF file, and where its code is.

mod code;
mod stubs;

use std::{borrow::Cow, fmt};

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};
use object::{
    Endianness,
    elf::{
        CompressionHeader64, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, EM_AARCH64, EM_X86_64, ET_REL,
        FileHeader32, FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_LOAD, ProgramHeader64, SHT_NOBITS,
        SectionHeader64,
    },
    read::{
        ReadRef, SectionIndex,
        elf::{
            CompressionHeader as _, FileHeader as _, ProgramHeader as _, SectionHeader as _,
            SectionTable,
        },
    },
};
use profiler_elf::unpack::{self, Packing};

pub use self::{code::Code, stubs::Stubs};
use self::{code::segment, stubs::stubs};
use crate::{
    NoTable,
    pclntab::{self, Version},
    section::Section,
};

/// The most bytes of a section with unwind information. The largest programs have a tenth of that.
pub const MAX_BYTES: u64 = 256 << 20;
/// The most bytes of a compressed section, packed and unpacked. That of the largest programs is some 10 MiB.
const MAX_PACKED_BYTES: u64 = 64 << 20;
/// The most bytes of `.eh_frame_hdr` that are read: its start says where `.eh_frame` is.
const HEADER_BYTES: u64 = 64;
/// The most bytes of Go's `moduledata` that are read.
const MODULE_BYTES: u64 = 1 << 10;
/// The most executable segments. Real files have one or two, and each row is looked up among them.
const MAX_SEGMENTS: usize = 64;

/// The machine that a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// aarch64.
    Aarch64,
}

impl Machine {
    /// The machine that we run on.
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

/// Where unwind information was found.
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

/// The unwind information of a file.
#[derive(Clone, Debug)]
pub struct Source<'d> {
    /// The machine.
    pub machine: Machine,
    /// Sections with unwind information. Where two describe the same code, the first wins.
    pub sections: Vec<Section<'d>>,
    /// Where its code is.
    pub code: Code,
    /// Stubs that lead to other files, which not every linker describes.
    pub stubs: Vec<Stubs>,
    /// Whether there is a `.gopclntab` of a version that can't be read.
    pub is_newer_go: bool,
}

pub(crate) type Header = FileHeader64<Endianness>;
/// The files that we read are of little endian.
pub(crate) const ENDIAN: Endianness = Endianness::Little;

impl<'d> Source<'d> {
    /// Finds what an ELF file has, without reading rows.
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
        let code = Code::of_segments(executable.filter_map(segment).take(MAX_SEGMENTS + 1));
        match code.segments() {
            0 => return Err(NoTable::NoInfo),
            1..=MAX_SEGMENTS => {}
            _ => return Err(NoTable::TooLarge),
        }
        // Section headers may be stripped, as in a file that is only loaded.
        let sections = header.sections(ENDIAN, data);
        let mut lacks = sections.is_err().then_some(NoTable::Unreadable);
        let sections = sections.unwrap_or_default();
        let (go, is_newer_go) = match pclntab(&sections, data) {
            Go::Known(section) => (Some(Ok(section)), false),
            Go::Newer => (None, true),
            Go::None => (None, false),
        };
        // Go's linker puts the same into both.
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
        // A damaged section matters where there is no other.
        if let Some(why) = lacks.filter(|_| described.is_empty()) {
            return Err(why);
        }
        let stubs = stubs(&sections, data);
        Ok(Self { machine, sections: described, code, stubs, is_newer_go })
    }
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
            let packed = if section.sh_size(ENDIAN) <= MAX_PACKED_BYTES {
                section.data(ENDIAN, data).ok()
            } else {
                None
            };
            packed
                .and_then(|packed| unpack::unpack_zdebug(packed, MAX_PACKED_BYTES))
                .map(Cow::Owned)
                .ok_or(NoTable::Compressed)
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
    if bytes > MAX_PACKED_BYTES {
        return Err(NoTable::TooLarge);
    }
    let packed = data.read_bytes_at(offset, bytes).map_err(|()| NoTable::Unreadable)?;
    let unpacked = unpack::unpack(packing, packed, header.ch_size(ENDIAN), MAX_PACKED_BYTES);
    unpacked.map(Cow::Owned).ok_or(NoTable::Compressed)
}

/// Go's table.
enum Go<'d> {
    None,
    Newer,
    Known(Section<'d>),
}

/// Go's, if it is one that we can read.
fn pclntab<'d, R: ReadRef<'d>>(sections: &Sections<'d, R>, data: R) -> Go<'d> {
    // Before Go 1.26, programs that are loaded anywhere have it among what is relocated.
    let names = [&b".gopclntab"[..], b".data.rel.ro.gopclntab"];
    let Some((_, section)) = names.into_iter().find_map(|name| by_name(sections, name)) else {
        return Go::None;
    };
    let Ok(bytes) = bytes(section, data) else { return Go::None };
    let text = match Version::of(&bytes) {
        Version::Known { text: Some(text) } => Some(text),
        Version::Known { text: None } => module(sections, data)
            .and_then(|module| pclntab::text_of_module(module, section.sh_addr(ENDIAN))),
        Version::Newer => None,
        Version::Other => return Go::None,
    };
    // A later Go may also have another layout of what tells where the code begins.
    let Some(text) = text else { return Go::Newer };
    let bases = BaseAddresses::default().set_text(text);
    Go::Known(Section { place: Place::Pclntab, bytes, bases })
}

/// What Go's linker says of the program as a whole (Go 1.26).
fn module<'d, R: ReadRef<'d>>(sections: &Sections<'d, R>, data: R) -> Option<&'d [u8]> {
    let (_, section) = by_name(sections, b".go.module")?;
    let bytes = section.sh_size(ENDIAN).min(MODULE_BYTES);
    data.read_bytes_at(section.sh_offset(ENDIAN), bytes).ok()
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
    if section.sh_size(ENDIAN) > MAX_BYTES {
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
    let size = (segment.addresses.end - eh_frame).min(MAX_BYTES);
    let offset = segment.offset.checked_add(eh_frame - segment.addresses.start)?;
    let bytes = data.read_bytes_at(offset, size).map_err(|()| NoTable::Unreadable);
    let (place, bases) = (Place::EhFrameHdr, bases.set_eh_frame(eh_frame));
    Some(bytes.map(|bytes| Section { place, bytes: Cow::Borrowed(bytes), bases }))
}
