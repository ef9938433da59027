//! What is asked of ELF files that others have written, and may be writing still.
//!
//! Files are read by `pread`, not mapped: one that is truncated meanwhile gives an error and no
//! SIGBUS. What headers claim is believed within a budget. A question that has no answer within it
//! has none.

pub mod symbols;

use std::{cell::Cell, ffi::OsString, fs::File, ops::Range, os::unix::ffi::OsStringExt as _};

use object::{
    Endian as _, Endianness,
    elf::{ELF_NOTE_GNU, FileHeader32, FileHeader64, NT_GNU_BUILD_ID, PF_X, PT_LOAD, SHT_NOBITS},
    read::{
        ReadCache, ReadCacheOps, ReadRef,
        elf::{FileHeader, NoteIterator, ProgramHeader as _, SectionHeader as _},
    },
};

use crate::build_id::BuildId;

/// The most that is read of a file for one question. Headers of large programs take some kilobytes.
const BUDGET: u64 = 4 << 20;
/// What the name of a section costs at most: `ReadCache` looks no further for its end.
const NAME_COST: u64 = 4096;

/// A file's header, of either class.
trait Header: FileHeader<Endian = Endianness> {}
impl<H: FileHeader<Endian = Endianness>> Header for H {}

/// The build id, in a segment of notes, where the kernel looks, or in a section.
pub(crate) fn build_id(file: &File) -> Option<BuildId> {
    read(file, |data| {
        build_id_in::<FileHeader64<_>>(data).or_else(|| build_id_in::<FileHeader32<_>>(data))
    })
}

fn build_id_in<H: Header>(data: Pieces<'_>) -> Option<BuildId> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).unwrap_or_default().iter();
    let mut in_segments = segments.filter_map(|it| it.notes(endian, data).ok()?);
    let found = in_segments.find_map(|notes| build_id_among::<H>(endian, notes));
    found.or_else(|| {
        let sections = header.section_headers(endian, data).ok()?.iter();
        let mut in_sections = sections.filter_map(|it| it.notes(endian, data).ok()?);
        in_sections.find_map(|notes| build_id_among::<H>(endian, notes))
    })
}

fn build_id_among<H: Header>(endian: Endianness, notes: NoteIterator<'_, H>) -> Option<BuildId> {
    // After a note that can't be read there is no other.
    notes.flatten().find_map(|note| {
        let is_it = note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID;
        BuildId::from_slice(note.desc()).filter(|_| is_it)
    })
}

/// What `.gnu_debuglink` says: the debug file's name and the checksum of all its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DebugLink {
    pub(crate) name: OsString,
    pub(crate) crc: u32,
}

/// The link to the debug file:
/// <https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html>, a name that
/// ends with a zero, filled up to four bytes, and the checksum.
pub(crate) fn debug_link(file: &File) -> Option<DebugLink> {
    read(file, |data| {
        debug_link_in::<FileHeader64<_>>(data).or_else(|| debug_link_in::<FileHeader32<_>>(data))
    })
}

fn debug_link_in<H: Header>(data: Pieces<'_>) -> Option<DebugLink> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let (_, section) = sections.section_by_name(endian, b".gnu_debuglink")?;
    if section.sh_type(endian) == SHT_NOBITS {
        return None;
    }
    let bytes = section.data(endian, data).ok()?;
    let name = bytes.split(|&byte| byte == 0).next()?;
    let crc = bytes.get((name.len() + 1).next_multiple_of(4)..)?.first_chunk()?;
    // It is the name of a file, and no path to one.
    let is_name = !name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..";
    let name = OsString::from_vec(name.to_vec());
    is_name.then(|| DebugLink { name, crc: endian.read_u32(*crc) })
}

/// Where a file's code is loaded, before it is moved to where there is room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Code(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    offsets: Range<u64>,
    address: u64,
}

impl Code {
    /// The address of an offset in the file.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        let segment = self.0.iter().find(|segment| segment.offsets.contains(&offset))?;
        offset.checked_sub(segment.offsets.start)?.checked_add(segment.address)
    }
}

/// Where the file's code is loaded.
pub(crate) fn code(file: &File) -> Option<Code> {
    read(file, |data| code_in::<FileHeader64<_>>(data).or_else(|| code_in::<FileHeader32<_>>(data)))
}

fn code_in<H: Header>(data: Pieces<'_>) -> Option<Code> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, data).ok()?.iter();
    let segments = headers
        .filter(|it| it.p_type(endian) == PT_LOAD && it.p_flags(endian) & PF_X != 0)
        .filter_map(|it| {
            let (start, bytes) = it.file_range(endian);
            let offsets = start..start.checked_add(bytes)?;
            Some(Segment { offsets, address: it.p_vaddr(endian).into() })
        });
    Some(Code(segments.collect()))
}

