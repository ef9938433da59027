//! Source lines and inlined functions, from DWARF.

use std::{cell::RefCell, sync::Arc};

use addr2line::{Context, LookupContinuation as _, LookupResult};
use gimli::{Dwarf, DwarfPackage, EndianSlice, RunTimeEndian, SectionId};
use object::Endianness;
use rustc_hash::FxHashMap;

use crate::{
    arena::Arena,
    demangle::demangle,
    image::Elf,
    symbol_file::{DwoWanted, Inlined, Location},
    table::name_in,
};

/// The most `.dwo` files of one program that are read.
pub(crate) const MAX_DWOS: usize = 1024;
/// The most functions that are inlined into each other at one address; beyond, the innermost are shown.
const MAX_INLINED: usize = 128;

type Reader<'d> = EndianSlice<'d, RunTimeEndian>;
type Sections<'d> = Dwarf<Reader<'d>>;

/// What DWARF says of an address.
#[derive(Debug, Default)]
pub(crate) struct Described {
    /// The function, and where it begins if that is known.
    pub(crate) function: Option<(String, Option<u64>)>,
    pub(crate) location: Option<Location>,
    /// Innermost first.
    pub(crate) inlined: Vec<Inlined>,
}

/// The debug info of a program.
pub(crate) struct DebugInfo<'d> {
    context: Context<Reader<'d>>,
    package: Option<DwarfPackage<Reader<'d>>>,
    /// What came of asking for each; `None` if it is not to be had.
    dwos: RefCell<FxHashMap<u64, Option<Arc<Sections<'d>>>>>,
}

impl<'d> DebugInfo<'d> {
    /// The debug info in a file, with what it shares with others and a package of what it was split off;
    /// `None` if there is none, or it can't be read.
    pub(crate) fn load(
        elf: &Elf<'d>,
        supplementary: Option<&Elf<'d>>,
        package: Option<&Elf<'d>>,
        arena: &'d Arena,
    ) -> Option<Self> {
        elf.debug_section(".debug_info", arena).filter(|it| !it.is_empty())?;
        let mut dwarf = sections(elf, arena, |id| Some(id.name()));
        if let Some(elf) = supplementary {
            dwarf.set_sup(sections(elf, arena, |id| Some(id.name())));
        }
        let empty = Reader::new(&[], endian(elf));
        let load = |id: SectionId| -> Result<_, gimli::Error> {
            let section = id.dwo_name().zip(package);
            let section = section.and_then(|(name, package)| package.debug_section(name, arena));
            Ok(EndianSlice::new(section.unwrap_or_default(), endian(elf)))
        };
        let package = package.and_then(|_| DwarfPackage::load(load, empty).ok());
        let context = Context::from_dwarf(dwarf).ok()?;
        Some(Self { context, package, dwos: RefCell::default() })
    }

    /// Takes a `.dwo` file that was asked for. One with another id is of another build.
    pub(crate) fn supply(&self, id: u64, elf: Option<&Elf<'d>>, arena: &'d Arena) {
        let dwarf = elf.map(|elf| sections(elf, arena, SectionId::dwo_name));
        let dwarf = dwarf.filter(|dwarf| has_unit(dwarf, id)).map(|mut dwarf| {
            dwarf.file_type = gimli::DwarfFileType::Dwo;
            dwarf
        });
        let mut dwos = self.dwos.borrow_mut();
        if dwos.len() < MAX_DWOS {
            dwos.insert(id, dwarf.map(Arc::new));
        }
    }

    /// What is said of an address; nothing if that can't be read. An error asks for a `.dwo` file.
    pub(crate) fn find(&self, address: u64) -> Result<Described, DwoWanted> {
        let described = self.frames(address)?.unwrap_or_default();
        if described.location.is_some() || described.function.is_some() {
            return Ok(described);
        }
        // The functions can't be read: the lines may be.
        let location = self.context.find_location(address).ok().flatten();
        Ok(Described { location: location.and_then(|it| self::location(&it)), ..described })
    }

