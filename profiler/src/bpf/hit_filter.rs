//! Which hits of tracepoints count, told to the eBPF program.

use aya::{Ebpf, maps::Array};
use profiler_common::{
    comm_patterns::{ENTRIES, States},
    hit_filter::{MAX_TESTS, Test, Tests},
    settings::MAX_SOURCES,
};

use super::load::take_map;
use crate::error::{Error, Result};

/// What the fields of a hit have to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitFilter {
    /// At most [`MAX_TESTS`], of which those of text say which of the tables they want.
    pub tests: Vec<Test>,
    /// The table of each pattern, as [`profiler_common::comm_patterns`] has it. Those of a run are at most
    /// [`MAX_TEXTS`](profiler_common::hit_filter::MAX_TEXTS).
    pub texts: Vec<Vec<States>>,
}

/// How large the maps have to be for the filters of these slots.
pub(super) fn map_sizes<'a>(
    slots: impl Iterator<Item = Option<&'a HitFilter>> + Clone,
) -> [(&'static str, u32); 2] {
    let filters = slots.clone().flatten().count();
    let texts: usize = slots.flatten().map(|it| it.texts.len()).sum();
    let texts = u32::try_from(texts).unwrap_or(u32::MAX).saturating_mul(ENTRIES);
    let slots = if filters == 0 { 1 } else { MAX_SOURCES };
    [("HIT_FILTERS", u32::try_from(slots).unwrap_or(u32::MAX)), ("TEXTS", texts.max(1))]
}

/// Fills the maps.
pub(super) fn fill<'a>(
    ebpf: &mut Ebpf,
    slots: impl Iterator<Item = Option<&'a HitFilter>>,
) -> Result<()> {
    let failed = |error| Error::system("cannot filter the hits of tracepoints", error);
    let mut filters: Array<_, Words> = take_map(ebpf, "HIT_FILTERS")?;
    let mut texts: Array<_, States> = take_map(ebpf, "TEXTS")?;
    let mut used = 0_u32;
    for (slot, filter) in (0..).zip(slots) {
        let Some(HitFilter { tests, texts: own }) = filter else { continue };
        filters.set(slot, words(tests, used), 0).map_err(failed)?;
        for table in own {
            let first = used.saturating_mul(ENTRIES);
            for (at, states) in (first..).zip(table) {
                texts.set(at, states, 0).map_err(failed)?;
            }
            used = used.saturating_add(1);
        }
    }
    Ok(())
}

/// A [`Tests`] as words, which are what a map takes without any padding.
type Words = [[u64; 2]; MAX_TESTS];
const _: () = assert!(size_of::<Words>() == size_of::<Tests>() && size_of::<Test>() == 16);

/// The tests as the program reads them, with tables of text counted from this one on.
fn words(tests: &[Test], first_text: u32) -> Words {
    let mut words = Words::default();
    for (words, test) in words.iter_mut().zip(tests) {
        let is_text = profiler_common::hit_filter::Field::from_wire(test.field)
            .is_some_and(profiler_common::hit_filter::Field::is_text);
        let value = if is_text { test.value + u64::from(first_text) } else { test.value };
        let [offset_low, offset_high] = test.offset.to_ne_bytes();
        let [bytes_low, bytes_high] = test.bytes.to_ne_bytes();
        let Test { field, compare, if_true, if_false, .. } = *test;
        let rest =
            [offset_low, offset_high, bytes_low, bytes_high, field, compare, if_true, if_false];
        *words = [value, u64::from_ne_bytes(rest)];
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::hit_filter::{Compare, Field};

    #[test]
    fn words_are_tests_as_they_lie_in_memory() {
        let test = Test {
            value: 7,
            offset: 0x102,
            bytes: 0x304,
            field: Field::Text as u8,
            compare: Compare::Equal as u8,
            if_true: 1,
            if_false: 2,
        };
        let [first, second, ..] = words(&[test, Test { field: Field::U8 as u8, ..test }], 3);
        // SAFETY: both have the same size, and any bits are a `Test`.
        let read = |words: [u64; 2]| unsafe { std::mem::transmute::<[u64; 2], Test>(words) };
        assert_eq!(read(first), Test { value: 10, ..test });
        assert_eq!(read(second), Test { field: Field::U8 as u8, ..test });
    }

    #[test]
    fn maps_are_as_large_as_filters_need() {
        let filter = HitFilter { tests: Vec::new(), texts: vec![Vec::new(); 2] };
        assert_eq!(map_sizes([None, None].into_iter()), [("HIT_FILTERS", 1), ("TEXTS", 1)]);
        let sizes = map_sizes([None, Some(&filter)].into_iter());
        assert_eq!(sizes, [("HIT_FILTERS", 4), ("TEXTS", 2 * ENTRIES)]);
    }
}
