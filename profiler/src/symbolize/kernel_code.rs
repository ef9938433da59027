//! Code that the kernel has got since the start: eBPF programs and what is made for probes.
//!
//! kallsyms are read once, and an address behind their last symbol would be taken for part of it.

use std::{collections::BTreeMap, sync::Arc};

use crate::perf::record::Record;

/// Pieces of code that are remembered.
const LIMIT: usize = 16 << 10;

/// What there is now, by first address.
#[derive(Debug, Default)]
pub(super) struct LaterCode(BTreeMap<u64, (u64, Arc<str>)>);

impl LaterCode {
    /// Takes in that code came or went.
    pub(super) fn change(&mut self, record: &Record) {
        let &Record::Ksymbol { start, bytes, ref name, registered } = record else { return };
        if !registered {
            self.0.remove(&start);
        } else if self.0.len() < LIMIT {
            let end = start.saturating_add(u64::from(bytes));
            self.0.insert(start, (end, Arc::from(String::from_utf8_lossy(name))));
        }
    }

    /// Start and name of the code that holds an address.
    pub(super) fn find(&self, address: u64) -> Option<(u64, Arc<str>)> {
        let (start, (end, name)) = self.0.range(..=address).next_back()?;
        (address < *end).then(|| (*start, Arc::clone(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(start: u64, bytes: u32, name: &str, registered: bool) -> Record {
        Record::Ksymbol { start, bytes, name: name.into(), registered }
    }

    #[test]
    fn code_is_found_from_when_it_comes_until_it_goes() {
        let mut later = LaterCode::default();
        later.change(&code(100, 10, "a", true));
        later.change(&code(120, 10, "b", true));
        let name =
            |later: &LaterCode, at| later.find(at).map(|(start, name)| (start, name.to_string()));
        assert_eq!(name(&later, 109), Some((100, "a".into())));
        assert_eq!(name(&later, 110), None);
        assert_eq!(name(&later, 125), Some((120, "b".into())));
        later.change(&code(120, 10, "b", false));
        assert_eq!((name(&later, 125), name(&later, 99)), (None, None));
        later.change(&code(u64::MAX, 10, "end", true));
        assert_eq!(name(&later, u64::MAX), None);
    }
}
