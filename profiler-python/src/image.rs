//! Whether a file is an interpreter, and what is to be known of it.
//!
//! Nothing depends on what the file is called: programs link the interpreter in, and load it as a library.

use std::fs::File;

use object::{
    LittleEndian as Little, U64,
    elf::{PF_X, PT_LOAD, SHT_NOBITS},
    read::{
        ReadRef as _,
        elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _},
    },
};
use profiler_elf::{Pieces, read_within};
use serde::{Deserialize, Serialize};

use crate::{
    debug_offsets,
    offsets::{Implausible, Offsets, Unsupported},
    symbols::{self, Header},
    version::Version,
};

/// The most that is read of a file: the symbols that debuggers use take some, if they have to be searched.
const BUDGET_BYTES: u64 = 12 << 20;
/// The most segments of code that a file may have.
const MAX_SEGMENTS: usize = 8;
/// The section of `_PyRuntime`, which is still there when symbols are stripped.
const SECTION: &[u8] = b".PyRuntime";

/// Defined by each interpreter, and by what tells which version it is. Those behind the first two tell types of
/// objects apart.
const SYMBOLS: [&str; 8] = [
    "_PyRuntime",
    // From 3.11 on.
    "Py_Version",
    "PyCode_Type",
    "PyUnicode_Type",
    "PyBytes_Type",
    // Functions of the C API that came with 3.8, 3.9 and 3.10.
    "PyCode_NewWithPosOnlyArgs",
    "PyFrame_GetCode",
    "PyIter_Send",
];

/// A file that is an interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Image {
    /// Where the structures of this interpreter have what.
    pub offsets: Offsets,
    /// The address of `_PyRuntime`, as the file has it.
    runtime: u64,
    /// Those of the types of code objects, strings and bytes, if the file tells.
    types: [Option<u64>; 3],
    code: Vec<Segment>,
}

/// A part of the file that is mapped to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Segment {
    offset: u64,
    address: u64,
    bytes: u64,
}

/// An interpreter in a process: where everything of it is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Loaded {
    /// Where its structures have what.
    pub offsets: Offsets,
    /// `_PyRuntime`.
    pub runtime: u64,
    /// The types of its objects.
    pub types: Types,
}

/// The addresses of types, as far as they are known. Of others the name is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Types {
    /// `code`
    pub code: Option<u64>,
    /// `str`
    pub text: Option<u64>,
    /// `bytes`
    pub bytes: Option<u64>,
}

impl Image {
    /// Looks whether a file is an interpreter; `None` if not. Small pieces of the file are read.
    pub fn of_file(file: &File) -> Result<Option<Self>, Unsupported> {
        read_within(file, BUDGET_BYTES, |data| Self::of(data).transpose())
    }

    /// `None` if it is no interpreter, or can't be read.
    fn of(data: Pieces<'_>) -> Option<Result<Self, Unsupported>> {
        let header = Header::parse(data).ok()?;
        header.endian().ok()?;
        let sections = header.sections(Little, data).ok()?;
        let all: Vec<_> = sections.iter().copied().collect();
        let found = symbols::find(data, &all, SYMBOLS);
        let segments = header.program_headers(Little, data).ok()?;
        let in_file = |address: u64| {
            segments.iter().filter(|it| it.p_type(Little) == PT_LOAD).find_map(|it| {
                let within = address.checked_sub(it.p_vaddr(Little))?;
                (within < it.p_filesz(Little)).then(|| it.p_offset(Little).checked_add(within))?
            })
        };
        let [runtime, version, code, text, bytes, eight, nine, ten] = found.unwrap_or_default();
        let runtime = runtime.or_else(|| {
            let (_, section) = sections.section_by_name(Little, SECTION)?;
            (section.sh_type(Little) != SHT_NOBITS).then(|| section.sh_addr(Little))
        })?;
        let said = in_file(runtime)
            .and_then(|at| {
                // It may lie at the end of what the file has.
                let available = data.len().ok()?.saturating_sub(at);
                data.read_bytes_at(at, available.min(debug_offsets::BYTES as u64)).ok()
            })
            .filter(|it| it.starts_with(debug_offsets::COOKIE));
        let version = version.and_then(in_file).and_then(|at| {
            let number = data.read_at::<U64<Little>>(at).ok()?.get(Little);
            u32::try_from(number).ok().map(Version)
        });
        let offsets = match (said, version) {
            (Some(said), version) => {
                let is_other = version.is_some() && version != debug_offsets::version(said);
                if is_other {
                    Err(Unsupported::Implausible(Implausible::Version))
                } else {
                    Offsets::from_debug_offsets(said)
                }
            }
            (None, Some(version)) => Offsets::of_version(version),
            (None, None) if found.is_none() => Err(Unsupported::Stripped),
            (None, None) => {
                let minor = match (eight, nine, ten) {
                    (Some(_), Some(_), Some(_)) => 10,
                    (Some(_), Some(_), None) => 9,
                    (Some(_), None, None) => 8,
                    _ => 7,
                };
                Offsets::of_version(Version::series(minor))
            }
        };
        let code_segments = segments
            .iter()
            .filter(|it| it.p_type(Little) == PT_LOAD && it.p_flags(Little) & PF_X != 0)
            .take(MAX_SEGMENTS)
            .map(|it| Segment {
                offset: it.p_offset(Little),
                address: it.p_vaddr(Little),
                bytes: it.p_filesz(Little),
            });
        let image = |offsets| Self {
            offsets,
            runtime,
            types: [code, text, bytes],
            code: code_segments.collect(),
        };
        Some(offsets.map(image))
    }

    /// The interpreter in a process, which has the code at this offset of the file mapped at this address. `None`
    /// if there is no code.
    #[must_use]
    pub fn loaded_at(&self, start: u64, file_offset: u64) -> Option<Loaded> {
        // A mapping may begin before its segment: at a page.
        let segment = self.code.iter().find(|it| {
            let (page, end) = (it.offset & !0xffff, it.offset.saturating_add(it.bytes));
            (page..end).contains(&file_offset)
        })?;
        let address = segment.address.wrapping_add(file_offset).wrapping_sub(segment.offset);
        let bias = start.wrapping_sub(address);
        let moved = |address: u64| address.wrapping_add(bias);
        let [code, text, bytes] = self.types.map(|it| it.map(moved));
        Some(Loaded {
            offsets: self.offsets.clone(),
            runtime: moved(self.runtime),
            types: Types { code, text, bytes },
        })
    }
}
