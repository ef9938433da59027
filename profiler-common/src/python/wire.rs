//! A frame of CPython on the wire.

/// What the walk has found: two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// A frame that runs Python code.
    Code {
        /// Address of the code object.
        code: u64,
        /// Which instruction, in the version's unit, counted from the first; [`NO_INSTRUCTION`] where that is not
        /// known.
        instruction: u32,
        /// What [`check`](super::check) gave for the code object at the time of the sample; 0 where it could
        /// not be read.
        check: u64,
    },
    /// Here the evaluator was entered: the frames since the last of these are those of one call of it.
    Entry {
        /// Where its record is on the stack, within the native frame of that call; 0 where there is none.
        record: u64,
    },
}

/// The instruction is not known.
pub const NO_INSTRUCTION: u32 = (1 << INSTRUCTION_BITS) - 1;
/// How many words a frame takes.
pub const WORDS: usize = 2;

pub(super) const INSTRUCTION_BITS: u32 = 20;
/// In the first word, of an entry. Addresses of user space have fewer bits.
const ENTRY: u64 = 1 << 63;

impl Frame {
    /// As it is sent.
    #[inline(always)]
    #[must_use]
    pub const fn to_wire(self) -> [u64; WORDS] {
        match self {
            Self::Code { code, instruction, check } => {
                [code, check << INSTRUCTION_BITS | instruction as u64]
            }
            Self::Entry { record } => [ENTRY, record],
        }
    }

    /// From what was sent.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "it is masked")]
    pub const fn from_wire([first, second]: [u64; WORDS]) -> Self {
        if first & ENTRY != 0 {
            return Self::Entry { record: second };
        }
        Self::Code {
            code: first,
            instruction: (second & NO_INSTRUCTION as u64) as u32,
            check: second >> INSTRUCTION_BITS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::{CHECKED_WORDS, check};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_frame_comes_back(code in 0..=u64::MAX >> 1, instruction in 0..=NO_INSTRUCTION,
                              words: [u64; CHECKED_WORDS], record: u64) {
            let code = Frame::Code { code, instruction, check: check(&words, 0) };
            for frame in [code, Frame::Entry { record }] {
                prop_assert_eq!(Frame::from_wire(frame.to_wire()), frame);
            }
        }
    }
}
