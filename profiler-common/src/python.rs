//! Where CPython keeps the frames of a thread, and how one of them is told on the wire.
//!
//! The agent finds a [`Layout`] for each process that has the interpreter; the eBPF program walks by it, and
//! knows nothing of versions.

/// Where what is, in bytes, and how a thread's state is found.
///
/// All offsets are from the begin of the structure in question. [`NONE`] stands for a field that a version
/// does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Layout {
    /// From the thread pointer (x86-64: the base of `fs`; aarch64: `tpidr_el0`) to the word that is the address
    /// of the thread's state, or leads to it.
    pub slot: i64,
    /// Where that word is not yet the state's address, but that of a table: how far in there it is, as with
    /// glibc's keys from 32 on, and with musl. [`DIRECT`] where it is.
    pub slot_in_table: i32,
    /// In the state: the innermost frame. [`NONE`] where that is in the `cframe`.
    pub state_frame: u16,
    /// In the state: the `cframe` (3.10 to 3.12).
    pub state_cframe: u16,
    /// In the `cframe`: the innermost frame (3.11 and 3.12).
    pub cframe_frame: u16,
    /// In the `cframe`: the one before (3.10 and 3.11).
    pub cframe_back: u16,
    /// In a frame: its code object, of whose address the lowest three bits do not count.
    pub code: u16,
    /// In a frame: the frame that called it.
    pub back: u16,
    /// In a frame: the instruction. A pointer to it, or where `first_instruction` is 0, a number of 32 bits.
    pub instruction: u16,
    /// In a frame: the byte that tells whether it is an entry ([`entry`]).
    pub owner: u16,
    /// From which value on that byte does.
    pub entry_owner: u8,
    /// One of [`entry`].
    pub entry: u8,
    /// In a code object: its first instruction.
    pub first_instruction: u16,
    /// In a code object: the first of [`CHECKED_WORDS`] words that do not change as long as it lives. From 3.12 on
    /// there is a number among them that no other code object has had; before, they are the addresses of its name,
    /// file and line table.
    pub check: u16,
    /// In a code object: its name, a string whose hash is checked too, since a program that makes code again and
    /// again has all of those addresses again and again. [`NONE`] from 3.12 on.
    pub checked_name: u16,
    /// How much of a frame is read, at most [`FRAME_BYTES`]: up to the last field of these.
    pub frame_bytes: u16,
}

const _: () = assert!(size_of::<Layout>() == 40, "no implicit padding");

/// No such field.
pub const NONE: u16 = u16::MAX;
/// There is no table: see [`Layout::slot_in_table`].
pub const DIRECT: i32 = i32::MAX;
/// The most that is read of a frame.
pub const FRAME_BYTES: u16 = 112;
/// How many words of a code object tell it from the next at its address.
pub const CHECKED_WORDS: usize = 4;
/// In a string, up to 3.11: its hash, which each name has. See [`Layout::checked_name`].
pub const TEXT_HASH: u16 = 24;

/// How it is told which frames the evaluator was entered with: each call of it runs one or more of them, and
/// keeps a record of that on the C stack, between the native frames of what it calls and of what has called it.
pub mod entry {
    /// With each frame; there is no record (3.8 and 3.9).
    pub const EACH: u8 = 0;
    /// With each frame; the record is the `cframe` (3.10).
    pub const EACH_CFRAME: u8 = 1;
    /// With those of which the owner's byte says so, and the record is the `cframe` (3.11: `is_entry`).
    pub const CFRAME: u8 = 2;
    /// The record is a frame itself, one that runs no code; the owner's byte says so (from 3.12 on).
    pub const FRAME: u8 = 3;
}

/// A frame on the wire: two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Address of the code object; 0 where the interpreter was just entered, and runs none yet.
    pub code: u64,
    /// Which instruction, in the version's unit, counted from the first; [`NO_INSTRUCTION`] where that is not
    /// known.
    pub instruction: u32,
    /// What [`check`] gave for the code object at the time of the sample; 0 where it could not be read.
    pub check: u64,
    /// Whether the evaluator was entered with this frame: the next is of another call of it.
    pub is_entry: bool,
}

/// The instruction is not known.
pub const NO_INSTRUCTION: u32 = (1 << INSTRUCTION_BITS) - 1;
/// How many words a frame takes on the wire.
pub const WIRE_WORDS: usize = 2;

const INSTRUCTION_BITS: u32 = 20;
/// In the first word. Addresses of user space have fewer bits.
const ENTRY: u64 = 1 << 63;

impl Frame {
    /// As it is sent.
    #[inline]
    #[must_use]
    pub const fn to_wire(self) -> [u64; WIRE_WORDS] {
        let entry = if self.is_entry { ENTRY } else { 0 };
        [self.code | entry, self.check << INSTRUCTION_BITS | self.instruction as u64]
    }

    /// From what was sent.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "it is masked")]
    pub const fn from_wire([code, rest]: [u64; WIRE_WORDS]) -> Self {
        Self {
            code: code & !ENTRY,
            instruction: (rest & NO_INSTRUCTION as u64) as u32,
            check: rest >> INSTRUCTION_BITS,
            is_entry: code & ENTRY != 0,
        }
    }
}

/// A number for what the words at [`Layout::check`] are, and the hash of [`Layout::checked_name`], 0 where there is
/// none: another for others, in all likelihood; never 0.
#[inline]
#[must_use]
pub const fn check(words: &[u64; CHECKED_WORDS], name_hash: u64) -> u64 {
    // The upper bits of a product depend on all bits of its factors.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let [a, b, c, d] = *words;
    let mut sum = (a ^ name_hash).wrapping_mul(FACTOR);
    sum = (sum.rotate_left(29) ^ b).wrapping_mul(FACTOR);
    sum = (sum.rotate_left(29) ^ c).wrapping_mul(FACTOR);
    sum = (sum.rotate_left(29) ^ d).wrapping_mul(FACTOR);
    sum >> INSTRUCTION_BITS | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_frame_comes_back(code in 0..=u64::MAX >> 1, instruction in 0..=NO_INSTRUCTION,
                              words: [u64; CHECKED_WORDS], is_entry: bool) {
            let frame = Frame { code, instruction, check: check(&words, 0), is_entry };
            prop_assert_eq!(Frame::from_wire(frame.to_wire()), frame);
            prop_assert_ne!(frame.check, 0);
        }

        #[test]
        fn other_words_have_another_check(words: [u64; CHECKED_WORDS], at in 0..CHECKED_WORDS,
                                          by in 1_u64..1 << 40) {
            let mut other = words;
            other[at] = other[at].wrapping_add(by << 3);
            prop_assert_ne!(check(&words, 0), check(&other, 0));
            prop_assert_ne!(check(&words, by), check(&words, 0));
        }
    }
}
