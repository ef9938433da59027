//! How to find the caller of a frame.
//!
//! With the names of DWARF (<https://dwarfstd.org/doc/DWARF5.pdf>, 6.4): the canonical frame address,
//! CFA, is what the stack pointer is in the caller, after the call.

/// A rule of a table. What stands in the fields depends on [`Rule::cfa`]; what it does not use is
/// zero, so that equal rules have equal bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct Rule {
    /// A [`Cfa`].
    pub cfa: u8,
    /// A [`Saved`]: the caller's frame pointer.
    pub fp: u8,
    /// A [`Saved`]: the return address.
    pub ra: u8,
    /// The number of the register of [`Cfa::REGISTER`] or [`Saved::REGISTER`], as DWARF numbers them;
    /// of [`Cfa::PLT`], from which byte of its 16 on an entry has pushed a word.
    pub register: u8,
    /// Added to the register.
    pub cfa_offset: i32,
    /// Added to what was read, where the CFA is in memory.
    pub cfa_addend: i16,
    /// Where the caller's frame pointer was saved, from [`Rule::fp`]'s base, in words of eight bytes.
    pub fp_words: i16,
    /// Where the return address was saved, from the CFA, in words.
    pub ra_words: i16,
    /// Zero.
    pub reserved: u16,
}

const _: () = assert!(size_of::<Rule>() == 16, "no implicit padding");

/// What the CFA is, or what else there is to do.
#[derive(Clone, Copy, Debug)]
pub struct Cfa;

impl Cfa {
    /// Nothing is known of this code. Frame pointers are worth a try.
    pub const UNKNOWN: u8 = 0;
    /// `sp + cfa_offset`.
    pub const SP: u8 = 1;
    /// `fp + cfa_offset`.
    pub const FP: u8 = 2;
    /// `*(sp + cfa_offset) + cfa_addend`.
    pub const AT_SP: u8 = 3;
    /// `*(fp + cfa_offset) + cfa_addend`.
    pub const AT_FP: u8 = 4;
    /// `register + cfa_offset`: known of the interrupted frame only, since calls change it.
    pub const REGISTER: u8 = 5;
    /// An entry of the procedure linkage table (x86-64): `sp + 8`, or `sp + 16` from byte
    /// [`Rule::register`] on.
    pub const PLT: u8 = 6;
    /// There is no caller: the outermost frame.
    pub const END: u8 = 7;
    /// The frame of a signal: the registers of what it interrupted lie on the stack.
    pub const SIGNAL: u8 = 8;
    /// There is a rule, of a kind that we can't apply.
    pub const UNSUPPORTED: u8 = 9;
}

/// Where a register of the caller was saved.
#[derive(Clone, Copy, Debug)]
pub struct Saved;

impl Saved {
    /// Nowhere: it still has its value. The return address: it is in the link register.
    pub const SAME: u8 = 0;
    /// At CFA plus the offset.
    pub const AT_CFA: u8 = 1;
    /// At the frame pointer plus the offset.
    pub const AT_FP: u8 = 2;
    /// At the stack pointer plus the offset.
    pub const AT_SP: u8 = 3;
    /// In the register [`Rule::register`], as long as no call has changed it.
    pub const REGISTER: u8 = 4;
    /// It is lost.
    pub const LOST: u8 = 5;
}

impl Rule {
    /// Nothing but what to do.
    #[must_use]
    pub const fn of(cfa: u8) -> Self {
        Self {
            cfa,
            fp: 0,
            ra: 0,
            register: 0,
            cfa_offset: 0,
            cfa_addend: 0,
            fp_words: 0,
            ra_words: 0,
            reserved: 0,
        }
    }
}
