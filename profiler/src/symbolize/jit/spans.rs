//! What is known of addresses of JIT code.

use std::{collections::BTreeMap, sync::Arc};

use profiler_profile::frame::Origin;

use super::super::names::Names;
use crate::parser::{JitFound, JitKind};

/// The most that are kept for a process. What is forgotten can be asked for again.
const MAX_SPANS: usize = 32 << 10;

/// Answers of the parser process, each of which holds for a range of addresses. They hold until more of the
/// process's files is read.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// By their first address, none over another.
    spans: BTreeMap<u64, (u64, Option<Named>)>,
    name_bytes: usize,
}

/// A function with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// Where it begins.
    pub(super) start: u64,
    pub(super) name: Arc<str>,
    /// What names it.
    pub(super) origin: Origin,
}

impl Spans {
    /// The function at an address, or that there is none; `None` if it was not asked for.
    #[allow(clippy::option_option, reason = "that there is none is known, or not")]
    pub(super) fn get(&self, address: u64) -> Option<Option<&Named>> {
        let (_, (last, named)) = self.spans.range(..=address).next_back()?;
        (address <= *last).then_some(named.as_ref())
    }

    /// Takes an answer, unless the like is known.
    pub(super) fn insert(&mut self, found: JitFound, names: &mut Names) {
        if self.get(found.first).is_some() {
            return;
        }
        if self.spans.len() >= MAX_SPANS {
            self.clear();
        }
        let named = found.function.map(|function| Named {
            start: function.start,
            name: names.intern(&function.name),
            origin: match function.kind {
                JitKind::PerfMap => Origin::PerfMap,
                JitKind::Jitdump => Origin::Jitdump,
            },
        });
        self.name_bytes += named.as_ref().map_or(0, |it| it.name.len());
        self.spans.insert(found.first, (found.last, named));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The memory it takes, about.
    pub(super) fn bytes(&self) -> usize {
        // A tree's nodes are at least half full.
        self.spans.len() * 2 * size_of::<(u64, (u64, Option<Named>))>() + self.name_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parser::jit::Function;

    fn found(first: u64, last: u64, name: Option<&str>) -> JitFound {
        let function =
            name.map(|name| Function { start: first, name: name.into(), kind: JitKind::PerfMap });
        JitFound { first, last, function }
    }

    #[test]
    fn an_answer_holds_for_its_range() {
        let (mut spans, mut names) = (Spans::default(), Names::default());
        assert_eq!((spans.get(0), spans.bytes()), (None, 0));
        spans.insert(found(10, 19, Some("a")), &mut names);
        spans.insert(found(20, u64::MAX, None), &mut names);
        let name = |address| spans.get(address).map(|it| it.map(|it| it.name.to_string()));
        assert_eq!((name(9), name(10), name(19)), (None, Some(Some("a".into())), name(10)));
        assert_eq!((name(20), name(u64::MAX)), (Some(None), Some(None)));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let (mut spans, mut names) = (Spans::default(), Names::default());
        for address in 0..3 * MAX_SPANS as u64 {
            spans.insert(found(address, address, Some("name")), &mut names);
            assert!(spans.get(address).is_some() && spans.spans.len() <= MAX_SPANS);
        }
        assert_eq!(spans.name_bytes, 4 * spans.spans.len());
    }
}
