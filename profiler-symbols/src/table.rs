//! The functions that symbol tables name, by address.

use std::ops::Range;

use object::{
    Endianness,
    elf::{
        SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, STB_LOCAL, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, Sym32,
        Sym64,
    },
    read::elf::Sym,
};

use crate::{
    Malformed,
    image::{Elf, Section},
};

/// The most symbols of all tables of a file together. The largest programs have some millions.
const MAX_SYMBOLS: usize = 8 << 20;
/// Tables that names are taken from: the bits of [`Name`] that tell them apart.
const MAX_TABLES: usize = 4;
const OFFSET_BITS: u32 = 30;
/// The longest name that is read. C++ templates have some of many kilobytes.
const MAX_NAME_BYTES: usize = 64 << 10;
/// How many symbols before an address are looked at for one that reaches there.
const MAX_NESTING: usize = 64;

/// Where a name is: which table of strings, and the offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(u32);

impl Name {
    /// That of a function without one: nothing is found there.
    const NONE: Self = Self(u32::MAX);

    fn new(table: usize, offset: u32) -> Option<Self> {
        let table = u32::try_from(table).ok()?;
        (offset >> OFFSET_BITS == 0).then_some(Self(table << OFFSET_BITS | offset))
    }
}

/// A function. Its name stays in the file's bytes.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    address: u64,
    bytes: u32,
    name: Name,
}

impl Symbol {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes.into())
    }
}

/// A symbol among others at the same address: the lowest rank is kept.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    symbol: Symbol,
    rank: u8,
}

/// What is found at an address: the name in the file, and where the function begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named<'d> {
    pub(crate) name: &'d [u8],
    pub(crate) start: u64,
}

/// The functions of all symbol tables of a file, sorted by address.
#[derive(Debug, Default)]
pub(crate) struct Table<'d> {
    symbols: Box<[Symbol]>,
    strings: Vec<&'d [u8]>,
}

/// Collects the functions of symbol tables.
#[derive(Debug, Default)]
pub(crate) struct Builder<'d> {
    candidates: Vec<Candidate>,
    strings: Vec<&'d [u8]>,
}

impl<'d> Builder<'d> {
    /// Adds the functions of the tables that an ELF file has for debuggers and for the dynamic linker.
    pub(crate) fn add(&mut self, elf: &Elf<'d>) -> Result<(), Malformed> {
        for kind in [SHT_SYMTAB, SHT_DYNSYM] {
            let Some(section) = elf.sections.iter().find(|it| it.kind == kind) else { continue };
            let (symbols, strings) = tables(elf, section)?;
            if self.strings.len() >= MAX_TABLES {
                return Ok(());
            }
            if elf.is_64 {
                self.extend::<Sym64<Endianness>>(elf.endian, symbols, strings);
            } else {
                self.extend::<Sym32<Endianness>>(elf.endian, symbols, strings);
            }
            self.strings.push(strings);
        }
        Ok(())
    }

    fn extend<S: Sym<Endian = Endianness>>(
        &mut self,
        endian: Endianness,
        symbols: &[u8],
        strings: &[u8],
    ) {
        let count = symbols.len() / size_of::<S>();
        let Ok((symbols, _)) = object::pod::slice_from_bytes::<S>(symbols, count) else { return };
        for symbol in symbols {
            let kind = symbol.st_type();
            let is_function = [STT_FUNC, STT_GNU_IFUNC].contains(&kind);
            if !(is_function || kind == STT_NOTYPE) || symbol.st_shndx(endian) == SHN_UNDEF {
                continue;
            }
            let offset = symbol.st_name(endian);
            let start = strings.get(offset as usize..).unwrap_or_default();
            let underscores = start.iter().take(3).take_while(|&&byte| byte == b'_').count();
            let name = Name::new(self.strings.len(), offset).filter(|_| is_name(start));
            if name.is_none() && !is_function || self.candidates.len() >= MAX_SYMBOLS {
                continue;
            }
            let bytes: u64 = symbol.st_size(endian).into();
            // Among names of one function: those with a size first, then functions, then those that others
            // can link to, then those with fewer underscores, as `read` among `__read` and `__libc_read`.
            let rank = u8::from(name.is_none()) << 5
                | u8::from(bytes == 0) << 4
                | u8::from(!is_function) << 3
                | u8::from(symbol.st_bind() == STB_LOCAL) << 2
                | u8::try_from(underscores).unwrap_or(3);
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            let name = name.unwrap_or(Name::NONE);
            let symbol = Symbol { address: symbol.st_value(endian).into(), bytes, name };
            self.candidates.push(Candidate { symbol, rank });
        }
    }

