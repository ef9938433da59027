//! Where a function is in a file, by its name, for probes.
//!
//! The symbols are those that a program has for debuggers, and those for the dynamic linker, as they stand in the file:
//! C++ and Rust names are mangled.

use std::{collections::BTreeMap, fs::File};

use object::{
    Endianness,
    elf::{
        FileHeader32, FileHeader64, PF_X, PT_LOAD, SHN_ABS, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB,
        STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE,
    },
    read::elf::{ProgramHeader as _, SectionHeader as _, Sym as _},
};

use crate::{Header, Pieces, read_within};

/// The most that is read of a file: the symbols of the largest programs take some hundred megabytes.
const BUDGET_BYTES: u64 = 1 << 30;

/// The most names that [`Missing::NoFunction`] has.
pub const MAX_NAMES: usize = 200_000;

/// A function in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Where its first instruction is in the file.
    pub offset: u64,
    /// How long it is; 0 if the file does not say.
    pub bytes: u64,
}

/// Why a function is not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is no ELF file, or its headers are damaged.
    NotElf,
    /// There are no symbols of functions at all.
    NoSymbols,
    /// No function has that name.
    NoFunction {
        /// Those that there are, up to [`MAX_NAMES`].
        names: Vec<String>,
    },
    /// Several functions have it, at these places in the file.
    Several {
        /// In order.
        offsets: Vec<u64>,
    },
    /// Which function the name stands for is decided when the program starts (`STT_GNU_IFUNC`).
    Indirect,
    /// It lies in no code of the file.
    NoCode,
}

/// Looks for a function by its name as it stands in the file.
pub fn function(file: &File, name: &str) -> Result<Function, Missing> {
    read_within(file, BUDGET_BYTES, |data| {
        let found = function_in::<FileHeader64<_>>(data, name);
        found.or_else(|| function_in::<FileHeader32<_>>(data, name)).unwrap_or(Err(Missing::NotElf))
    })
}

/// Whether there is code at a place in the file; `None` if it is no ELF file.
#[must_use]
pub fn is_code(file: &File, offset: u64) -> Option<bool> {
    read_within(file, BUDGET_BYTES, |data| {
        let is_in = |code: Vec<Segment>| code.iter().any(|it| it.has_offset(offset));
        let found = code_of::<FileHeader64<_>>(data).map(is_in);
        found.or_else(|| code_of::<FileHeader32<_>>(data).map(is_in))
    })
}

/// A part of the file that is mapped to be executed.
struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
}

impl Segment {
    fn has_offset(&self, offset: u64) -> bool {
        offset.checked_sub(self.offset).is_some_and(|within| within < self.bytes)
    }

    fn offset_of(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.address).filter(|within| *within < self.bytes)?;
        self.offset.checked_add(within)
    }
}

fn code_of<H: Header>(data: Pieces<'_>) -> Option<Vec<Segment>> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?.iter();
    let code = segments.filter(|it| it.p_type(endian) == PT_LOAD && it.p_flags(endian) & PF_X != 0);
    let segments = code.map(|it| Segment {
        address: it.p_vaddr(endian).into(),
        offset: it.p_offset(endian).into(),
        bytes: it.p_filesz(endian).into(),
    });
    Some(segments.collect())
}

/// `None` if it is no ELF file of this class.
fn function_in<H: Header>(data: Pieces<'_>, name: &str) -> Option<Result<Function, Missing>> {
    let code = code_of::<H>(data)?;
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let mut search = Search { name, found: BTreeMap::new(), names: Vec::new(), is_indirect: false };
    for kind in [SHT_SYMTAB, SHT_DYNSYM] {
        // A table that can't be read is as good as none: the other one may do.
        let _ = search.table::<H>(endian, data, header, kind);
    }
    Some(search.result(&code))
}

struct Search<'a> {
    name: &'a str,
    /// By address, how long it is.
    found: BTreeMap<u64, u64>,
    names: Vec<String>,
    is_indirect: bool,
}

