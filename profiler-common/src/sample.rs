//! One stack sample on the wire.
//!
//! A [`SampleHeader`], then [`SampleHeader::kernel_frames`] addresses of eight bytes,
//! [`SampleHeader::interpreter_words`] words of what an interpreter runs, and
//! [`SampleHeader::user_frames`] addresses, each innermost frame first, all in the
//! machine's byte order. What is not there is not sent: a sample of three frames takes 88 bytes of
//! the ring.
//!
//! The frames of an interpreter ([`python::wire`](crate::python::wire)) come in groups, one for each native
//! frame that runs some of them: the address of each such frame has [`RUNS_CODE`], as far as the walk of the
//! native frames came.
//!
//! Where the walk of the user stack ended because the agent had not told it yet what it needs, a copy
//! of the stack follows, for the agent to walk: [`COPY_REGISTERS`] registers by DWARF's numbers,
//! [`COPY_BELOW`] bytes below the stack pointer, zero if they can't be read, and what lies from
//! there up. Where there is no stack, the registers are all.

use crate::unwind::{
    Native,
    step::{Arch, Stop},
};

/// Length of a task's name with its terminating zero (`TASK_COMM_LEN`).
pub const COMM_LEN: usize = 16;

/// The most frames that either half of a stack can have. The kernel's own default is 127, and the
/// program's per-CPU scratch holds twice this many.
pub const MAX_FRAMES: u32 = 512;

/// Set in a user address that is no return address, though it has callees: what a signal has
/// interrupted. Addresses of user space have fewer bits.
pub const INTERRUPTED: u64 = 1 << 63;

/// Set in a user address: its frame is one in which the interpreter runs the next group of its frames.
pub const RUNS_CODE: u64 = 1 << 62;

/// Words of what an interpreter runs, at most.
pub const MAX_INTERPRETER_WORDS: u32 = 1024;

/// Registers of a copy of the stack.
pub const COPY_REGISTERS: usize = Native::REGISTERS;
/// Bytes of a copy below the stack pointer.
pub const COPY_BELOW: usize = Native::RED_ZONE;
/// The largest copy of a stack, in bytes: the registers, what is below the stack pointer, what is left of the
/// first page, and two pages.
pub const COPY_BYTES: usize = COPY_REGISTERS * 8 + COPY_BELOW + 3 * 4096;

/// How the walk of the user stack ended, as far as the kernel side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum UserEnd {
    /// No user stack was asked for.
    NotCaptured = 0,
    /// The task has no user memory: a kernel thread or the idle task.
    NoUserMemory = 1,
    /// The chain of frame pointers ended: at the outermost frame, or where code does not keep them.
    ChainEnded = 2,
    /// The frame limit was reached.
    Depth = 3,
    /// The outermost frame was reached, as its unwind information says.
    Complete = 4,
    /// The last frame's code has no unwind information, nor a frame pointer that leads to code.
    NoUnwindInfo = 5,
    /// The unwind information of the last frame's file is not loaded yet.
    NotLoaded = 6,
    /// The stack could not be read where the last frame's caller has to be.
    Unreadable = 7,
    /// The last frame's rule is of a kind that can't be applied.
    Unsupported = 8,
    /// The last frame lies in no mapping that is known.
    NotMapped = 9,
}

impl UserEnd {
    /// The value with this number on the wire.
    #[must_use]
    pub const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::NotCaptured,
            1 => Self::NoUserMemory,
            2 => Self::ChainEnded,
            3 => Self::Depth,
            4 => Self::Complete,
            5 => Self::NoUnwindInfo,
            6 => Self::NotLoaded,
            7 => Self::Unreadable,
            8 => Self::Unsupported,
            9 => Self::NotMapped,
            _ => return None,
        })
    }

    /// How a walk ends where there is no step to a caller. A frame found by its frame pointer is a
    /// guess, and no end to rely on.
    #[inline]
    #[must_use]
    pub const fn of_stop(stop: Stop, is_guess: bool, knows_mappings: bool) -> Self {
        match stop {
            Stop::Complete | Stop::Unreadable if is_guess && knows_mappings => Self::NoUnwindInfo,
            Stop::Complete | Stop::Unreadable if is_guess => Self::ChainEnded,
            Stop::Complete => Self::Complete,
            Stop::Unreadable => Self::Unreadable,
            Stop::Unsupported => Self::Unsupported,
        }
    }
}

/// How the walk of an interpreter's frames ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum InterpreterEnd {
    /// There is none that is known of.
    #[default]
    None = 0,
    /// The outermost frame was reached, or the thread runs no code of it.
    Complete = 1,
    /// There are more than fit.
    Depth = 2,
    /// What has to be there could not be read, or is no frame.
    Unreadable = 3,
}

impl InterpreterEnd {
    /// The value with this number on the wire.
    #[must_use]
    pub const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::None,
            1 => Self::Complete,
            2 => Self::Depth,
            3 => Self::Unreadable,
            _ => return None,
        })
    }
}

/// The fixed part of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SampleHeader {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// The task's cgroup v2 id (the inode number of its directory).
    pub cgroup_id: u64,
    /// How many units of the event this sample stands for.
    pub period: u64,
    /// Process id (`tgid`), in the initial pid namespace.
    pub tgid: u32,
    /// Thread id (the kernel's `pid`), in the initial pid namespace.
    pub tid: u32,
    /// The CPU that was sampled.
    pub cpu: u32,
    /// Number of kernel addresses that follow.
    pub kernel_frames: u16,
    /// Number of user addresses that follow the kernel's.
    pub user_frames: u16,
    /// The task's name, padded with zeros.
    pub comm: [u8; COMM_LEN],
    /// A [`UserEnd`].
    pub user_end: u8,
    /// The slot of the source that fired: below [`MAX_SOURCES`](crate::settings::MAX_SOURCES).
    pub source: u8,
    /// Bytes of the copy of the stack behind the addresses; 0 where there is none.
    pub copy_bytes: u16,
    /// Number of words of what an interpreter runs, between both halves.
    pub interpreter_words: u16,
    /// An [`InterpreterEnd`].
    pub interpreter_end: u8,
    /// Zero.
    pub reserved: u8,
}

impl SampleHeader {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = 64;
}

const _: () = assert!(size_of::<SampleHeader>() == SampleHeader::BYTES, "no implicit padding");
const _: () = assert!(align_of::<SampleHeader>() == 8, "the addresses after it are aligned");
