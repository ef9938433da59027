//! All that is known of one program's functions.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
    time::{Duration, Instant},
};

use object::elf::SHT_SYMTAB;
use self_cell::self_cell;
use serde::{Deserialize, Serialize};

use crate::{
    Malformed,
    arena::Arena,
    debug_data,
    demangle::demangle,
    dwarf::{DebugInfo, Described, MAX_DWOS},
    image::{Elf, Image},
    plt::Stubs,
    table::{Builder, Named, Table},
};

/// The most that is unpacked of one program's debug sections.
const MAX_UNPACKED_BYTES: u64 = 256 << 20;
/// Sections of DWARF that may be packed, in the program, its supplementary file and its package.
const PACKED_SECTIONS: usize = 64;
/// The most of `.gnu_debugdata`, packed and unpacked.
const MAX_DEBUG_DATA_PACKED_BYTES: usize = 16 << 20;
const MAX_DEBUG_DATA_BYTES: usize = 64 << 20;

/// A file with its companions, as far as they were found.
#[derive(Clone, Debug)]
pub struct Images {
    /// The file that is mapped.
    pub main: Image,
    /// Its separate debug file.
    pub debug: Option<Image>,
    /// What one of them shares debug info in with others (`.gnu_debugaltlink`).
    pub supplementary: Option<Image>,
    /// The package of its `.dwo` files.
    pub package: Option<Image>,
}

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Source lines and inlined functions, too.
    pub lines: bool,
    /// How long `.gnu_debugdata` may take to be unpacked; if zero, it is not.
    pub unpack_time: Duration,
}

/// What there is at an offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// No name.
    None,
    /// A function.
    Found(Found),
    /// A `.dwo` file has to be [supplied](SymbolFile::supply) first.
    Wants(DwoWanted),
}

/// A function, and what was inlined into it at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its name, demangled; never empty.
    pub name: String,
    /// Bytes from its begin.
    pub offset: u64,
    /// Where in the source.
    pub location: Option<Location>,
    /// Innermost first.
    pub inlined: Vec<Inlined>,
}

/// A function that was inlined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inlined {
    /// Its name, demangled; never empty.
    pub name: String,
    /// Where in its source.
    pub location: Option<Location>,
}

/// A place in source code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The path of the file.
    pub path: String,
    /// The line, if it is known.
    pub line: Option<u32>,
}

/// A `.dwo` file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DwoWanted {
    /// The id of its unit.
    pub id: u64,
    /// The folder that its program was compiled in.
    pub directory: Vec<u8>,
    /// Its path, absolute or from there.
    pub name: Vec<u8>,
}

/// The functions of a program.
pub struct SymbolFile(Cell);

struct Owner {
    images: Images,
    /// The names that `.gnu_debugdata` holds, an ELF file of its own.
    packed: Option<Vec<u8>>,
    arena: Arena,
}

struct Symbols<'d> {
    main: Elf<'d>,
    table: Table<'d>,
    stubs: Stubs<'d>,
    debug_info: Option<DebugInfo<'d>>,
}

self_cell!(
    struct Cell {
        owner: Owner,
        #[not_covariant]
        dependent: Symbols,
    }
);

impl fmt::Debug for SymbolFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SymbolFile").field("images", &self.0.borrow_owner().images).finish()
    }
}

impl SymbolFile {
    /// Reads a file. A companion that can't be read is left out.
    pub fn load(images: Images, options: Options) -> Result<Self, Malformed> {
        let packed = packed(&images, options.unpack_time)?;
        let places = if options.lines { PACKED_SECTIONS + MAX_DWOS * 8 } else { 0 };
        let arena = Arena::new(places, MAX_UNPACKED_BYTES);
        let owner = Owner { images, packed, arena };
        Cell::try_new(owner, |owner| Symbols::read(owner, options)).map(Self)
    }

    /// Gives back the pages of its files that were read. They come again from the page cache.
    pub fn release_pages(&self) {
        let Images { main, debug, supplementary, package } = &self.0.borrow_owner().images;
        let companions = [debug, supplementary, package].into_iter().flatten();
        companions.chain([main]).for_each(Image::release_pages);
    }

    /// Whether it has names that had to be unpacked.
    #[must_use]
    pub fn has_packed(&self) -> bool {
        self.0.borrow_owner().packed.is_some()
    }

    /// What is at an offset of the main file.
    #[must_use]
    pub fn find(&self, offset: u64) -> Answer {
        self.0.with_dependent(|_, symbols| {
            symbols.main.address_of(offset).map_or(Answer::None, |it| symbols.find(it))
        })
    }

