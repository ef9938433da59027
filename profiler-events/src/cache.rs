//! Cache events: a cache, what is done with it, and what comes of that.

use std::fmt;

/// A cache event that some processor may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEvent {
    cache: Cache,
    op: Op,
    outcome: Outcome,
}

/// `perf_hw_cache_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    L1Data,
    L1Instruction,
    LastLevel,
    DataTlb,
    InstructionTlb,
    Branch,
    Node,
}

/// `perf_hw_cache_op_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Read,
    Write,
    Prefetch,
}

/// `perf_hw_cache_op_result_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Access,
    Miss,
}

/// The names of each cache: the first is printed.
const CACHES: [(Cache, &[&str]); 7] = [
    (Cache::L1Data, &["L1-dcache", "l1-d", "l1d", "L1-data"]),
    (Cache::L1Instruction, &["L1-icache", "l1-i", "l1i", "L1-instruction"]),
    (Cache::LastLevel, &["LLC", "L2"]),
    (Cache::DataTlb, &["dTLB", "d-tlb", "Data-TLB"]),
    (Cache::InstructionTlb, &["iTLB", "i-tlb", "Instruction-TLB"]),
    (Cache::Branch, &["branch", "branches", "bpu", "btb", "bpc"]),
    (Cache::Node, &["node"]),
];

/// The first name is printed before a result, the second where there is none.
const OPS: [(Op, &[&str]); 3] = [
    (Op::Read, &["load", "loads", "read"]),
    (Op::Write, &["store", "stores", "write"]),
    (Op::Prefetch, &["prefetch", "prefetches", "speculative-read", "speculative-load"]),
];

const OUTCOMES: [(Outcome, &[&str]); 2] = [
    (Outcome::Access, &["refs", "Reference", "ops", "access"]),
    (Outcome::Miss, &["misses", "miss"]),
];

/// A name that has the form of a cache event, of a cache that doesn't do that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cache} has no event for {op}; it has {has}")]
pub struct NoSuchOp {
    cache: &'static str,
    op: &'static str,
    has: String,
}

impl CacheEvent {
    /// The event of that name; `None` if the name has another form than those of cache events.
    ///
    /// As `perf` has it, what is left out is a load, and an access.
    pub fn named(name: &str) -> Option<Result<Self, NoSuchOp>> {
        CACHES.iter().find_map(|&(cache, names)| {
            let (op, outcome) =
                names.iter().find_map(|it| op_and_outcome(name.strip_prefix(it)?))?;
            let event = Self {
                cache,
                op: op.unwrap_or(Op::Read),
                outcome: outcome.unwrap_or(Outcome::Access),
            };
            Some(if cache.does(event.op) { Ok(event) } else { Err(event.refused()) })
        })
    }

    /// All that a processor may have, by the names that we print.
    pub fn all() -> impl Iterator<Item = Self> {
        CACHES.into_iter().flat_map(|(cache, _)| {
            OPS.into_iter().filter(move |(op, _)| cache.does(*op)).flat_map(move |(op, _)| {
                OUTCOMES.into_iter().map(move |(outcome, _)| Self { cache, op, outcome })
            })
        })
    }

    /// `perf_event_attr.config`.
    #[must_use]
    pub fn config(&self) -> u64 {
        self.cache as u64 | (self.op as u64) << 8 | (self.outcome as u64) << 16
    }

    /// What it counts, in a few words.
    #[must_use]
    pub fn description(&self) -> String {
        let done = match self.op {
            Op::Read => "reads",
            Op::Write => "writes",
            Op::Prefetch => "prefetches",
        };
        let of = match self.cache {
            Cache::L1Data => "the data cache of the first level",
            Cache::L1Instruction => "the instruction cache of the first level",
            Cache::LastLevel => "the last cache before memory",
            Cache::DataTlb => "the TLB for data",
            Cache::InstructionTlb => "the TLB for instructions",
            Cache::Branch => "the branch predictor",
            Cache::Node => "the memory of the CPU's own node",
        };
        match self.outcome {
            Outcome::Access => format!("{done} of {of}"),
            Outcome::Miss => format!("{done} that missed {of}"),
        }
    }

    fn refused(self) -> NoSuchOp {
        let has = OPS.iter().filter(|it| self.cache.does(it.0)).map(|it| second(it.1));
        NoSuchOp {
            cache: self.cache.name(),
            op: second(self.op.names()),
            has: has.collect::<Vec<_>>().join(" and "),
        }
    }
}

