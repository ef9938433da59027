//! Which tables make room for another.

use std::time::{Duration, Instant};

/// A table that a process has mapped, and that was looked at in this time, stays. Else tables that do
/// not fit together would take each other's place all the time, and each be made anew.
pub(super) const IN_USE: Duration = Duration::from_secs(5);

/// A table that is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) number: u32,
    pub(super) bytes: u64,
    /// Whether a process has it mapped.
    pub(super) is_mapped: bool,
    /// When a walk has last looked for it.
    pub(super) used: Instant,
}

/// The tables to take out so that there are so many bytes more: first those that nothing is mapped
/// from, and of these the ones that were looked for longest ago. `None` if those that may go are too
/// few.
pub(super) fn to_evict(
    mut candidates: Vec<Candidate>,
    bytes: u64,
    now: Instant,
) -> Option<Vec<u32>> {
    let may_go = |it: &Candidate| !it.is_mapped || now.duration_since(it.used) >= IN_USE;
    candidates.retain(may_go);
    candidates.sort_unstable_by_key(|it| (it.is_mapped, it.used));
    let (mut freed, mut numbers) = (0_u64, Vec::new());
    for it in candidates {
        if freed >= bytes {
            break;
        }
        freed = freed.saturating_add(it.bytes);
        numbers.push(it.number);
    }
    (freed >= bytes).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_least_used_goes_first() {
        let start = Instant::now();
        let now = start + 100 * SECOND;
        let table = |number, is_mapped, used: u32| Candidate {
            number,
            bytes: 10,
            is_mapped,
            used: start + used * SECOND,
        };
        let tables = vec![
            table(0, true, 50),
            table(1, true, 20),
            table(2, false, 99),
            table(3, true, 96),
            table(4, false, 40),
            table(5, true, 100),
        ];
        let out = |bytes| to_evict(tables.clone(), bytes, now);
        assert_eq!(out(0), Some(vec![]));
        assert_eq!(out(1), Some(vec![4]));
        assert_eq!(out(10), Some(vec![4]));
        assert_eq!(out(11), Some(vec![4, 2]));
        assert_eq!(out(30), Some(vec![4, 2, 1]));
        assert_eq!(out(40), Some(vec![4, 2, 1, 0]));
        // The others are in use, and none goes where that would not be enough.
        assert_eq!(out(41), None);
        assert_eq!(to_evict(Vec::new(), 1, now), None);
        let later = to_evict(tables, 60, now + IN_USE);
        assert_eq!(later, Some(vec![4, 2, 1, 0, 3, 5]));
    }
}
