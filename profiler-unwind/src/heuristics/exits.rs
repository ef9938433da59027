//! The functions that end a program or a thread, known by their symbols.

use object::{
    Endianness,
    elf::{SHT_DYNSYM, SHT_SYMTAB, Sym64},
    read::{
        ReadRef,
        elf::{FileHeader as _, SectionHeader as _, Sym as _},
    },
};

use crate::source::{Code, ENDIAN, Header};

/// The most bytes of a table of symbols, and of its names, that are looked through.
const MAX_SYMBOL_BYTES: u64 = 2 << 20;
/// The most of these functions. Each has a symbol for programs and one for debuggers, and other names.
const MAX_EXITS: usize = 16;

/// Where the functions that end a program or a thread are in the file, if it has them.
pub(super) fn exits<'d, R: ReadRef<'d>>(data: R, code: &Code) -> Vec<u64> {
    let Ok(header) = Header::parse(data) else { return Vec::new() };
    let sections = header.sections(ENDIAN, data).unwrap_or_default();
    let of_kind = |kind| {
        let table = sections.iter().find(|it| it.sh_type(ENDIAN) == kind)?;
        let names = sections.section(table.link(ENDIAN)).ok()?;
        if table.sh_size(ENDIAN).max(names.sh_size(ENDIAN)) > MAX_SYMBOL_BYTES {
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
    addresses.filter_map(|address| code.offset(address)).take(MAX_EXITS).collect()
}
