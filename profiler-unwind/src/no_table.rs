//! Why a file has no table.

use serde::{Deserialize, Serialize};

/// Why a file has no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum NoTable {
    /// It can't be read, or its headers lead outside of it.
    #[error("it can't be read, or is cut short")]
    Unreadable,
    /// It is something else.
    #[error("not an ELF file")]
    NotElf,
    /// It is for 32 bits.
    #[error("an ELF file of 32 bits")]
    Bits32,
    /// It is for a machine that we have no rules for.
    #[error("an ELF file for another machine")]
    Machine,
    /// Its parts have no addresses yet.
    #[error("an object that is not linked (.o, .ko)")]
    NotLinked,
    /// It has no code, or no unwind information for it.
    #[error("no .eh_frame, nor .debug_frame, nor Go's table")]
    NoInfo,
    /// What describes its code is compressed, and is damaged, too large, or packed in another way.
    #[error("its .debug_frame can't be unpacked")]
    Compressed,
    /// It was written to since it was mapped, so that what it says need not be of the code that runs.
    #[error("written to since it was mapped")]
    Changed,
    /// It is no ELF file, or is written to, and is one in memory, as runtimes use for code that they make.
    #[error("code made at run time, in a file in memory")]
    Made,
    /// It goes beyond a limit, such as [`MAX_BYTES`](crate::source::MAX_BYTES).
    #[error("too large")]
    TooLarge,
    /// It was given up: reading it took too long or too much memory, or it claims more than it has.
    #[error("it can't be parsed within its limits")]
    Barred,
}
