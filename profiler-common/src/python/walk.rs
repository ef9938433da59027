//! From a frame of CPython to its caller.

use super::{
    CHECKED_WORDS, DIRECT, Layout, NONE, TEXT_HASH, check, entry,
    wire::{Frame, NO_INSTRUCTION},
};

/// Words that are read of a frame: more than [`FRAME_BYTES`](super::FRAME_BYTES), since a power of two lets the
/// verifier see that a masked index is within.
pub const FRAME_WORDS: usize = 16;

/// What a walk can read.
pub trait Memory {
    /// Eight bytes anywhere.
    fn word(&mut self, address: u64) -> Option<u64>;
    /// The first so many bytes of a frame, at most [`FRAME_BYTES`](super::FRAME_BYTES), and whatever behind.
    fn frame(&mut self, address: u64, bytes: u16) -> Option<&[u64; FRAME_WORDS]>;
    /// What [`check`] is made of.
    fn checked(&mut self, address: u64) -> Option<[u64; CHECKED_WORDS]>;
}

/// Where a walk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Chain {
    /// The next frame; 0 behind the last.
    pub frame: u64,
    /// The `cframe` of the evaluator's call that runs it, where there is one.
    pub cframe: u64,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Code that it runs.
    pub code: Option<Frame>,
    /// That the evaluator was entered with it.
    pub entry: Option<Frame>,
}

/// Why a walk goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was the outermost frame, or the thread runs no Python code.
    Complete,
    /// What has to be there can't be read, or is no frame.
    Unreadable,
}

/// The innermost frame of a thread, by its thread pointer.
#[inline(always)]
pub fn begin(
    layout: &Layout,
    thread_pointer: u64,
    memory: &mut impl Memory,
) -> Result<Chain, Stop> {
    let mut state = read(memory, thread_pointer.wrapping_add(layout.slot.cast_unsigned()))?;
    if layout.slot_in_table != DIRECT && state != 0 {
        let at = state.wrapping_add(i64::from(layout.slot_in_table).cast_unsigned());
        state = read(memory, at)?;
    }
    if state == 0 {
        return Err(Stop::Complete);
    }
    let mut cframe = 0;
    if layout.state_cframe != NONE {
        cframe = read(memory, add(state, layout.state_cframe))?;
    }
    let at = if layout.state_frame == NONE {
        add(cframe, layout.cframe_frame)
    } else {
        add(state, layout.state_frame)
    };
    Ok(Chain { frame: read(memory, at)?, cframe })
}

/// What the frame at hand is, and to its caller.
#[inline(always)]
pub fn step(layout: &Layout, chain: &mut Chain, memory: &mut impl Memory) -> Result<Step, Stop> {
    let at = chain.frame;
    if at == 0 {
        return Err(Stop::Complete);
    }
    if at & 7 != 0 {
        return Err(Stop::Unreadable);
    }
    let words = memory.frame(at, layout.frame_bytes).ok_or(Stop::Unreadable)?;
    let code = word(words, layout.code) & !7;
    let back = word(words, layout.back);
    let instruction = word(words, layout.instruction) >> (u32::from(layout.instruction & 7) * 8);
    let owner = word(words, layout.owner) >> (u32::from(layout.owner & 7) * 8) & 0xff;
    let is_entry = layout.entry <= entry::EACH_CFRAME || owner >= u64::from(layout.entry_owner);
    chain.frame = back;
    if is_entry && layout.entry == entry::FRAME {
        return Ok(Step { code: None, entry: Some(Frame::Entry { record: at }) });
    }
    if code == 0 {
        return Err(Stop::Unreadable);
    }
    let instruction = if layout.first_instruction == 0 {
        instruction & 0xffff_ffff
    } else {
        instruction.wrapping_sub(add(code, layout.first_instruction)) >> 1
    };
    let instruction = u32::try_from(instruction).unwrap_or(NO_INSTRUCTION).min(NO_INSTRUCTION);
    let check = check_of(layout, code, memory).unwrap_or(0);
    let code = Some(Frame::Code { code, instruction, check });
    if !is_entry {
        return Ok(Step { code, entry: None });
    }
    let record = chain.cframe;
    if layout.entry != entry::EACH && record != 0 {
        // Without the one before there are no records any more, but frames.
        chain.cframe = memory.word(add(record, layout.cframe_back)).unwrap_or(0);
    }
    Ok(Step { code, entry: Some(Frame::Entry { record }) })
}

/// The check of a code object, as it is now.
#[inline(always)]
fn check_of(layout: &Layout, code: u64, memory: &mut impl Memory) -> Option<u64> {
    let words = memory.checked(add(code, layout.check))?;
    let mut name_hash = 0;
    if layout.checked_name != NONE {
        // It is one of the words.
        let at = layout.checked_name.wrapping_sub(layout.check) >> 3;
        let name = *words.get(usize::from(at) & (CHECKED_WORDS - 1))?;
        name_hash = memory.word(add(name, TEXT_HASH))?;
    }
    Some(check(&words, name_hash))
}

#[inline(always)]
fn add(address: u64, offset: u16) -> u64 {
    address.wrapping_add(u64::from(offset))
}

#[inline(always)]
fn read(memory: &mut impl Memory, address: u64) -> Result<u64, Stop> {
    memory.word(address).ok_or(Stop::Unreadable)
}

/// The masked index is one that the verifier sees to be within.
#[inline(always)]
fn word(words: &[u64; FRAME_WORDS], at: u16) -> u64 {
    words.get(usize::from(at >> 3) & (FRAME_WORDS - 1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