    fn frames(&self, address: u64) -> Result<Option<Described>, DwoWanted> {
        let mut lookup = self.context.find_frames(address);
        let frames = loop {
            match lookup {
                LookupResult::Output(frames) => break frames,
                LookupResult::Load { load, continuation } => {
                    let id = load.dwo_id.0;
                    let packaged = self.package.as_ref();
                    let packaged =
                        packaged.and_then(|it| it.find_cu(load.dwo_id, &load.parent).ok()?);
                    let dwo = match packaged {
                        Some(dwo) => Some(Arc::new(dwo)),
                        None => {
                            let dwos = self.dwos.borrow();
                            match dwos.get(&id) {
                                Some(known) => {
                                    known.as_ref().map(|dwo| with_parent(dwo, &load.parent))
                                }
                                None if dwos.len() >= MAX_DWOS => None,
                                None => {
                                    let bytes = |it: Option<Reader<'_>>| {
                                        it.map(|it| it.slice().to_vec()).unwrap_or_default()
                                    };
                                    let (directory, name) =
                                        (bytes(load.comp_dir), bytes(load.path));
                                    return Err(DwoWanted { id, directory, name });
                                }
                            }
                        }
                    };
                    lookup = continuation.resume(dwo);
                }
            }
        };
        let Ok(mut frames) = frames else { return Ok(None) };
        let mut described = Described::default();
        let mut innermost_first = Vec::new();
        // What can't be read of them is left out.
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.and_then(|it| name(it.name.slice()));
            innermost_first.push((
                name,
                frame.dw_die_offset,
                frame.location.and_then(|it| location(&it)),
            ));
        }
        if let Some((name, die, location)) = innermost_first.pop() {
            let start = die.and_then(|die| self.start_of(address, die));
            described.function = name.map(|name| (name, start));
            described.location = location;
        }
        let inlined = innermost_first.into_iter();
        described.inlined = inlined
            .filter_map(|(name, _, location)| Some(Inlined { name: name?, location }))
            .take(MAX_INLINED)
            .collect();
        Ok(Some(described))
    }

    /// Where the function begins that this entry describes.
    fn start_of(&self, address: u64, die: gimli::UnitOffset) -> Option<u64> {
        let LookupResult::Output(unit) = self.context.find_dwarf_and_unit(address) else {
            return None;
        };
        let unit = unit?;
        let entry = unit.entry(die).ok()?;
        let low = entry.attr_value(gimli::DW_AT_low_pc)?;
        unit.attr_address(low).ok()?.filter(|&low| low <= address)
    }
}

/// A `.dwo` file's sections, with what they take from the program's own.
fn with_parent<'d>(dwo: &Sections<'d>, parent: &Sections<'d>) -> Arc<Sections<'d>> {
    let mut of_dwo = Dwarf {
        debug_abbrev: dwo.debug_abbrev,
        debug_info: dwo.debug_info,
        debug_line: dwo.debug_line,
        debug_line_str: dwo.debug_line_str,
        debug_str: dwo.debug_str,
        debug_str_offsets: dwo.debug_str_offsets,
        debug_types: dwo.debug_types,
        locations: dwo.locations,
        ranges: dwo.ranges,
        file_type: gimli::DwarfFileType::Dwo,
        ..Dwarf::default()
    };
    of_dwo.make_dwo(parent);
    Arc::new(of_dwo)
}

fn endian(elf: &Elf<'_>) -> RunTimeEndian {
    match elf.endian {
        Endianness::Little => RunTimeEndian::Little,
        Endianness::Big => RunTimeEndian::Big,
    }
}

fn sections<'d>(
    elf: &Elf<'d>,
    arena: &'d Arena,
    name: impl Fn(SectionId) -> Option<&'static str>,
) -> Sections<'d> {
    let load = |id: SectionId| -> Result<_, std::convert::Infallible> {
        let section = name(id).and_then(|name| elf.debug_section(name, arena));
        Ok(EndianSlice::new(section.unwrap_or_default(), endian(elf)))
    };
    match Dwarf::load(load) {
        Ok(dwarf) => dwarf,
        Err(never) => match never {},
    }
}

/// Whether the first unit of a `.dwo` file has this id.
fn has_unit(dwarf: &Sections<'_>, id: u64) -> bool {
    let unit = || dwarf.unit(dwarf.units().next().ok()??).ok();
    unit().and_then(|unit| unit.dwo_id).is_some_and(|it| it.0 == id)
}

fn name(bytes: &[u8]) -> Option<String> {
    let bytes = name_in(bytes);
    (!bytes.is_empty()).then(|| demangle(bytes))
}

fn location(of: &addr2line::Location<'_>) -> Option<Location> {
    let path = of.file.filter(|it| !it.is_empty())?;
    Some(Location { path: crate::demangle::cut(path), line: of.line })
}
