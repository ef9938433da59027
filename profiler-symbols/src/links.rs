//! The companions that a file names.

use object::{
    Endian as _,
    elf::{ELF_NOTE_GNU, NT_GNU_BUILD_ID, SHT_NOTE},
};
use profiler_common::build_id::BuildId;

use crate::{
    Malformed,
    image::{Elf, Image},
};

/// What a file says of its companions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Its own build id, which its debug file has, too.
    pub build_id: Option<BuildId>,
    /// Its debug file, if it was stripped of it.
    pub debug: Option<DebugLink>,
    /// The file that it shares debug info in with others.
    pub supplementary: Option<AltLink>,
    /// Whether some debug info is in `.dwo` files, or in a package of them.
    pub is_split: bool,
}

/// What `.gnu_debuglink` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugLink {
    /// The file's name: no path.
    pub name: Vec<u8>,
    /// The CRC-32 of all its bytes.
    pub crc: u32,
}

/// What `.gnu_debugaltlink` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AltLink {
    /// The file's path, absolute or from the folder of the file that names it.
    pub path: Vec<u8>,
    /// Its build id.
    pub build_id: BuildId,
}

/// Which companions a file names: a main file, or a debug file.
pub fn links(image: &Image) -> Result<Links, Malformed> {
    let elf = Elf::parse(image.bytes(), image.allocated())?;
    Ok(Links {
        build_id: build_id(&elf),
        debug: debug_link(&elf),
        supplementary: alt_link(&elf),
        is_split: elf.section(b".debug_addr").is_some(),
    })
}

fn section<'d>(elf: &Elf<'d>, name: &[u8]) -> Option<&'d [u8]> {
    elf.bytes_of(elf.section(name)?).ok()
}

pub(crate) fn build_id(elf: &Elf<'_>) -> Option<BuildId> {
    let notes = elf.sections.iter().filter(|it| it.kind == SHT_NOTE);
    notes.filter_map(|it| elf.bytes_of(it).ok()).find_map(|notes| build_id_in(elf, notes))
}

fn build_id_in(elf: &Elf<'_>, mut notes: &[u8]) -> Option<BuildId> {
    let number = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..)?.first_chunk()?;
        usize::try_from(elf.endian.read_u32(*bytes)).ok()
    };
    loop {
        let (name_bytes, bytes) = (number(notes, 0)?, number(notes, 4)?);
        let kind = number(notes, 8)?;
        let rest = notes.get(12..)?;
        let name = rest.get(..name_bytes)?;
        let rest = rest.get(name_bytes.next_multiple_of(4)..)?;
        let content = rest.get(..bytes)?;
        if kind == NT_GNU_BUILD_ID as usize && name == [ELF_NOTE_GNU, b"\0"].concat() {
            return BuildId::from_slice(content);
        }
        notes = rest.get(bytes.next_multiple_of(4)..)?;
    }
}

/// A name that ends with a zero, filled up to four bytes, and the checksum:
/// <https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html>.
fn debug_link(elf: &Elf<'_>) -> Option<DebugLink> {
    let bytes = section(elf, b".gnu_debuglink")?;
    let name = bytes.split(|&byte| byte == 0).next()?;
    let crc = bytes.get((name.len() + 1).next_multiple_of(4)..)?.first_chunk()?;
    let is_name = !name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..";
    is_name.then(|| DebugLink { name: name.to_vec(), crc: elf.endian.read_u32(*crc) })
}

/// A path that ends with a zero, and a build id.
fn alt_link(elf: &Elf<'_>) -> Option<AltLink> {
    let bytes = section(elf, b".gnu_debugaltlink")?;
    let path = bytes.split(|&byte| byte == 0).next().filter(|path| !path.is_empty())?;
    let build_id = BuildId::from_slice(bytes.get(path.len() + 1..)?)?;
    Some(AltLink { path: path.to_vec(), build_id })
}