    /// The table. No symbol reaches beyond the section that it is in.
    pub(crate) fn build(mut self, elf: &Elf<'_>) -> Table<'d> {
        let key = |it: &Candidate| (it.symbol.address, it.rank, it.symbol.name);
        self.candidates.sort_unstable_by_key(key);
        self.candidates.dedup_by_key(|it| it.symbol.address);
        let code = code(elf);
        let mut sections = code.iter().peekable();
        let mut symbols = Vec::with_capacity(self.candidates.len());
        let mut reaches = 0;
        for (at, candidate) in self.candidates.iter().enumerate() {
            let mut symbol = candidate.symbol;
            while sections.next_if(|it| it.end <= symbol.address).is_some() {}
            let Some(section) = sections.peek().filter(|it| it.start <= symbol.address) else {
                continue;
            };
            let end = if symbol.bytes > 0 {
                symbol.end()
            } else if symbol.address < reaches {
                // A label within a function.
                continue;
            } else {
                self.candidates.get(at + 1).map_or(u64::MAX, |next| next.symbol.address)
            };
            let bytes = end.min(section.end) - symbol.address;
            symbol.bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            reaches = reaches.max(symbol.end());
            symbols.push(symbol);
        }
        Table { symbols: symbols.into(), strings: self.strings }
    }
}

/// The bytes of a symbol table and of its strings.
fn tables<'d>(elf: &Elf<'d>, section: &Section<'_>) -> Result<(&'d [u8], &'d [u8]), Malformed> {
    let strings = elf.sections.get(section.link).ok_or(Malformed)?;
    Ok((elf.bytes_of(section)?, elf.bytes_of(strings)?))
}

/// Where the code is: by section, or by segment where there are no sections. Sorted, and none overlaps.
fn code(elf: &Elf<'_>) -> Vec<Range<u64>> {
    let sections = elf.sections.iter().filter(|it| it.is_code()).map(|it| it.addresses.clone());
    let mut code: Vec<_> = sections.collect();
    if code.is_empty() {
        code = elf.code().collect();
    }
    code.sort_unstable_by_key(|it| (it.start, it.end));
    let mut from = 0;
    for range in &mut code {
        range.start = range.start.max(from);
        range.end = range.end.max(range.start);
        from = range.end;
    }
    code
}

/// Whether that is the name of a function: not an empty one, nor what assemblers for ARM mark code (`$x`)
/// and data (`$d`) with.
fn is_name(bytes: &[u8]) -> bool {
    !matches!(bytes, [] | [0, ..] | [b'$', b'a' | b'd' | b't' | b'x', 0 | b'.', ..])
}

/// The name at the begin of some bytes, without the version that linkers write behind it
/// (`read@@GLIBC_2.2.5`).
pub(crate) fn name_in(strings: &[u8]) -> &[u8] {
    let strings = strings.get(..MAX_NAME_BYTES).unwrap_or(strings);
    let name = strings.split(|&byte| byte == 0).next().unwrap_or_default();
    let Some(at) = name.iter().position(|&byte| byte == b'@').filter(|&at| at > 0) else {
        return name;
    };
    let version = name.get(at..).unwrap_or_default();
    let is_version = |&byte: &u8| byte.is_ascii_alphanumeric() || b"_.@".contains(&byte);
    if version.iter().all(is_version) { name.get(..at).unwrap_or(name) } else { name }
}

impl<'d> Table<'d> {
    /// The function that holds the address.
    pub(crate) fn find(&self, address: u64) -> Option<Named<'d>> {
        let behind = self.symbols.partition_point(|it| it.address <= address);
        let before = self.symbols.get(..behind)?;
        let found = before.iter().rev().take(MAX_NESTING).find(|it| address < it.end())?;
        Some(Named { name: self.name(found.name)?, start: found.address })
    }

    fn name(&self, name: Name) -> Option<&'d [u8]> {
        if name == Name::NONE {
            return None;
        }
        let strings = self.strings.get((name.0 >> OFFSET_BITS) as usize)?;
        let offset = name.0 & ((1 << OFFSET_BITS) - 1);
        Some(name_in(strings.get(offset as usize..)?))
    }

    /// How many functions there are.
    pub(crate) fn len(&self) -> usize {
        self.symbols.len()
    }

    /// The first address of each function.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.symbols.iter().map(|it| it.address)
    }
}
