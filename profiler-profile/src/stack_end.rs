//! How user stacks end.

use profiler_common::sample::UserEnd;

use crate::stack::Stack;

/// How a user stack ended, and so whether it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// At the entry of the program or thread: the stack is whole.
    Complete,
    /// User stacks were not asked for.
    NotCaptured,
    /// The task has no user memory: it is the kernel's own.
    NoUserMemory,
    /// At the limit of frames.
    Depth,
    /// Where the chain of frame pointers ended, which is not at an entry.
    NoFramePointer,
    /// In code without unwind information.
    NoUnwindInfo,
    /// In code whose unwind table was not in the kernel yet.
    NotLoaded,
    /// At memory that could not be read at that moment.
    Unreadable,
    /// At a rule that is too complex for the kernel.
    Unsupported,
    /// At an address that lies in no known mapping.
    NotMapped,
}

impl StackEnd {
    /// How a stack ended, by what the walk says of it and the function that it ended in.
    #[must_use]
    pub fn of(end: UserEnd, stack: &Stack) -> Self {
        match end {
            UserEnd::ChainEnded | UserEnd::NoUnwindInfo if stack.reaches_entry() => Self::Complete,
            UserEnd::Complete => Self::Complete,
            UserEnd::NotCaptured => Self::NotCaptured,
            UserEnd::NoUserMemory => Self::NoUserMemory,
            UserEnd::Depth => Self::Depth,
            UserEnd::ChainEnded => Self::NoFramePointer,
            UserEnd::NoUnwindInfo => Self::NoUnwindInfo,
            UserEnd::NotLoaded => Self::NotLoaded,
            UserEnd::Unreadable => Self::Unreadable,
            UserEnd::Unsupported => Self::Unsupported,
            UserEnd::NotMapped => Self::NotMapped,
        }
    }

    /// The word that JSON and the ledger have for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Complete => COMPLETE,
            Self::NotCaptured => "not_captured",
            Self::NoUserMemory => "no_user_memory",
            Self::Depth => "depth",
            Self::NoFramePointer => "no_frame_pointer",
            Self::NoUnwindInfo => "no_unwind_info",
            Self::NotLoaded => "unwind_info_not_loaded",
            Self::Unreadable => "unreadable_memory",
            Self::Unsupported => "rule_not_supported",
            Self::NotMapped => "mapping_unknown",
        }
    }
}

/// The word for [`StackEnd::Complete`].
pub const COMPLETE: &str = "complete";
