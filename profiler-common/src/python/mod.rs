//! Where CPython keeps the frames of a thread, how they are walked, and how they are sent.
//!
//! The agent finds a [`Layout`] for each process that has the interpreter; a [`walk`] goes by it, and knows
//! nothing of versions. What it finds is a [`wire::Frame`] each.
// As with the walk of native frames: the eBPF program has no room for calls.
#![allow(clippy::inline_always)]

pub mod walk;
pub mod wire;

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
    /// Zero.
    pub reserved: u16,
}

const _: () = assert!(size_of::<Layout>() == 40, "no implicit padding");

/// An element of the map of interpreters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Interpreter {
    /// Where it keeps its frames.
    pub layout: Layout,
    /// Where the kernel's `task_struct` has the thread pointer.
    pub thread_pointer: u64,
}

const _: () = assert!(size_of::<Interpreter>() == 48, "no implicit padding");

/// Elements of that map. There is one for each build of the interpreter and place of its threads' states.
pub const INTERPRETERS: u32 = 256;

/// The state of a walk takes at most so much of each CPU's memory.
pub const MAX_WALK_BYTES: u32 = 4 << 10;

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
    sum >> wire::INSTRUCTION_BITS | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn other_words_have_another_check(words: [u64; CHECKED_WORDS], at in 0..CHECKED_WORDS,
                                          by in 1_u64..1 << 40) {
            let mut other = words;
            other[at] = other[at].wrapping_add(by << 3);
            prop_assert_ne!(check(&words, 0), check(&other, 0));
            prop_assert_ne!(check(&words, by), check(&words, 0));
            prop_assert_ne!(check(&words, 0), 0);
        }
    }
}
