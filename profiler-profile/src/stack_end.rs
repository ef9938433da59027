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
    /// The kernel was replacing or freeing the process's memory, in exec or exit: there was no stack any more.
    MemoryGone,
    /// At a rule that is too complex for the kernel.
    Unsupported,
    /// At an address that lies in no known mapping.
    NotMapped,
}

impl StackEnd {
    /// How a user stack ended, by what the walk says of it and the function that it ended in, and by what the kernel
    /// was doing.
    #[must_use]
    pub fn of(end: UserEnd, stack: &Stack, kernel: &Stack) -> Self {
        match end {
            UserEnd::Unreadable | UserEnd::NotMapped if kernel.is_in_exec_or_exit() => {
                Self::MemoryGone
            }
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
            Self::MemoryGone => MEMORY_GONE,
            Self::Unsupported => "rule_not_supported",
            Self::NotMapped => "mapping_unknown",
        }
    }
}

/// The word for [`StackEnd::Complete`].
pub const COMPLETE: &str = "complete";

/// The word for [`StackEnd::MemoryGone`].
pub(crate) const MEMORY_GONE: &str = "memory_gone";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{export::tests::location, frame::Frame, store::Store};

    #[test]
    fn memory_is_gone_in_exec_and_exit() {
        let mut store = Store::default();
        let mut stack = |names: &[&str]| {
            let frame = |name: &&str| Frame { symbol: Some(Arc::from(*name)), ..Frame::default() };
            store.intern((1..).zip(names).map(|(at, it)| location(at, &[frame(it)])).collect())
        };
        let (user, exit) = (stack(&["_exit"]), stack(&["unmap_vmas", "exit_mmap", "do_exit"]));
        let exec = stack(&["do_mmap", "do_execveat_common.isra.0", "do_syscall_64"]);
        let other = stack(&["do_exit_to_user", "do_syscall_64"]);
        for kernel in [&exit, &exec] {
            assert_eq!(StackEnd::of(UserEnd::Unreadable, &user, kernel), StackEnd::MemoryGone);
            assert_eq!(StackEnd::of(UserEnd::Complete, &user, kernel), StackEnd::Complete);
        }
        assert_eq!(StackEnd::of(UserEnd::Unreadable, &user, &other), StackEnd::Unreadable);
    }
}
