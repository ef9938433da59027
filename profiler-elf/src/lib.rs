//! Bounded reads of ELF files that others have written, and may still be writing.
//!
//! Files are read by `pread`, not mapped: a file that is truncated meanwhile gives an error, not
//! SIGBUS. What its headers claim is believed within a budget, and what can't be found out within the
//! budget is `None`. Compressed sections are unpacked within a limit ([`unpack`]).
//!
//! ```
//! let program = std::fs::File::open("/proc/self/exe")?;
//! if let Some(id) = profiler_elf::build_id(&program) {
//!     assert!((1..=20).contains(&id.as_bytes().len()));
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod functions;
mod pieces;
pub mod unpack;

use std::{ffi::OsString, fs::File, os::unix::ffi::OsStringExt as _};

use object::{
    Endian as _, Endianness,
    elf::{ELF_NOTE_GNU, FileHeader32, FileHeader64, NT_GNU_BUILD_ID, SHT_NOBITS},
    read::elf::{FileHeader, NoteIterator, ProgramHeader as _, SectionHeader as _},
};
use profiler_common::build_id::BuildId;

pub use pieces::{Pieces, read_within};

/// The most that is read of a file for one answer. Headers of large programs take some kilobytes.
const BUDGET_BYTES: u64 = 4 << 20;

/// A file's header, of either class.
trait Header: FileHeader<Endian = Endianness> {}
impl<H: FileHeader<Endian = Endianness>> Header for H {}

/// The build id of a file: that in a segment of notes, where the kernel looks, or else in a section.
///
/// `None` if it has none of 1 to 20 bytes, or is no ELF file.
#[must_use]
pub fn build_id(file: &File) -> Option<BuildId> {
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

/// What `.gnu_debuglink` says of a file's debug file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugLink {
    /// Its name: a single path component, never `.` or `..`.
    pub name: OsString,
    /// The CRC-32 of all its bytes.
    pub crc: u32,
}

/// The link to the debug file:
/// <https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html>, a name that
/// ends with a zero, filled up to four bytes, and the checksum.
#[must_use]
pub fn debug_link(file: &File) -> Option<DebugLink> {
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
    // It is the name of a file; of a path to one only the last part counts, as for gdb.
    let name = name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let is_name = !name.is_empty() && name != b"." && name != b"..";
    let name = OsString::from_vec(name.to_vec());
    is_name.then(|| DebugLink { name, crc: endian.read_u32(*crc) })
}

/// How many bytes the largest section claims to have in the file; `None` if there are no sections.
#[must_use]
pub fn largest_section(file: &File) -> Option<u64> {
    read(file, |data| {
        largest_in::<FileHeader64<_>>(data).or_else(|| largest_in::<FileHeader32<_>>(data))
    })
}

fn largest_in<H: Header>(data: Pieces<'_>) -> Option<u64> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.section_headers(endian, data).ok()?.iter();
    sections.filter_map(|it| it.file_range(endian)).map(|(_, bytes)| bytes).max()
}

/// Asks a file, which need not be an ELF file.
fn read<T>(file: &File, ask: impl FnOnce(Pieces<'_>) -> Option<T>) -> Option<T> {
    read_within(file, BUDGET_BYTES, ask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_testing::elf::{note, with_notes as elf64};
    use proptest::prelude::*;

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
        assert_eq!(build_id(&file(&elf64(&le, le.len() as u64))), id);
        let be = note(3, &[1, 2, 3, 4, 5], u32::to_be_bytes);
        assert_eq!(build_id(&file(&elf32(&be))), id);
    }

    #[test]
    fn only_an_elf_file_has_a_build_id() {
        assert_eq!(build_id(&File::open("/proc/self/maps").unwrap()), None);
        assert_eq!(build_id(&File::open("/").unwrap()), None);
        assert_eq!(build_id(&tempfile::tempfile().unwrap()), None);
    }

    #[test]
    fn a_build_id_of_another_length_is_none() {
        for len in [0, 21, 64] {
            let notes = note(3, &vec![7; len], u32::to_le_bytes);
            assert_eq!(build_id(&file(&elf64(&notes, notes.len() as u64))), None);
        }
    }

    #[test]
    fn what_a_file_claims_is_not_allocated() {
        let notes = note(3, &[1, 2, 3, 4, 5], u32::to_le_bytes);
        let huge = file(&elf64(&notes, 1 << 40));
        // Only holes, which take no room on the disk.
        huge.set_len(1 << 42).unwrap();
        assert_eq!(build_id(&huge), None);
        assert_eq!(build_id(&file(&elf64(&notes, u64::MAX))), None);
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_no_harm() {
        let notes = note(3, &[1, 2, 3, 4, 5], u32::to_le_bytes);
        let whole = elf64(&notes, notes.len() as u64);
        for len in 0..whole.len() {
            let cut = file(&whole[..len]);
            assert_eq!(build_id(&cut), None, "{len}");
            assert_eq!(debug_link(&cut), None);
        }
    }

    #[test]
    fn a_question_leaves_the_position_of_the_file() {
        use std::io::{Seek, SeekFrom};
        let mut program = File::open("/proc/self/exe").unwrap();
        Seek::seek(&mut program, SeekFrom::Start(7)).unwrap();
        let _ = build_id(&program);
        assert_eq!(program.stream_position().unwrap(), 7);
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let file = file(&bytes);
            let _ = (build_id(&file), debug_link(&file));
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
            let _ = (build_id(&file), debug_link(&file));
        }
    }
}
