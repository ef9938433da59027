//! Where the structures of an interpreter have what: from a [table](crate::tables) for 3.8 to 3.12, by what the
//! interpreter says [itself](crate::debug_offsets) from 3.13 on.

use std::fmt;

use profiler_common::python::{DIRECT, FRAME_BYTES, Layout};
use serde::{Deserialize, Serialize};

use crate::{debug_offsets, slot::Slot, tables, version::Version};

/// Where what is, in bytes from the begin of each structure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Offsets {
    /// Whose they are.
    pub version: Version,
    /// Whether it has no GIL.
    pub is_free_threaded: bool,
    /// In `_PyRuntime`: the first interpreter.
    pub interpreters: u32,
    /// In an interpreter: the next one.
    pub next_interpreter: u32,
    /// In an interpreter: its first thread's state.
    pub threads: u32,
    /// In the state of a thread.
    pub thread: ThreadOffsets,
    /// Of what the frames are walked by.
    pub frames: FrameOffsets,
    /// In a code object.
    pub code: CodeOffsets,
    /// In any object: its type.
    pub object_type: u16,
    /// In a type: the address of its name.
    pub type_name: u16,
    /// In a string.
    pub text: TextOffsets,
    /// In `bytes`: how many there are.
    pub bytes_len: u16,
    /// In `bytes`: the first of them.
    pub bytes_data: u16,
}

/// In the state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThreadOffsets {
    /// The next state of the same interpreter.
    pub next: u16,
    /// The interpreter.
    pub interpreter: u16,
    /// `pthread_self()` of the thread.
    pub id: u16,
}

/// As in [`Layout`], where each is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct FrameOffsets {
    pub state_frame: u16,
    pub state_cframe: u16,
    pub cframe_frame: u16,
    pub cframe_back: u16,
    pub code: u16,
    pub back: u16,
    pub instruction: u16,
    pub owner: u16,
    pub entry_owner: u8,
    pub entry: u8,
}

/// In a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CodeOffsets {
    /// The file that it was compiled from.
    pub file: u16,
    /// Its name, qualified where the version has that (from 3.11 on).
    pub name: u16,
    /// The line where it begins.
    pub first_line: u16,
    /// Which line each instruction is from.
    pub line_table: u16,
    /// How that is encoded.
    pub encoding: Encoding,
    /// The first instruction; 0 where that is another object (before 3.11).
    pub first_instruction: u16,
    /// See [`Layout::check`].
    pub check: u16,
    /// See [`Layout::checked_name`].
    pub checked_name: u16,
}

/// How a line table is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Encoding {
    /// `co_lnotab`, up to 3.9; instructions are told by their byte.
    Lnotab,
    /// `co_linetable` of 3.10.
    LineTable,
    /// `co_linetable` from 3.11 on, with columns.
    Locations,
}

/// In a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TextOffsets {
    /// How many characters there are.
    pub len: u16,
    /// How they are kept.
    pub state: u16,
    /// At which bit of that the three are that say how wide a character is.
    pub kind_bit: u8,
    /// The first character, if all are ASCII.
    pub ascii: u16,
    /// The first character, if they are not.
    pub wide: u16,
}

/// Why an interpreter's frames can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unsupported {
    /// No offsets are known for this version.
    Version(Version),
    /// It is older than this version, and its symbols are stripped, so that nothing says which one it is.
    Stripped,
    /// What it says of itself makes no sense here.
    Implausible(Implausible),
}

/// What makes no sense in what an interpreter says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Implausible {
    /// An offset leads out of its structure.
    Offset,
    /// What has to stand side by side in a code object does not.
    Code,
    /// It ends too early.
    Short,
    /// The version is another than the file's.
    Version,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "Python {version} is not known"),
            Self::Stripped => f.write_str("a Python before 3.13 without symbols"),
            Self::Implausible(what) => {
                let what = match what {
                    Implausible::Offset => "an offset is out of range",
                    Implausible::Code => "code objects are laid out in an unknown way",
                    Implausible::Short => "they end too early",
                    Implausible::Version => "their version is not that of the file",
                };
                write!(f, "the debug offsets of this Python make no sense: {what}")
            }
        }
    }
}

impl Offsets {
    /// Those of a version that does not tell them itself.
    pub fn of_version(version: Version) -> Result<Self, Unsupported> {
        tables::of(version).ok_or(Unsupported::Version(version))
    }

    /// Those that an interpreter tells at the begin of `_PyRuntime`.
    pub fn from_debug_offsets(bytes: &[u8]) -> Result<Self, Unsupported> {
        debug_offsets::parse(bytes)
    }

    /// What the eBPF program walks by, with the place of a thread's state.
    #[must_use]
    pub fn layout(&self, slot: Slot) -> Layout {
        let frames = &self.frames;
        Layout {
            slot: slot.offset,
            slot_in_table: slot.in_table.unwrap_or(DIRECT),
            state_frame: frames.state_frame,
            state_cframe: frames.state_cframe,
            cframe_frame: frames.cframe_frame,
            cframe_back: frames.cframe_back,
            code: frames.code,
            back: frames.back,
            instruction: frames.instruction,
            owner: frames.owner,
            entry_owner: frames.entry_owner,
            entry: frames.entry,
            first_instruction: self.code.first_instruction,
            check: self.code.check,
            checked_name: self.code.checked_name,
            frame_bytes: frames.bytes().unwrap_or(FRAME_BYTES),
            reserved: 0,
        }
    }
}

impl FrameOffsets {
    /// How much of a frame has to be read; `None` if that is more than is read.
    pub(crate) fn bytes(&self) -> Option<u16> {
        let owner = if self.owner == profiler_common::python::NONE { 0 } else { self.owner };
        let last = [self.code, self.back, self.instruction, owner].into_iter().max()?;
        last.checked_add(8).map(|it| it & !7).filter(|bytes| *bytes <= FRAME_BYTES)
    }
}
