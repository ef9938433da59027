//! What the kernel gives of a group of events at once.

use profiler_profile::ledger::EventCount;

/// The bytes of a word of the kernel's answer.
const WORD: usize = size_of::<u64>();
/// The number of events, the time enabled and the time running.
const HEAD_WORDS: usize = 3;
/// The count and the id of an event.
const EVENT_WORDS: usize = 2;

/// How many bytes a group of so many events is read as.
pub(crate) fn bytes(events: usize) -> usize {
    WORD.saturating_mul(EVENT_WORDS.saturating_mul(events).saturating_add(HEAD_WORDS))
}

/// What each event of a group has counted, by its id, in the kernel's order: leader first. `None` if it is not
/// as it has to be.
///
/// The layout is that of `PERF_FORMAT_GROUP` with `PERF_FORMAT_ID` and both times:
/// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h#L300-L330>. The events of a group
/// have counters together or not at all, so that the times are those of each.
pub(crate) fn parse(bytes: &[u8]) -> Option<Vec<(u64, EventCount)>> {
    let (words, rest) = bytes.as_chunks::<WORD>();
    let mut words = words.iter().map(|it| u64::from_ne_bytes(*it));
    let events = usize::try_from(words.next()?).ok()?;
    let (enabled_ns, running_ns) = (words.next()?, words.next()?);
    if !rest.is_empty() || words.len() != events.checked_mul(EVENT_WORDS)? {
        return None;
    }
    let mut counts = Vec::with_capacity(events);
    while let Some(count) = words.next() {
        counts.push((words.next()?, EventCount { count, enabled_ns, running_ns }));
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|it| it.to_ne_bytes()).collect()
    }

    #[test]
    fn the_events_of_a_group_share_their_times() {
        let counts = parse(&answer(&[2, 100, 50, 7, 31, 9, 32])).unwrap();
        let count = |count| EventCount { count, enabled_ns: 100, running_ns: 50 };
        assert_eq!(counts, [(31, count(7)), (32, count(9))]);
        assert_eq!(bytes(2), 7 * 8);
    }

    #[test]
    fn what_is_cut_or_too_long_is_refused() {
        for words in [
            &[][..],
            &[1],
            &[1, 100, 50],
            &[1, 100, 50, 7],
            &[1, 100, 50, 7, 31, 0],
            &[u64::MAX, 100, 50, 7, 31],
        ] {
            assert_eq!(parse(&answer(words)), None, "{words:?}");
        }
        assert_eq!(parse(&answer(&[1, 100, 50, 7, 31])[..39]), None);
        assert_eq!(parse(&answer(&[0, 100, 50])), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
