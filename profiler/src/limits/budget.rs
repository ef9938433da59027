//! What the caches may take, all together, and the share of each.

use super::memory::at_most;

/// All caches of the agent and its parser processes, by default. With what the program itself takes, its queue and
/// its parser processes that stays below 128 MiB.
const DEFAULT_BYTES: u64 = 80 << 20;
/// Symbols and debug info where lines are asked for: reading those of a large program again takes seconds.
pub(crate) const WITH_LINES_BYTES: usize = 256 << 20;
/// In a cgroup that limits memory they get one part in so many of it: the program, maps in the kernel, parser
/// processes and mapped files count there, too.
const CGROUP_SHARE: u64 = 4;
/// Samples that may wait for the naming thread, by default. At 99 Hz on 64 CPUs this is more than four seconds. As much
/// of stack snapshots may wait beside: no sample is to be lost for them.
pub(crate) const QUEUE_BYTES: usize = 8 << 20;
/// What waits for the naming thread gets this part of it.
const QUEUE_SHARE: u64 = 64;
/// What a parser process may allocate in a cgroup that limits memory: one part in so many of it, but not less than
/// a small library needs.
const PARSER_SHARE: u64 = 8;
const PARSER_MIN_BYTES: u64 = 12 << 20;

/// Bytes for each cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBudget {
    /// Symbols and debug info of files, in a parser process.
    pub symbols: usize,
    /// Stacks with their names.
    pub stacks: usize,
    /// Stacks as the output writes them.
    pub rendered: usize,
    /// Names of single addresses.
    pub frames: usize,
    /// Unwind tables for stacks that the agent walks.
    pub tables: usize,
    /// Names of JIT code.
    pub jit: usize,
    /// Names of Python code.
    pub python: usize,
    /// Samples that wait to be named. As much of copies of stacks may wait, and half as much of events.
    pub queue: usize,
}

impl CacheBudget {
    /// The shares of so many bytes.
    #[must_use]
    pub fn share(bytes: u64) -> Self {
        let share = |parts: u64| usize::try_from(bytes / 20 * parts).unwrap_or(usize::MAX);
        Self {
            symbols: share(6),
            stacks: share(1),
            rendered: share(2),
            frames: share(2),
            tables: share(4),
            jit: share(3),
            python: share(2),
            queue: QUEUE_BYTES,
        }
    }

    /// The shares where memory is limited to so many bytes, or is not.
    #[must_use]
    pub fn within(limit: Option<u64>) -> Self {
        let queue = at_most(QUEUE_BYTES as u64, limit, QUEUE_SHARE);
        let queue = usize::try_from(queue).unwrap_or(QUEUE_BYTES);
        Self { queue, ..Self::share(at_most(DEFAULT_BYTES, limit, CGROUP_SHARE)) }
    }

    /// Whether the limit makes them smaller.
    pub(crate) fn is_small(self) -> bool {
        self != Self::within(None)
    }
}

/// What a parser process may allocate of what it asks for, where memory is limited to so many bytes, or is not.
pub(crate) fn parser_bytes(asked: u64, limit: Option<u64>) -> u64 {
    at_most(asked, limit, PARSER_SHARE).max(PARSER_MIN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(it: CacheBudget) -> u64 {
        (it.symbols + it.stacks + it.rendered + it.frames + it.tables + it.jit + it.python) as u64
    }

    #[test]
    fn the_shares_are_all_there_is() {
        for bytes in [0, 1, 1 << 20, DEFAULT_BYTES, u64::from(u32::MAX)] {
            let shares = sum(CacheBudget::share(bytes));
            assert!(shares <= bytes && bytes - shares < 20, "{bytes}: {shares}");
        }
        assert_eq!(sum(CacheBudget::within(None)), DEFAULT_BYTES);
    }

    #[test]
    fn a_cgroup_makes_them_smaller() {
        let small = CacheBudget::within(Some(64 << 20));
        assert!(small.is_small() && sum(small) <= 16 << 20);
        assert_eq!(small.queue, 1 << 20);
        assert!(!CacheBudget::within(Some(64 << 30)).is_small());
        assert_eq!(parser_bytes(512 << 20, None), 512 << 20);
        assert_eq!(parser_bytes(512 << 20, Some(256 << 20)), 32 << 20);
        assert_eq!(parser_bytes(512 << 20, Some(8 << 20)), PARSER_MIN_BYTES);
    }
}