/// Whether the file has the headers of an ELF file, and all of them.
pub(crate) fn has_headers(file: &File) -> bool {
    let found = read(file, |data| {
        headers_in::<FileHeader64<_>>(data).or_else(|| headers_in::<FileHeader32<_>>(data))
    });
    found.is_some()
}

fn headers_in<H: Header>(data: Pieces<'_>) -> Option<()> {
    let header = H::parse(data).ok().filter(|it| it.is_type_64() == it.is_class_64())?;
    let endian = header.endian().ok()?;
    header.program_headers(endian, data).ok()?;
    // There may be none.
    header.sections(endian, data).ok().map(drop)
}

/// Asks a file, which need not be an ELF file.
fn read<T>(file: &File, ask: impl FnOnce(Pieces<'_>) -> Option<T>) -> Option<T> {
    read_within(file, BUDGET, ask)
}

/// Asks a file, of which not more than `budget` bytes are read.
pub(crate) fn read_within<T>(file: &File, budget: u64, ask: impl FnOnce(Pieces<'_>) -> T) -> T {
    let cache = ReadCache::new(Positioned { file, at: 0 });
    ask(Pieces { cache: &cache, budget: &Cell::new(budget) })
}

/// A file read at given places, so that its own position, which others share, stays.
#[derive(Debug)]
pub(crate) struct Positioned<'a> {
    file: &'a File,
    at: u64,
}

impl ReadCacheOps for Positioned<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(drop)
    }

    fn seek(&mut self, at: u64) -> Result<u64, ()> {
        self.at = at;
        Ok(at)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        use std::os::unix::fs::FileExt as _;
        let bytes = self.file.read_at(buffer, self.at).map_err(drop)?;
        self.at = self.at.checked_add(bytes as u64).ok_or(())?;
        Ok(bytes)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        use std::os::unix::fs::FileExt as _;
        self.file.read_exact_at(buffer, self.at).map_err(drop)
    }
}

/// The pieces of a file that have been asked for, within the budget.
#[derive(Clone, Copy)]
pub(crate) struct Pieces<'a> {
    cache: &'a ReadCache<Positioned<'a>>,
    budget: &'a Cell<u64>,
}

impl Pieces<'_> {
    fn spend(self, bytes: u64) -> Result<(), ()> {
        let left = self.budget.get().checked_sub(bytes).ok_or(())?;
        self.budget.set(left);
        Ok(())
    }
}

