//! What a code object is called, read from memory that its process may be changing.

use std::fmt;

use profiler_common::python::{CHECKED_WORDS, NONE, TEXT_HASH, check};
use serde::{Deserialize, Serialize};

use crate::{
    image::Loaded,
    lines::{Lines, MAX_TABLE_BYTES},
    memory::{Fault, Memory, half_in, is_object, word, word_in},
    text,
};

/// The most bytes of a code object that are read.
const MAX_HEAD: usize = 4096 + 64;

/// A function, class body or module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// Its name, qualified from 3.11 on.
    pub name: String,
    /// The file that it was compiled from, as Python was told.
    pub file: String,
    /// The line where it begins.
    pub first_line: u32,
    /// The lines of its instructions.
    pub lines: Lines,
}

/// Why a frame has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unnamed {
    /// The process had ended, or ran another program, when it was read.
    Gone,
    /// Another code object, or none, was at its address by then.
    Reused,
    /// No code object is there, or a damaged one.
    NotCode,
    /// There was no time or room for it any more.
    Budget,
}

impl fmt::Display for Unnamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "process gone",
            Self::Reused => "code gone",
            Self::NotCode => "no code object",
            Self::Budget => "out of time",
        })
    }
}

impl From<Fault> for Unnamed {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unmapped => Self::NotCode,
            Fault::Gone => Self::Gone,
            Fault::Budget => Self::Budget,
        }
    }
}

impl Code {
    /// Whether it is one of the interpreter's own, which Python does not show either: what runs `__init__` of a
    /// class (from 3.12 on).
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.first_line == 0 && self.file == "__init__" && self.name == "__init__"
    }

    /// Bytes of heap that it takes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.name.capacity() + self.file.capacity() + self.lines.heap_bytes()
    }
}

/// Reads the code object at an address, if it is the one of which the [check] was made.
pub fn read(
    memory: &impl Memory,
    loaded: &Loaded,
    address: u64,
    checked: u64,
) -> Result<Code, Unnamed> {
    let (offsets, types) = (&loaded.offsets, &loaded.types);
    let at = &offsets.code;
    if !is_object(address) {
        return Err(Unnamed::NotCode);
    }
    let mut head = [0; MAX_HEAD];
    let head = head.get_mut(..head_bytes(loaded)).ok_or(Unnamed::NotCode)?;
    memory.read(address, head)?;
    if checked_in(memory, loaded, head)? != checked {
        return Err(Unnamed::Reused);
    }
    let is_code = is_of(memory, loaded, word_in(head, offsets.object_type), types.code, "code")?;
    if !is_code {
        return Err(Unnamed::NotCode);
    }
    let text = |address: u64| {
        let is_text = is_object(address) && {
            let kind = word(memory, address.wrapping_add(offsets.object_type.into()))?;
            is_of(memory, loaded, kind, types.text, "str")?
        };
        if is_text { text::read(memory, &offsets.text, address) } else { Err(Unnamed::NotCode) }
    };
    let (name, file) = (text(word_in(head, at.name))?, text(word_in(head, at.file))?);
    let first_line = half_in(head, at.first_line);
    if name.is_empty() || i32::try_from(first_line).is_err() {
        return Err(Unnamed::NotCode);
    }
    let table = bytes(memory, loaded, word_in(head, at.line_table))?;
    let lines = Lines::decode(at.encoding, &table, first_line);
    // It may have become another one while it was read.
    memory.read(address, head)?;
    if checked_in(memory, loaded, head)? != checked {
        return Err(Unnamed::Reused);
    }
    Ok(Code { name, file, first_line, lines })
}

/// The [check] of what was read of a code object.
fn checked_in(memory: &impl Memory, loaded: &Loaded, head: &[u8]) -> Result<u64, Fault> {
    let at = &loaded.offsets.code;
    let mut words = [0; CHECKED_WORDS];
    for (word, at) in words.iter_mut().zip((at.check..).step_by(8)) {
        *word = word_in(head, at);
    }
    let name_hash = match at.checked_name {
        NONE => 0,
        name => word(memory, word_in(head, name).wrapping_add(TEXT_HASH.into()))?,
    };
    Ok(check(&words, name_hash))
}

/// The [check] of the code object that is at an address now.
pub fn check_at(memory: &impl Memory, loaded: &Loaded, address: u64) -> Result<u64, Fault> {
    let mut head = [0; MAX_HEAD];
    let head = head.get_mut(..head_bytes(loaded)).ok_or(Fault::Unmapped)?;
    memory.read(address, head)?;
    checked_in(memory, loaded, head)
}

/// How much of a code object has to be read.
fn head_bytes(loaded: &Loaded) -> usize {
    let (offsets, at) = (&loaded.offsets, &loaded.offsets.code);
    let name = if at.checked_name == NONE { 0 } else { at.checked_name };
    let fields = [at.file, at.name, name, at.line_table, at.first_line, offsets.object_type];
    let end = fields.into_iter().map(|it| usize::from(it) + 8).max().unwrap_or_default();
    end.max(usize::from(at.check) + 8 * CHECKED_WORDS)
}

/// Whether a type is that one, by its address if that is known, or else by its name.
fn is_of(
    memory: &impl Memory,
    loaded: &Loaded,
    kind: u64,
    known: Option<u64>,
    name: &str,
) -> Result<bool, Unnamed> {
    if let Some(known) = known {
        return Ok(kind == known);
    }
    if !is_object(kind) {
        return Ok(false);
    }
    let at = word(memory, kind.wrapping_add(loaded.offsets.type_name.into()))?;
    let mut bytes = [0; 8];
    let there = bytes.get_mut(..=name.len()).ok_or(Unnamed::NotCode)?;
    memory.read(at, there)?;
    Ok(there.strip_prefix(name.as_bytes()) == Some(&[0]))
}

/// The line table at an address; none if it is too long.
fn bytes(memory: &impl Memory, loaded: &Loaded, address: u64) -> Result<Vec<u8>, Unnamed> {
    let offsets = &loaded.offsets;
    if !is_object(address) {
        return Err(Unnamed::NotCode);
    }
    let kind = word(memory, address.wrapping_add(offsets.object_type.into()))?;
    if !is_of(memory, loaded, kind, loaded.types.bytes, "bytes")? {
        return Err(Unnamed::NotCode);
    }
    let len = word(memory, address.wrapping_add(offsets.bytes_len.into()))?;
    if len > MAX_TABLE_BYTES {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| Unnamed::NotCode)?];
    memory.read(address.wrapping_add(offsets.bytes_data.into()), &mut bytes)?;
    Ok(bytes)
}
