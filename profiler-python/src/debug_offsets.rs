//! What an interpreter from 3.13 on says of itself: `_Py_DebugOffsets`, at the begin of `_PyRuntime`.
//!
//! <https://github.com/python/cpython/blob/3.14/Include/internal/pycore_debug_offsets.h>: numbers of 64 bits, in
//! groups, one for each structure. A minor version fixes which there are.

use profiler_common::python::{NONE, entry};

use crate::{
    offsets::{
        CodeOffsets, Encoding, FrameOffsets, Implausible, Offsets, TextOffsets, ThreadOffsets,
        Unsupported,
    },
    version::Version,
};

/// What it begins with.
pub(crate) const COOKIE: &[u8; 8] = b"xdebugpy";
/// As much is needed of it at most.
pub(crate) const BYTES: usize = 8 * 128;

/// Structures that hold much else are larger than others.
const MAX_LARGE: u64 = 1 << 20;
const MAX_SMALL: u64 = 1 << 12;

/// Which groups a version has, in this order, and how many numbers each of them.
struct Groups {
    interpreter: usize,
    thread: usize,
    /// Between the threads and the frames.
    exceptions: usize,
    frame: usize,
    code: usize,
    types: usize,
    /// Between the types and `bytes`: tuples, lists, sets, dicts, floats and ints.
    others: usize,
    text: usize,
    /// In the group of a thread: the frame and the id.
    thread_frame: usize,
    thread_id: usize,
}

fn groups(minor: u8) -> Option<Groups> {
    let fourteen = Groups {
        interpreter: 16,
        thread: 9,
        exceptions: 0,
        frame: 8,
        code: 11,
        types: 4,
        others: 3 + 3 + 4 + 3 + 2 + 3,
        text: 4,
        thread_frame: 4,
        thread_id: 5,
    };
    Some(match minor {
        13 => Groups { interpreter: 13, frame: 6, code: 10, others: 3 + 3 + 3 + 2 + 3, ..fourteen },
        14 => fourteen,
        // With base_frame, last_profiled_frame and its sequence before the thread's ids, and four fields behind;
        // an item of the exception stack; two more of a type, and two of a heap type; one more of a string.
        15 => Groups {
            thread: 16,
            exceptions: 1,
            types: 6,
            others: 2 + fourteen.others,
            text: 5,
            thread_id: 8,
            ..fourteen
        },
        _ => return None,
    })
}

/// The numbers of a group, read one after the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn group<const NEEDED: usize>(&mut self, count: usize) -> Result<[u64; NEEDED], Implausible> {
        let (group, rest) = self.0.split_at_checked(count * 8).ok_or(Implausible::Short)?;
        self.0 = rest;
        let mut numbers = [0; NEEDED];
        for (number, bytes) in numbers.iter_mut().zip(group.as_chunks().0) {
            *number = u64::from_le_bytes(*bytes);
        }
        Ok(numbers)
    }
}

/// The version that is said, if it is that at all.
pub(crate) fn version(bytes: &[u8]) -> Option<Version> {
    let rest = bytes.strip_prefix(COOKIE)?;
    let number = u64::from_le_bytes(*rest.first_chunk()?);
    u32::try_from(number).ok().map(Version)
}

/// The offsets in what begins with the [cookie](COOKIE).
pub(crate) fn parse(bytes: &[u8]) -> Result<Offsets, Unsupported> {
    let version = version(bytes).ok_or(Unsupported::Implausible(Implausible::Short))?;
    let minor = version.minor().ok_or(Unsupported::Version(version))?;
    let groups = groups(minor).ok_or(Unsupported::Version(version))?;
    read(bytes, version, minor, &groups).map_err(Unsupported::Implausible)
}