impl Cache {
    /// Whether a processor may count this: the same table as `perf`'s.
    fn does(self, op: Op) -> bool {
        match self {
            Self::L1Data | Self::LastLevel | Self::DataTlb | Self::Node => true,
            Self::L1Instruction => op != Op::Write,
            Self::InstructionTlb | Self::Branch => op == Op::Read,
        }
    }

    fn name(self) -> &'static str {
        CACHES.iter().find(|it| it.0 == self).map_or("", |it| first(it.1))
    }
}

impl Op {
    fn names(self) -> &'static [&'static str] {
        OPS.iter().find(|it| it.0 == self).map_or(&[], |it| it.1)
    }
}

fn first(names: &[&'static str]) -> &'static str {
    names.first().copied().unwrap_or_default()
}

fn second(names: &[&'static str]) -> &'static str {
    names.get(1).copied().unwrap_or_default()
}

/// What follows the cache's name: nothing, or an operation, a result or both, in any order.
fn op_and_outcome(text: &str) -> Option<(Option<Op>, Option<Outcome>)> {
    if text.is_empty() {
        return Some((None, None));
    }
    let text = text.strip_prefix('-')?;
    let op = |text: &str| OPS.iter().find(|it| it.1.contains(&text)).map(|it| it.0);
    let outcome = |text: &str| OUTCOMES.iter().find(|it| it.1.contains(&text)).map(|it| it.0);
    if let Some(op) = op(text) {
        return Some((Some(op), None));
    }
    if let Some(outcome) = outcome(text) {
        return Some((None, Some(outcome)));
    }
    text.match_indices('-').find_map(|(at, _)| {
        let (before, after) = (text.get(..at)?, text.get(at..)?.strip_prefix('-')?);
        let in_order = op(before).zip(outcome(after));
        let (op, outcome) = in_order.or_else(|| op(after).zip(outcome(before)))?;
        Some((Some(op), Some(outcome)))
    })
}

impl fmt::Display for CacheEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cache, op) = (self.cache.name(), self.op.names());
        match self.outcome {
            Outcome::Access => write!(f, "{cache}-{}", second(op)),
            Outcome::Miss => write!(f, "{cache}-{}-misses", first(op)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str) -> Option<u64> {
        CacheEvent::named(name).map(|it| it.unwrap().config())
    }

    #[test]
    fn names_make_numbers() {
        assert_eq!(config("L1-dcache-loads"), Some(0));
        assert_eq!(config("L1-dcache-load-misses"), Some(0x1_0000));
        assert_eq!(config("l1d-misses"), Some(0x1_0000));
        assert_eq!(config("l1d-misses-load"), Some(0x1_0000));
        assert_eq!(config("L1-icache-prefetches"), Some(0x201));
        assert_eq!(config("LLC"), Some(2));
        assert_eq!(config("LLC-speculative-read-misses"), Some(0x1_0202));
        assert_eq!(config("dTLB-stores"), Some(0x103));
        assert_eq!(config("iTLB-load-misses"), Some(0x1_0004));
        assert_eq!(config("bpu"), Some(5));
        assert_eq!(config("branch-loads"), Some(5));
        assert_eq!(config("node-prefetch-misses"), Some(0x1_0206));
    }

    #[test]
    fn what_a_cache_does_not_do_is_refused() {
        let refused = |name| CacheEvent::named(name).unwrap().unwrap_err().to_string();
        assert_eq!(refused("iTLB-stores"), "iTLB has no event for stores; it has loads");
        assert_eq!(
            refused("l1i-write"),
            "L1-icache has no event for stores; it has loads and prefetches"
        );
        assert_eq!(
            refused("bpu-prefetch-miss"),
            "branch has no event for prefetches; it has loads"
        );
    }

    #[test]
    fn other_names_are_none() {
        for name in ["", "L1", "L1-dcache-", "L1-dcachex", "LLC-load-", "LLC-load-store", "llc"] {
            assert_eq!(CacheEvent::named(name), None, "{name}");
        }
    }

    #[test]
    fn all_are_known_by_the_names_that_are_printed() {
        for event in CacheEvent::all() {
            assert_eq!(CacheEvent::named(&event.to_string()), Some(Ok(event)));
        }
        // One operation of L1-icache is left out, two of iTLB and two of branch, each with two results.
        assert_eq!(CacheEvent::all().count(), 7 * 3 * 2 - 5 * 2);
    }
}