    /// What is at an address, as the file has it.
    #[must_use]
    pub fn find_address(&self, address: u64) -> Answer {
        self.0.with_dependent(|_, symbols| symbols.find(address))
    }

    /// Takes a `.dwo` file that was asked for, or that there is none.
    pub fn supply(&self, id: u64, dwo: Option<&Image>) {
        self.0.with_dependent(|owner, symbols| {
            let Some(debug_info) = &symbols.debug_info else { return };
            let bytes = dwo.and_then(|it| Some((owner.arena.keep(it.shared())?, it.allocated())));
            let elf = bytes.and_then(|(bytes, allocated)| Elf::parse(bytes, allocated).ok());
            debug_info.supply(id, elf.as_ref(), &owner.arena);
        });
    }

    /// The first address of each function and stub.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        self.0.with_dependent(|_, symbols| {
            let mut addresses = Vec::with_capacity(symbols.table.len());
            addresses.extend(symbols.table.addresses());
            addresses.extend(symbols.stubs.addresses());
            addresses
        })
    }
}

impl<'d> Symbols<'d> {
    fn read(owner: &'d Owner, options: Options) -> Result<Self, Malformed> {
        let Images { main, debug, supplementary, package } = &owner.images;
        let main = Elf::parse(main.bytes(), main.allocated())?;
        // The companions have been found by what the main file says, and can be as malformed as they like.
        let companion = |image: &'d Option<Image>| {
            let image = image.as_ref()?;
            Elf::parse(image.bytes(), image.allocated()).ok()
        };
        let (debug, supplementary) = (companion(debug), companion(supplementary));
        let mut builder = Builder::default();
        builder.add(&main)?;
        if let Some(debug) = &debug {
            let _ = builder.add(debug);
        }
        if let Some(packed) = owner.packed.as_ref().and_then(|it| Elf::parse(it, None).ok()) {
            let _ = builder.add(&packed);
        }
        let table = builder.build(&main);
        let stubs = Stubs::of(&main, &table);
        let debug_info = options.lines.then(|| {
            let (package, arena) = (companion(package), &owner.arena);
            let load = |elf| DebugInfo::load(elf, supplementary.as_ref(), package.as_ref(), arena);
            let read = || debug.as_ref().and_then(load).or_else(|| load(&main));
            panic::catch_unwind(AssertUnwindSafe(read)).unwrap_or_default()
        });
        Ok(Self { main, table, stubs, debug_info: debug_info.flatten() })
    }

    fn find(&self, address: u64) -> Answer {
        if let Some(Named { name, start }) = self.stubs.find(address) {
            let name = demangle(name) + "@plt";
            let (location, inlined) = (None, Vec::new());
            return Answer::Found(Found { name, offset: address - start, location, inlined });
        }
        // Debug info that its reader does not expect costs the lines, and not the name.
        let describe = |it: &DebugInfo<'_>| {
            let described = panic::catch_unwind(AssertUnwindSafe(|| it.find(address)));
            described.unwrap_or_else(|_| Ok(Described::default()))
        };
        let described = match self.debug_info.as_ref().map(describe).transpose() {
            Ok(described) => described,
            Err(wanted) => return Answer::Wants(wanted),
        };
        let Described { function, location, inlined } = described.unwrap_or_default();
        // The outer function has the name that it has without lines.
        let named = self.table.find(address).or_else(|| self.stubs.find_shared(address));
        let (name, start) = match (named, function) {
            (Some(named), _) => (demangle(named.name), Some(named.start)),
            (None, Some(function)) => function,
            (None, None) => return Answer::None,
        };
        let offset = start.and_then(|start| address.checked_sub(start)).unwrap_or_default();
        Answer::Found(Found { name, offset, location, inlined })
    }
}

/// What `.gnu_debugdata` holds, if the file has no symbols for debuggers that are not packed:
/// <https://sourceware.org/gdb/current/onlinedocs/gdb.html/MiniDebugInfo.html>.
fn packed(images: &Images, time: Duration) -> Result<Option<Vec<u8>>, Malformed> {
    let main = Elf::parse(images.main.bytes(), images.main.allocated())?;
    let Some(section) = main.section(b".gnu_debugdata") else { return Ok(None) };
    if main.sections.iter().any(|it| it.kind == SHT_SYMTAB) {
        return Ok(None);
    }
    let packed = main.bytes_of(section).ok().filter(|it| it.len() <= MAX_DEBUG_DATA_PACKED_BYTES);
    let deadline = Instant::now().checked_add(time).filter(|_| !time.is_zero());
    let unpack = |packed| debug_data::unpack(packed, MAX_DEBUG_DATA_BYTES, deadline?);
    Ok(packed.and_then(unpack))
}