fn read(
    bytes: &[u8],
    version: Version,
    minor: u8,
    groups: &Groups,
) -> Result<Offsets, Implausible> {
    let mut reader = Reader(bytes);
    let [_, _, is_free_threaded] = reader.group(3)?;
    let [_, _, interpreters] = reader.group(3)?;
    let [_, _, next_interpreter, threads] = reader.group(groups.interpreter)?;
    let thread: [u64; 16] = reader.group(groups.thread)?;
    let _: [u64; 0] = reader.group(groups.exceptions)?;
    let [_, back, executable, instruction, _, owner] = reader.group(groups.frame)?;
    let code: [u64; 11] = reader.group(groups.code)?;
    let [_, object_type] = reader.group(2)?;
    let [_, type_name] = reader.group(groups.types)?;
    let _: [u64; 0] = reader.group(groups.others)?;
    let [_, bytes_len, bytes_data] = reader.group(3)?;
    let [_, state, len, ascii, wide] = reader.group(groups.text)?;

    let of_thread = |at: usize| small(thread.get(at).copied().unwrap_or(u64::MAX));
    let [_, file, _, name, line_table, first_line, _, variables, kinds, first_instruction, _] =
        code;
    // The number that no other code object has had, `co_version`, is not told. It comes before these.
    let check = variables.checked_sub(8).ok_or(Implausible::Code)?;
    if [kinds.checked_sub(8), file.checked_sub(16)] != [Some(variables); 2] {
        return Err(Implausible::Code);
    }
    let is_free_threaded = is_free_threaded != 0;
    // `utf8_length` and `utf8` come between.
    let wide = if groups.text > 4 { wide } else { ascii.saturating_add(16) };
    let frames = FrameOffsets {
        state_frame: of_thread(groups.thread_frame)?,
        state_cframe: NONE,
        cframe_frame: NONE,
        cframe_back: NONE,
        code: small(executable)?,
        back: small(back)?,
        instruction: small(instruction)?,
        owner: any(owner)?,
        // FRAME_OWNED_BY_CSTACK, from 3.14 on FRAME_OWNED_BY_INTERPRETER.
        entry_owner: 3,
        entry: entry::FRAME,
    };
    frames.bytes().ok_or(Implausible::Offset)?;
    Ok(Offsets {
        version,
        is_free_threaded,
        interpreters: large(interpreters)?,
        next_interpreter: large(next_interpreter)?,
        threads: large(threads)?,
        thread: ThreadOffsets {
            next: of_thread(2)?,
            interpreter: of_thread(3)?,
            id: of_thread(groups.thread_id)?,
        },
        frames,
        code: CodeOffsets {
            file: small(file)?,
            name: small(name)?,
            first_line: any(first_line)?,
            line_table: small(line_table)?,
            encoding: Encoding::Locations,
            first_instruction: small(first_instruction)?,
            check: small(check)?,
            checked_name: NONE,
        },
        object_type: small(object_type)?,
        type_name: small(type_name)?,
        text: TextOffsets {
            len: small(len)?,
            state: any(state)?,
            // `interned` is a byte of its own there (unicodeobject.h).
            kind_bit: if is_free_threaded && minor >= 14 { 8 } else { 2 },
            ascii: any(ascii)?,
            wide: any(wide)?,
        },
        bytes_len: small(bytes_len)?,
        bytes_data: any(bytes_data)?,
    })
}

/// Of a word in a large structure.
fn large(offset: u64) -> Result<u32, Implausible> {
    let is_sane = offset < MAX_LARGE && offset.is_multiple_of(8);
    u32::try_from(offset).ok().filter(|_| is_sane).ok_or(Implausible::Offset)
}

/// Of a word.
fn small(offset: u64) -> Result<u16, Implausible> {
    any(offset).and_then(|it| if it.is_multiple_of(8) { Ok(it) } else { Err(Implausible::Offset) })
}

/// Of whatever.
fn any(offset: u64) -> Result<u16, Implausible> {
    u16::try_from(offset).ok().filter(|_| offset < MAX_SMALL).ok_or(Implausible::Offset)
}