impl<'a> ReadRef<'a> for Pieces<'a> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.spend(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.spend(NAME_COST)?;
        self.cache.read_bytes_at_until(range, delimiter)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The headers of a 64-bit little-endian file for x86-64 without sections: of each segment its type, its
    /// offset and address, and its bytes.
    pub(crate) fn elf64_headers(segments: &[(u32, u64, u64)]) -> Vec<u8> {
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        elf.extend([3u16, 62].map(u16::to_le_bytes).concat()); // e_type, e_machine
        elf.extend(1u32.to_le_bytes()); // e_version
        elf.extend([0u64, 64, 0].map(u64::to_le_bytes).concat()); // e_entry, e_phoff, e_shoff
        elf.extend(0u32.to_le_bytes()); // e_flags
        let count = u16::try_from(segments.len()).unwrap();
        // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
        elf.extend([64, 56, count, 64, 0, 0].map(u16::to_le_bytes).concat());
        for &(kind, at, bytes) in segments {
            elf.extend([kind, 5].map(u32::to_le_bytes).concat()); // p_type, p_flags
            // p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
            elf.extend([at, at, at, bytes, bytes, 4].map(u64::to_le_bytes).concat());
        }
        elf
    }

    /// A file with one segment of notes, `notes` long as it claims.
    fn elf64(notes: &[u8], claimed: u64) -> Vec<u8> {
        [&elf64_headers(&[(4, 64 + 56, claimed)])[..], notes].concat()
    }

    /// A 32-bit big-endian file of the same.
    fn elf32(notes: &[u8]) -> Vec<u8> {
        let len = u32::try_from(notes.len()).unwrap();
        let mut elf = b"\x7fELF\x01\x02\x01\0\0\0\0\0\0\0\0\0".to_vec();
        elf.extend([2u16, 8].map(u16::to_be_bytes).concat());
        elf.extend([1u32, 0, 52, 0, 0].map(u32::to_be_bytes).concat());
        elf.extend([52u16, 32, 1, 40, 0, 0].map(u16::to_be_bytes).concat());
        elf.extend([4u32, 84, 0, 0, len, len, 4, 4].map(u32::to_be_bytes).concat());
        elf.extend(notes);
        elf
    }

    fn note(kind: u32, id: &[u8], number: fn(u32) -> [u8; 4]) -> Vec<u8> {
        let len = u32::try_from(id.len()).unwrap();
        let mut note = [number(4), number(len), number(kind), *b"GNU\0"].concat();
        note.extend(id);
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }

    /// A file that has nothing but a build id.
    pub(crate) fn with_build_id(id: &[u8]) -> Vec<u8> {
        let notes = note(3, id, u32::to_le_bytes);
        elf64(&notes, notes.len() as u64)
    }

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
        file
    }

    #[test]
    fn finds_the_build_id_in_both_classes() {
        let id = BuildId::from_slice(&[1, 2, 3, 4, 5]);
        let le = [note(1, &[9; 16], u32::to_le_bytes), note(3, &[1, 2, 3, 4, 5], u32::to_le_bytes)];
        let le = le.concat();
        assert_eq!(BuildId::of_elf(&file(&elf64(&le, le.len() as u64))), id);
        let be = note(3, &[1, 2, 3, 4, 5], u32::to_be_bytes);
        assert_eq!(BuildId::of_elf(&file(&elf32(&be))), id);
    }

    #[test]
    fn a_build_id_of_another_length_is_none() {
        for len in [0, 21, 64] {
            let notes = note(3, &vec![7; len], u32::to_le_bytes);
            assert_eq!(BuildId::of_elf(&file(&elf64(&notes, notes.len() as u64))), None);
        }
    }

    #[test]
    fn what_a_file_claims_is_not_allocated() {
        let notes = note(3, &[1, 2, 3, 4, 5], u32::to_le_bytes);
        let huge = file(&elf64(&notes, 1 << 40));
        // Only holes, which take no room on the disk.
        huge.set_len(1 << 42).unwrap();
        assert_eq!(BuildId::of_elf(&huge), None);
        assert_eq!(BuildId::of_elf(&file(&elf64(&notes, u64::MAX))), None);
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_no_harm() {
        let notes = note(3, &[1, 2, 3, 4, 5], u32::to_le_bytes);
        let whole = elf64(&notes, notes.len() as u64);
        for len in 0..whole.len() {
            let cut = file(&whole[..len]);
            assert_eq!(BuildId::of_elf(&cut), None, "{len}");
            assert_eq!(debug_link(&cut), None);
        }
    }

    #[test]
    fn a_question_leaves_the_position_of_the_file() {
        use std::io::{Seek, SeekFrom};
        let mut program = File::open("/proc/self/exe").unwrap();
        Seek::seek(&mut program, SeekFrom::Start(7)).unwrap();
        let _ = BuildId::of_elf(&program);
        assert_eq!(program.stream_position().unwrap(), 7);
    }

    #[test]
    fn code_has_addresses() {
        let code = Code(vec![
            Segment { offsets: 0x1000..0x2000, address: 0x40_1000 },
            Segment { offsets: 0x2000..0x2001, address: u64::MAX },
            Segment { offsets: 0x3000..0x3001, address: 0 },
        ]);
        assert_eq!(code.address_of(0x1010), Some(0x40_1010));
        assert_eq!(code.address_of(0x2000), Some(u64::MAX));
        assert_eq!(code.address_of(0x3000), Some(0));
        assert_eq!(code.address_of(0xfff), None);
        assert_eq!(code.address_of(0x3001), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let file = file(&bytes);
            let _ = (build_id(&file), debug_link(&file), code(&file));
            let _ = (symbols::packed(&file), symbols::Functions::dynamic(&file));
        }

        #[test]
        fn any_headers_are_no_harm(
            class in 1u8..=2,
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            sizes in prop::collection::vec(0u16..70, 6),
        ) {
            let mut elf = vec![0x7f, b'E', b'L', b'F', class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            elf.extend(bytes);
            // Offsets that lie within the file are the ones that lead somewhere.
            let (at, sizes_at) = if class == 1 { (28, 40) } else { (32, 52) };
            let sizes = sizes.iter().map(|it| it.to_le_bytes());
            for (place, byte) in (sizes_at..).zip(sizes.flatten()) {
                if let Some(it) = elf.get_mut(place) {
                    *it = byte;
                }
            }
            for place in at + 1..sizes_at - 4 {
                if let Some(it) = elf.get_mut(place).filter(|_| place % 4 != at % 4) {
                    *it = 0;
                }
            }
            let file = file(&elf);
            let _ = (build_id(&file), debug_link(&file), code(&file));
            let _ = (symbols::packed(&file), symbols::Functions::dynamic(&file));
        }
    }
}
