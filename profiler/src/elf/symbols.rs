//! The functions that symbol tables name, and a file of nothing but them.

use std::{fs::File, io};

use object::{
    NativeEndian, U16, U32, U64,
    elf::{
        ELFCLASS64, ELFDATA2LSB, ELFDATA2MSB, ELFMAG, ELFOSABI_NONE, ET_DYN, EV_CURRENT,
        FileHeader32, FileHeader64, Ident, SHN_ABS, SHT_DYNSYM, SHT_NULL, SHT_STRTAB, SHT_SYMTAB,
        STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, SectionHeader64, Sym64,
    },
    pod,
    read::{
        ReadRef,
        elf::{SectionHeader as _, Sym as _},
    },
};

use super::{Header, read_within};

/// The most that is read of a file for its symbols, and for those that are packed.
const SYMBOLS_BUDGET: u64 = 64 << 20;
const PACKED_BUDGET: u64 = 16 << 20;

/// Functions, as one symbol table names them.
#[derive(Debug, Default)]
pub struct Functions {
    symbols: Vec<Sym64<NativeEndian>>,
    names: Vec<u8>,
}

impl Functions {
    /// Those that a program exports or calls itself by, which it keeps when it is stripped.
    pub(crate) fn dynamic(file: &File) -> Option<Self> {
        read_within(file, SYMBOLS_BUDGET, |data| Self::in_either(data, SHT_DYNSYM))
    }

    /// Those of a whole file in memory that are there for debuggers.
    #[must_use]
    pub fn of_bytes(elf: &[u8]) -> Option<Self> {
        Self::in_either(elf, SHT_SYMTAB)
    }

    fn in_either<'data>(data: impl ReadRef<'data>, table: u32) -> Option<Self> {
        Self::read::<FileHeader64<_>>(data, table)
            .or_else(|| Self::read::<FileHeader32<_>>(data, table))
    }

    fn read<'data, H: Header>(data: impl ReadRef<'data>, table: u32) -> Option<Self> {
        let header = H::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.section_headers(endian, data).ok()?;
        let section = sections.iter().find(|section| section.sh_type(endian) == table)?;
        let names = sections.get(section.link(endian).0)?.data(endian, data).ok()?.to_vec();
        let symbols: &[H::Sym] = section.data_as_array(endian, data).ok()?;
        let symbols = symbols.iter().filter(|symbol| {
            let is_function = [STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE].contains(&symbol.st_type());
            // Of one without a size nothing says how far it goes.
            is_function && !symbol.is_undefined(endian) && symbol.st_size(endian).into() > 0
        });
        let symbols = symbols.map(|symbol| Sym64 {
            st_name: U32::new(NativeEndian, symbol.st_name(endian)),
            st_info: symbol.st_info(),
            st_other: 0,
            st_shndx: U16::new(NativeEndian, SHN_ABS),
            st_value: U64::new(NativeEndian, symbol.st_value(endian).into()),
            st_size: U64::new(NativeEndian, symbol.st_size(endian).into()),
        });
        Some(Self { symbols: symbols.collect(), names })
    }
}

/// What a file has in `.gnu_debugdata`, if it has no symbols for debuggers that are not packed:
/// <https://sourceware.org/gdb/current/onlinedocs/gdb.html/MiniDebugInfo.html>. It is empty if it is
/// too large.
pub(crate) fn packed(file: &File) -> Option<Vec<u8>> {
    read_within(file, PACKED_BUDGET, |data| {
        packed_in::<FileHeader64<_>>(data).or_else(|| packed_in::<FileHeader32<_>>(data))
    })
}

fn packed_in<'data, H: Header>(data: impl ReadRef<'data>) -> Option<Vec<u8>> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let is_symbols = |section: &H::SectionHeader| {
        section.sh_type(endian) == SHT_SYMTAB && section.sh_size(endian).into() > 0
    };
    let (_, section) = sections.section_by_name(endian, b".gnu_debugdata")?;
    let has_symbols = sections.iter().any(is_symbols);
    (!has_symbols).then(|| section.data(endian, data).unwrap_or_default().to_vec())
}

/// Writes a file that has these functions for debuggers, and these as the exported ones.
pub fn write(debug: &Functions, exported: &Functions, file: &mut impl io::Write) -> io::Result<()> {
    const NAMES: &[u8] = b"\0.symtab\0.strtab\0.dynsym\0.dynstr\0.shstrtab\0";
    // Where each name begins in them.
    let sections = [
        (1, SHT_SYMTAB, pod::bytes_of_slice(&debug.symbols)),
        (9, SHT_STRTAB, &*debug.names),
        (17, SHT_DYNSYM, pod::bytes_of_slice(&exported.symbols)),
        (25, SHT_STRTAB, &*exported.names),
        (33, SHT_STRTAB, NAMES),
    ];
    let padding = |bytes: usize| bytes.next_multiple_of(8) - bytes;
    let mut headers = vec![section_header(0, SHT_NULL, 0, 0, 0)];
    let mut at = size_of::<FileHeader64<NativeEndian>>();
    for (index, (name, kind, content)) in (1..).zip(sections) {
        // The names of a table's symbols are in the section behind it.
        headers.push(section_header(name, kind, at as u64, content.len() as u64, index + 1));
        at += content.len() + padding(content.len());
    }
    file.write_all(pod::bytes_of(&file_header(at as u64)))?;
    for (_, _, content) in sections {
        file.write_all(content)?;
        file.write_all([0; 8].get(..padding(content.len())).unwrap_or_default())?;
    }
    file.write_all(pod::bytes_of_slice(&headers))
}

fn section_header(
    name: u32,
    kind: u32,
    offset: u64,
    bytes: u64,
    link: u32,
) -> SectionHeader64<NativeEndian> {
    let is_symbols = [SHT_SYMTAB, SHT_DYNSYM].contains(&kind);
    let (link, entry_bytes) = if is_symbols { (link, 24) } else { (0, 0) };
    SectionHeader64 {
        sh_name: U32::new(NativeEndian, name),
        sh_type: U32::new(NativeEndian, kind),
        sh_offset: U64::new(NativeEndian, offset),
        sh_size: U64::new(NativeEndian, bytes),
        sh_link: U32::new(NativeEndian, link),
        sh_flags: U64::default(),
        sh_addr: U64::default(),
        sh_info: U32::default(),
        sh_addralign: U64::new(NativeEndian, 8),
        sh_entsize: U64::new(NativeEndian, entry_bytes),
    }
}

/// The header of a file whose section headers are at this offset.
fn file_header(sections_at: u64) -> FileHeader64<NativeEndian> {
    let data = if cfg!(target_endian = "little") { ELFDATA2LSB } else { ELFDATA2MSB };
    FileHeader64 {
        e_ident: Ident {
            magic: ELFMAG,
            class: ELFCLASS64,
            data,
            version: EV_CURRENT,
            os_abi: ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(NativeEndian, ET_DYN),
        e_machine: U16::default(),
        e_version: U32::new(NativeEndian, EV_CURRENT.into()),
        e_entry: U64::default(),
        e_phoff: U64::default(),
        e_shoff: U64::new(NativeEndian, sections_at),
        e_flags: U32::default(),
        e_ehsize: U16::new(NativeEndian, 64),
        e_phentsize: U16::new(NativeEndian, 56),
        e_phnum: U16::default(),
        e_shentsize: U16::new(NativeEndian, 64),
        e_shnum: U16::new(NativeEndian, 6),
        e_shstrndx: U16::new(NativeEndian, 5),
    }
}
