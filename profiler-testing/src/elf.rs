//! ELF files that are made up.

use std::{fs::File, os::unix::fs::FileExt as _};

/// The headers of a 64-bit little-endian file for x86-64 without sections: of each segment its type, its
/// offset and address, and its bytes.
#[must_use]
pub fn headers(segments: &[(u32, u64, u64)]) -> Vec<u8> {
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

/// A note of GNU's of a type, with its numbers in either byte order.
#[must_use]
pub fn note(kind: u32, content: &[u8], number: fn(u32) -> [u8; 4]) -> Vec<u8> {
    let len = u32::try_from(content.len()).unwrap();
    let mut note = [number(4), number(len), number(kind), *b"GNU\0"].concat();
    note.extend(content);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// A file with one segment of notes, `notes` long as it claims.
#[must_use]
pub fn with_notes(notes: &[u8], claimed_bytes: u64) -> Vec<u8> {
    [&headers(&[(4, 64 + 56, claimed_bytes)])[..], notes].concat()
}

/// A file that has nothing but a build id.
#[must_use]
pub fn with_build_id(id: &[u8]) -> Vec<u8> {
    let notes = note(3, id, u32::to_le_bytes);
    with_notes(&notes, notes.len() as u64)
}

/// Makes a file that takes a few kilobytes on disk, and has a table of symbols of so many bytes.
pub fn sparse_with_symbols(file: &File, claimed_bytes: u64) {
    let mut elf = headers(&[(1, 0, 0x1000)]);
    elf[40..48].copy_from_slice(&0x1000u64.to_le_bytes()); // e_shoff
    elf[60..64].copy_from_slice(&[3, 0, 2, 0]); // e_shnum, e_shstrndx
    let names = b"\0.symtab\0.strtab\0";
    let section = |name: u32, kind: u32, offset: u64, bytes: u64, link: u32, entry: u64| {
        let mut header = [name, kind].map(u32::to_le_bytes).concat();
        header.extend([0, 0, offset, bytes].map(u64::to_le_bytes).concat());
        header.extend([link, 0].map(u32::to_le_bytes).concat());
        header.extend([8, entry].map(u64::to_le_bytes).concat());
        header
    };
    let headers = [
        section(0, 0, 0, 0, 0, 0),
        section(1, 2, 0x2000, claimed_bytes, 2, 24),
        section(9, 3, 0x1800, names.len() as u64, 0, 0),
    ];
    file.write_all_at(&elf, 0).unwrap();
    file.write_all_at(&headers.concat(), 0x1000).unwrap();
    file.write_all_at(names, 0x1800).unwrap();
    file.set_len(0x2000 + claimed_bytes).unwrap();
}
