//! Where an ELF file has its call frame information, and where its code is.

use std::{fmt, ops::Range};

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};
use object::{
    Endianness,
    elf::{
        EM_AARCH64, EM_X86_64, FileHeader32, FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_LOAD,
        ProgramHeader64, SHF_COMPRESSED, SHT_NOBITS, SectionHeader64,
    },
    read::{
        ReadRef, SectionIndex,
        elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable},
    },
};

/// Most bytes of call frame information that are read of a file. The largest programs have a tenth.
pub const MOST_BYTES: u64 = 256 << 20;
/// Most bytes of `.eh_frame_hdr` that are looked at: its begin says where the rest is.
const HEADER_BYTES: u64 = 64;
/// Most executable segments. Real files have one or two, and each row is looked up among them.
const MOST_SEGMENTS: usize = 64;

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
    /// It has no code, or none that is described.
    #[error("no .eh_frame, nor .debug_frame")]
    NoInfo,
    /// What describes its code is compressed.
    #[error("its .debug_frame is compressed")]
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
    /// Nowhere, but the code is that of the vDSO, and simple enough to be read itself.
    Code,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EhFrame => ".eh_frame",
            Self::EhFrameHdr => "PT_GNU_EH_FRAME",
            Self::DebugFrame => ".debug_frame",
            Self::Code => "the code itself",
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

    /// Where in the file the segments are.
    pub fn places(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|it| {
            let bytes = it.addresses.end - it.addresses.start;
            it.offset..it.offset.saturating_add(bytes)
        })
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
    /// Where the bytes were found.
    pub place: Place,
    /// The bytes.
    pub bytes: &'d [u8],
    /// What the pointers in them are relative to.
    pub bases: BaseAddresses,
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
}

type Header = FileHeader64<Endianness>;
/// The files that we read are of little endian.
const ENDIAN: Endianness = Endianness::Little;

impl<'d> Source<'d> {
    /// Looks into an ELF file.
    pub fn find<R: ReadRef<'d>>(data: R) -> Result<Self, NoTable> {
        Self::find_or(data, None)
    }

    /// Looks into the vDSO, which is in memory as in a file; what it does not say is left to its code.
    pub fn of_vdso(data: &'d [u8]) -> Result<Self, NoTable> {
        Self::find_or(data, Some(Ok((Place::Code, &[], BaseAddresses::default()))))
    }

    fn find_or<R: ReadRef<'d>>(data: R, otherwise: Found<'d>) -> Result<Self, NoTable> {
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
        let sections = header.sections(ENDIAN, data).unwrap_or_default();
        let found = eh_frame(&sections, data)
            .or_else(|| eh_frame_of_segment(segments, data))
            .or_else(|| debug_frame(&sections, data))
            .or(otherwise);
        let (place, bytes, bases) = found.unwrap_or(Err(NoTable::NoInfo))?;
        Ok(Self { machine, place, bytes, bases, code, stubs: stubs(&sections, data) })
    }
}

fn stubs<'d, R: ReadRef<'d>>(sections: &Sections<'d, R>, data: R) -> Vec<Stubs> {
    let names = [&b".plt"[..], b".plt.got", b".plt.sec"];
    let stubs = names.into_iter().filter_map(|name| {
        let (_, section) = by_name(sections, name)?;
        let start = section.sh_addr(ENDIAN);
        let addresses = start..start.checked_add(section.sh_size(ENDIAN))?;
        let first = data.read_bytes_at(section.sh_offset(ENDIAN), 8).unwrap_or_default();
        Some(Stubs { addresses, is_lazy: name == b".plt" && is_shared_part(first) })
    });
    stubs.collect()
}

/// Whether stubs begin with the part that finds functions: static programs have none. It pushes first, on
/// aarch64 after a landing pad where these are used.
fn is_shared_part(first: &[u8]) -> bool {
    const PUSH: [u8; 2] = [0xff, 0x35];
    const STP: [u8; 4] = 0xa9bf_7bf0_u32.to_le_bytes();
    const BTI: [u8; 4] = 0xd503_245f_u32.to_le_bytes();
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
type Found<'d> = Option<Result<(Place, &'d [u8], BaseAddresses), NoTable>>;

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
    Some(bytes(section, data).map(|bytes| (Place::EhFrame, bytes, bases)))
}

fn debug_frame<'d, R: ReadRef<'d>>(sections: &Sections<'d, R>, data: R) -> Found<'d> {
    let (_, section) = by_name(sections, b".debug_frame")?;
    if section.sh_flags(ENDIAN) & u64::from(SHF_COMPRESSED) != 0 {
        return Some(Err(NoTable::Compressed));
    }
    let bytes = bytes(section, data);
    Some(bytes.map(|bytes| (Place::DebugFrame, bytes, BaseAddresses::default())))
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
) -> Result<&'d [u8], NoTable> {
    if section.sh_size(ENDIAN) > MOST_BYTES {
        return Err(NoTable::TooLarge);
    }
    section.data(ENDIAN, data).map_err(|_| NoTable::Unreadable)
}

/// What a loaded file's own unwinder uses.
fn eh_frame_of_segment<'d, R: ReadRef<'d>>(
    segments: &'d [ProgramHeader64<Endianness>],
    data: R,
) -> Found<'d> {
    let header = segments.iter().find(|it| it.p_type(ENDIAN) == PT_GNU_EH_FRAME)?;
    let at = header.p_vaddr(ENDIAN);
    let (offset, size) = header.file_range(ENDIAN);
    let bytes = data.read_bytes_at(offset, size.min(HEADER_BYTES)).ok()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(at);
    let parsed = EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok()?;
    let Pointer::Direct(eh_frame) = parsed.eh_frame_ptr() else { return None };
    let loaded = segments.iter().filter(|it| it.p_type(ENDIAN) == PT_LOAD);
    let segment = loaded.filter_map(segment).find(|it| it.addresses.contains(&eh_frame))?;
    // It ends at an empty entry, which comes before the segment's end.
    let size = (segment.addresses.end - eh_frame).min(MOST_BYTES);
    let offset = segment.offset.checked_add(eh_frame - segment.addresses.start)?;
    let bytes = data.read_bytes_at(offset, size).map_err(|()| NoTable::Unreadable);
    Some(bytes.map(|bytes| (Place::EhFrameHdr, bytes, bases.set_eh_frame(eh_frame))))
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
