//! The tasks that events are opened on, as `/proc` lists them.

use std::collections::BTreeSet;

use super::config::Tasks;
use crate::procfs::{self, stat::Stat};

/// The threads that are meant and there now.
pub(super) fn list(tasks: &Tasks) -> BTreeSet<u32> {
    if !tasks.tids.is_empty() {
        return tasks.tids.iter().copied().collect();
    }
    let mut tgids: BTreeSet<u32> = tasks.pids.iter().copied().collect();
    if tasks.children {
        let parents = procfs::processes().filter_map(|it| Some((it, Stat::of(it)?.parent)));
        add_descendants(&mut tgids, parents.collect());
    }
    tgids.into_iter().flat_map(procfs::threads).collect()
}

/// Adds all that descend from these, of processes with their parents.
fn add_descendants(tgids: &mut BTreeSet<u32>, mut others: Vec<(u32, u32)>) {
    // A parent may be listed behind its child.
    loop {
        let found: Vec<u32> =
            others.extract_if(.., |(_, parent)| tgids.contains(parent)).map(|it| it.0).collect();
        if found.is_empty() {
            return;
        }
        tgids.extend(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_in_any_order() {
        let mut tgids = BTreeSet::from([5]);
        add_descendants(&mut tgids, vec![(9, 8), (8, 5), (5, 1), (1, 0), (7, 1), (6, 5)]);
        assert_eq!(tgids, BTreeSet::from([5, 6, 8, 9]));
    }

    #[test]
    fn a_process_has_its_threads() {
        let own = std::process::id();
        let tasks = Tasks { pids: vec![own], ..Tasks::default() };
        assert!(list(&tasks).contains(&own));
        assert_eq!(list(&Tasks { tids: vec![7], ..tasks }), BTreeSet::from([7]));
        assert!(list(&Tasks { pids: vec![u32::MAX], ..Tasks::default() }).is_empty());
    }
}
