//! What the ring of tasks' events tells: that they were throttled, and that tasks have begun.

use perf_event_open_sys::bindings as sys;

use super::{attr::Inherit, record};

/// What was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// How often the kernel has throttled an event.
    pub(super) throttles: u64,
    /// Tasks that have begun and inherit events, at most so many.
    pub(super) begun: u64,
}

/// Reads a run of records.
pub(super) fn read(records: &[u8], inherit: Inherit) -> Told {
    let mut told = Told::default();
    for (kind, record) in record::split(records) {
        match kind {
            sys::PERF_RECORD_THROTTLE => told.throttles += 1,
            // A header, the process, its parent, and their threads: of a thread, both are one.
            sys::PERF_RECORD_FORK => {
                let is_process = word(record, 8) != word(record, 12);
                told.begun += u64::from(!(is_process && inherit == Inherit::Threads));
            }
            // A header, a number, and how many records are missing.
            sys::PERF_RECORD_LOST => {
                let lost = record.get(16..).and_then(|it| it.first_chunk());
                told.begun =
                    told.begun.saturating_add(lost.map_or(0, |it| u64::from_ne_bytes(*it)));
            }
            _ => {}
        }
    }
    told
}

fn word(record: &[u8], at: usize) -> Option<u32> {
    record.get(at..)?.first_chunk().map(|it| u32::from_ne_bytes(*it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, words: &[u32]) -> Vec<u8> {
        let size = u32::try_from(8 + 4 * words.len()).unwrap();
        // Native: the type, then `misc` and the size in one word.
        let head = if cfg!(target_endian = "little") { size << 16 } else { size };
        [&[kind, head], words].concat().into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    #[test]
    fn what_may_have_inherited_is_counted() {
        let fork = |pid, parent| record(sys::PERF_RECORD_FORK, &[pid, parent, 9, 7, 0, 0]);
        let lost = record(sys::PERF_RECORD_LOST, &[1, 0, 3, 0]);
        let others = [
            record(sys::PERF_RECORD_EXIT, &[7, 7, 9, 7, 0, 0]),
            record(sys::PERF_RECORD_THROTTLE, &[0; 6]),
        ];
        let all = [fork(7, 7), fork(8, 7), lost, others.concat()].concat();
        assert_eq!(read(&all, Inherit::All), Told { throttles: 1, begun: 5 });
        assert_eq!(read(&all, Inherit::Threads), Told { throttles: 1, begun: 4 });
        // What is cut off is no record.
        let cut = fork(7, 7);
        assert_eq!(read(cut.get(..20).unwrap(), Inherit::All), Told::default());
        assert_eq!(read(&[], Inherit::All), Told::default());
    }
}