impl Search<'_> {
    fn table<H: Header>(
        &mut self,
        endian: Endianness,
        data: Pieces<'_>,
        header: &H,
        kind: u32,
    ) -> Option<()> {
        let sections = header.section_headers(endian, data).ok()?;
        let section = sections.iter().find(|it| it.sh_type(endian) == kind)?;
        let symbols = section.data_as_array::<H::Sym, _>(endian, data).ok()?;
        let strings = sections.get(usize::try_from(section.sh_link(endian)).ok()?)?;
        let strings = strings.data(endian, data).ok()?;
        for symbol in symbols {
            let kind = symbol.st_type();
            let is_defined = ![SHN_UNDEF, SHN_ABS].contains(&symbol.st_shndx(endian));
            if !is_defined || ![STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE].contains(&kind) {
                continue;
            }
            let at = usize::try_from(symbol.st_name(endian)).ok()?;
            let Some(name) = strings.get(at..).and_then(|it| it.split(|byte| *byte == 0).next())
            else {
                continue;
            };
            // What follows is the version.
            let name = name.split(|byte| *byte == b'@').next().unwrap_or_default();
            if name == self.name.as_bytes() {
                self.is_indirect |= kind == STT_GNU_IFUNC;
                let bytes = self.found.entry(symbol.st_value(endian).into()).or_default();
                *bytes = (*bytes).max(symbol.st_size(endian).into());
            } else if kind == STT_FUNC && self.names.len() < MAX_NAMES {
                self.names.extend(std::str::from_utf8(name).map(str::to_owned));
            }
        }
        Some(())
    }

    fn result(self, code: &[Segment]) -> Result<Function, Missing> {
        if self.is_indirect {
            return Err(Missing::Indirect);
        }
        if self.found.is_empty() {
            let Self { mut names, .. } = self;
            names.sort_unstable();
            names.dedup();
            let is_stripped = names.is_empty();
            return Err(if is_stripped {
                Missing::NoSymbols
            } else {
                Missing::NoFunction { names }
            });
        }
        let in_file = self.found.into_iter().filter_map(|(address, bytes)| {
            let offset = code.iter().find_map(|it| it.offset_of(address))?;
            Some(Function { offset, bytes })
        });
        match in_file.collect::<Vec<_>>().as_slice() {
            [] => Err(Missing::NoCode),
            [one] => Ok(*one),
            several => {
                Err(Missing::Several { offsets: several.iter().map(|it| it.offset).collect() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A section's or a symbol's numbers, each of so many bytes.
    fn numbers(fields: &[(u64, usize)]) -> Vec<u8> {
        fields.iter().flat_map(|(value, bytes)| value.to_le_bytes()[..*bytes].to_vec()).collect()
    }

    /// A file with code at 0x1000 that is mapped at 0x401000, and these symbols: a name, a type and a value.
    fn program(symbols: &[(&str, u8, u64)]) -> Vec<u8> {
        let mut elf = profiler_testing::elf::headers(&[(1, 0x1000, 0x100)]);
        // The address is not the offset.
        elf[64 + 16..64 + 24].copy_from_slice(&0x40_1000_u64.to_le_bytes());
        let mut strings = vec![0];
        let mut table = vec![0; 24];
        for (name, kind, value) in symbols {
            let at = strings.len() as u64;
            strings.extend(name.bytes().chain([0]));
            table.extend(numbers(&[
                (at, 4),
                (u64::from(*kind), 1),
                (0, 1),
                (1, 2),
                (*value, 8),
                (0x10, 8),
            ]));
        }
        let section = |kind: u64, offset: usize, bytes: usize, link: u64, entry: u64| {
            numbers(&[
                (0, 4),
                (kind, 4),
                (0, 8),
                (0, 8),
                (offset as u64, 8),
                (bytes as u64, 8),
                (link, 4),
                (0, 4),
                (8, 8),
                (entry, 8),
            ])
        };
        let first = elf.len();
        let second = first + table.len();
        let headers_at = (second + strings.len()).next_multiple_of(8);
        let headers = [
            section(0, 0, 0, 0, 0),
            section(2, first, table.len(), 2, 24),
            section(3, second, strings.len(), 0, 0),
        ];
        elf.extend(table);
        elf.extend(strings);
        elf.resize(headers_at, 0);
        elf.extend(headers.concat());
        elf[40..48].copy_from_slice(&(headers_at as u64).to_le_bytes());
        elf[60..62].copy_from_slice(&3_u16.to_le_bytes());
        elf.resize(0x1100, 0);
        elf
    }

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
        file
    }

    fn find(symbols: &[(&str, u8, u64)], name: &str) -> Result<Function, Missing> {
        function(&file(&program(symbols)), name)
    }

    #[test]
    fn a_function_is_found_where_it_lies_in_the_file() {
        let symbols = [("main", STT_FUNC, 0x40_1020), ("other@@V1", STT_FUNC, 0x40_1040)];
        assert_eq!(find(&symbols, "main"), Ok(Function { offset: 0x1020, bytes: 0x10 }));
        assert_eq!(find(&symbols, "other"), Ok(Function { offset: 0x1040, bytes: 0x10 }));
        // Another name for the same place is no other function.
        assert!(find(&[("f", STT_FUNC, 0x40_1020), ("f", STT_NOTYPE, 0x40_1020)], "f").is_ok());
    }

    #[test]
    fn why_there_is_none_is_told() {
        let one = [("main", STT_FUNC, 0x40_1020)];
        let names = vec!["main".to_owned()];
        assert_eq!(find(&one, "mian"), Err(Missing::NoFunction { names }));
        assert_eq!(find(&[], "main"), Err(Missing::NoSymbols));
        assert_eq!(find(&[("main", 1, 0x40_1020)], "main"), Err(Missing::NoSymbols));
        let two = [("f", STT_FUNC, 0x40_1040), ("f", STT_FUNC, 0x40_1020)];
        assert_eq!(find(&two, "f"), Err(Missing::Several { offsets: vec![0x1020, 0x1040] }));
        let indirect = [("f", STT_GNU_IFUNC, 0x40_1020)];
        assert_eq!(find(&indirect, "f"), Err(Missing::Indirect));
        assert_eq!(find(&[("f", STT_FUNC, 0x10)], "f"), Err(Missing::NoCode));
        assert_eq!(function(&file(b"#!/bin/sh\n"), "main"), Err(Missing::NotElf));
    }

    #[test]
    fn code_is_what_is_mapped_to_be_executed() {
        let program = file(&program(&[]));
        let is_code = [0xfff, 0x1000, 0x10ff, 0x1100, u64::MAX].map(|at| is_code(&program, at));
        assert_eq!(is_code, [false, true, true, false, false].map(Some));
        assert_eq!(super::is_code(&file(b"text"), 0), None);
    }

    #[test]
    fn our_own_functions_are_found() {
        let program = File::open("/proc/self/exe").unwrap();
        let main = function(&program, "main").unwrap();
        assert_eq!(is_code(&program, main.offset), Some(true));
    }

    proptest! {
        #[test]
        fn damage_is_no_harm(at in 0..0x300_usize, byte: u8, cut in 0..0x400_usize) {
            let mut bytes = program(&[("main", STT_FUNC, 0x40_1020)]);
            if let Some(it) = bytes.get_mut(at) {
                *it = byte;
            }
            let _ = function(&file(&bytes), "main");
            bytes.truncate(cut);
            let cut = file(&bytes);
            let _ = (function(&cut, "main"), is_code(&cut, 0x1000));
        }
    }
}
