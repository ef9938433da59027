//! The records that the kernel writes into the mmap rings: what the processes of the machine do.
//!
//! Layout: <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>, enum
//! `perf_event_type`. `perf_event_data` knows the fields; here records are cut apart, so that one
//! which can't be read does not hide those behind it, and what we use is kept.

use std::{borrow::Cow, ops::Range};

use perf_event_data::{
    Comm, Exit, Fork, KSymbol, KSymbolFlags, Lost, Mmap2, RecordMetadata, Visitor,
    endian::Native,
    parse::{ParseConfig, Parser},
};
use perf_event_open_sys::bindings as sys;
use profiler_common::sample::COMM_LEN;

use super::attr;
use crate::procfs::maps::MappedId;

/// A record with the time at which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    /// `CLOCK_MONOTONIC`, in nanoseconds, as samples have it.
    pub time_ns: u64,
    /// What happened.
    pub record: Record,
}

/// What happened. Process and thread ids are those of the pid namespace that the profiler runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Code was mapped, or what was mapped became executable. What was there before is gone; that
    /// something was unmapped is not told.
    Mmap {
        /// The process.
        tgid: u32,
        /// The thread that mapped it.
        tid: u32,
        /// First address.
        start: u64,
        /// How long it is.
        bytes: u64,
        /// Offset of `start` in the file, in bytes.
        file_offset: u64,
        /// What is mapped; `None` if it is no file.
        file: Option<MappedId>,
        /// The path as the process sees it, or a name like `[vdso]` or `//anon`.
        name: Vec<u8>,
    },
    /// A thread has another name.
    Comm {
        /// The process.
        tgid: u32,
        /// The thread.
        tid: u32,
        /// The name, padded with zeros.
        comm: [u8; COMM_LEN],
        /// Whether the process runs another program now: nothing that was mapped before still is.
        exec: bool,
    },
    /// A process has another thread, or where the process ids differ, a process another process.
    Fork {
        /// The new one's process.
        tgid: u32,
        /// The new thread.
        tid: u32,
        /// The process that called.
        parent_tgid: u32,
        /// The thread that called.
        parent_tid: u32,
    },
    /// A thread has ended.
    Exit {
        /// The process.
        tgid: u32,
        /// The thread.
        tid: u32,
    },
    /// The kernel has more code, or less: of an eBPF program, or made for a probe.
    Ksymbol {
        /// First address.
        start: u64,
        /// How long it is.
        bytes: u32,
        /// The symbol.
        name: Vec<u8>,
        /// Whether it came; else it went.
        registered: bool,
    },
    /// The ring was full: so many records are missing before this one.
    Lost {
        /// How many.
        records: u64,
    },
}

/// A record's header: `u32` type, `u16` misc, `u16` size.
const HEADER_BYTES: usize = 8;
/// Where `misc` is in it.
const MISC: Range<usize> = 4..6;

/// Cuts a run of records apart: each with its type and its bytes, header included. Ends at one that
/// is not whole.
#[must_use]
pub fn split(run: &[u8]) -> Split<'_> {
    Split(run)
}

/// What is left of a run of records.
pub struct Split<'a>(&'a [u8]);

impl<'a> Iterator for Split<'a> {
    type Item = (u32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, rest) = self.0.split_first_chunk()?;
        let size = usize::from(u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?));
        if size < HEADER_BYTES {
            return None;
        }
        let (record, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some((u32::from_ne_bytes(*kind), record))
    }
}

/// That a record's fields are not those of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The records of a run from the ring of an [`attr::sideband`] event. Those that we have no use for
/// are skipped. What is behind one that is not whole counts as one.
pub fn parse(run: &[u8]) -> impl Iterator<Item = Result<Timed, Malformed>> {
    let config = ParseConfig::<Native>::from(attr::sideband());
    let mut records = split(run);
    std::iter::from_fn(move || {
        for (kind, record) in records.by_ref() {
            let record = without_build_id(kind, record);
            let parsed = Parser::new(&*record, config.clone()).parse_record(Keep);
            if let Some(parsed) = parsed.unwrap_or(Err(Malformed)).transpose() {
                return Some(parsed);
            }
        }
        (!std::mem::take(&mut records.0).is_empty()).then_some(Err(Malformed))
    })
}

/// A record without the flag that it has a build id. Ours have none, but where another event that gets the
/// same record has asked for one, the kernel leaves the flag in ours.
fn without_build_id(kind: u32, record: &[u8]) -> Cow<'_, [u8]> {
    const FLAG: u32 = sys::PERF_RECORD_MISC_MMAP_BUILD_ID;
    let misc = record.get(MISC).and_then(|it| Some(u16::from_ne_bytes(*it.first_chunk()?)));
    let has_flag = |misc: &u16| kind == sys::PERF_RECORD_MMAP2 && u32::from(*misc) & FLAG != 0;
    let Some(misc) = misc.filter(has_flag) else { return Cow::Borrowed(record) };
    let misc = u16::try_from(u32::from(misc) & !FLAG).unwrap_or_default();
    let mut own = record.to_vec();
    if let Some(place) = own.get_mut(MISC) {
        place.copy_from_slice(&misc.to_ne_bytes());
    }
    Cow::Owned(own)
}

/// Keeps what we use.
struct Keep;

impl<'a> Visitor<'a> for Keep {
    type Output = Result<Option<Timed>, Malformed>;

    fn visit_unimplemented(self, _: RecordMetadata) -> Self::Output {
        Ok(None)
    }

    fn visit_mmap2(self, mmap: Mmap2<'a>, metadata: RecordMetadata) -> Self::Output {
        let file = match (mmap.maj(), mmap.min(), mmap.ino()) {
            (Some(major), Some(minor), Some(inode @ 1..)) => {
                // The kernel's has 32 bits.
                let generation = mmap.ino_generation().and_then(|it| u32::try_from(it).ok());
                Some(MappedId { major, minor, inode, generation })
            }
            _ => None,
        };
        let Mmap2 { pid: tgid, tid, addr: start, len: bytes, pgoff: file_offset, .. } = mmap;
        let name = mmap.filename.into_owned();
        timed(Record::Mmap { tgid, tid, start, bytes, file_offset, file, name }, &metadata)
    }

    fn visit_comm(self, record: Comm<'a>, metadata: RecordMetadata) -> Self::Output {
        let mut comm = [0; COMM_LEN];
        comm.iter_mut().zip(record.comm.iter()).for_each(|(to, from)| *to = *from);
        let exec = u32::from(metadata.misc()) & sys::PERF_RECORD_MISC_COMM_EXEC != 0;
        timed(Record::Comm { tgid: record.pid, tid: record.tid, comm, exec }, &metadata)
    }

    fn visit_fork(self, fork: Fork, metadata: RecordMetadata) -> Self::Output {
        let Fork { pid: tgid, tid, ppid: parent_tgid, ptid: parent_tid, .. } = fork;
        timed(Record::Fork { tgid, tid, parent_tgid, parent_tid }, &metadata)
    }

    fn visit_exit(self, exit: Exit, metadata: RecordMetadata) -> Self::Output {
        timed(Record::Exit { tgid: exit.pid, tid: exit.tid }, &metadata)
    }

    fn visit_ksymbol(self, symbol: KSymbol<'a>, metadata: RecordMetadata) -> Self::Output {
        let registered = !symbol.flags.contains(KSymbolFlags::UNREGISTER);
        let KSymbol { addr: start, len: bytes, name, .. } = symbol;
        timed(Record::Ksymbol { start, bytes, name: name.into_owned(), registered }, &metadata)
    }

    fn visit_lost(self, lost: Lost, metadata: RecordMetadata) -> Self::Output {
        timed(Record::Lost { records: lost.lost }, &metadata)
    }
}

fn timed(record: Record, metadata: &RecordMetadata) -> Result<Option<Timed>, Malformed> {
    let time_ns = metadata.sample_id().time().ok_or(Malformed)?;
    Ok(Some(Timed { time_ns, record }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIME: u64 = 0x0123_4567_89ab_cdef;

    /// A record as the kernel writes it: header, fields, and the time that ends each.
    fn record(kind: u32, misc: u32, fields: &[&[u8]]) -> Vec<u8> {
        let fields = fields.concat();
        let size = u16::try_from(HEADER_BYTES + fields.len() + size_of_val(&TIME)).unwrap();
        let misc = u16::try_from(misc).unwrap();
        let header = [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes()].concat();
        [header, fields, TIME.to_ne_bytes().to_vec()].concat()
    }

    fn u32s<const N: usize>(numbers: [u32; N]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    fn u64s<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    fn mmap2(misc: u32, file: &[u8], name: &[u8]) -> Vec<u8> {
        let (ids, place) = (u32s([10, 11]), u64s([0x40_0000, 0x2000, 0x1000]));
        record(sys::PERF_RECORD_MMAP2, misc, &[&ids, &place, file, &u32s([5, 2]), name])
    }

    fn only(bytes: &[u8]) -> Record {
        let all: Vec<_> = parse(bytes).collect();
        let [Ok(Timed { time_ns: TIME, record })] = &all[..] else { panic!("{all:?}") };
        record.clone()
    }

    fn mapped(file: Option<MappedId>, name: &[u8]) -> Record {
        let (start, bytes, file_offset, name) = (0x40_0000, 0x2000, 0x1000, name.to_vec());
        Record::Mmap { tgid: 10, tid: 11, start, bytes, file_offset, file, name }
    }

    #[test]
    fn reads_a_mapping_by_inode_or_of_no_file() {
        let inode = [u32s([8, 1]), u64s([77, 3])].concat();
        let file = MappedId { major: 8, minor: 1, inode: 77, generation: Some(3) };
        let bytes = mmap2(2, &inode, b"/bin/a b\0\0\0\0\0\0\0\0");
        assert_eq!(only(&bytes), mapped(Some(file), b"/bin/a b"));
        assert_eq!(only(&mmap2(2, &[0; 24], b"//anon\0\0")), mapped(None, b"//anon"));
    }

    #[test]
    fn a_flag_that_was_set_for_another_event_is_no_build_id() {
        let inode = [u32s([8, 1]), u64s([77, 3])].concat();
        let file = MappedId { major: 8, minor: 1, inode: 77, generation: Some(3) };
        let bytes =
            mmap2(2 | sys::PERF_RECORD_MISC_MMAP_BUILD_ID, &inode, b"/bin/a b\0\0\0\0\0\0\0\0");
        assert_eq!(only(&bytes), mapped(Some(file), b"/bin/a b"));
    }

    #[test]
    fn tells_exec_from_another_name() {
        for (misc, exec) in [(sys::PERF_RECORD_MISC_COMM_EXEC, true), (0, false)] {
            let bytes = record(sys::PERF_RECORD_COMM, misc, &[&u32s([10, 11]), b"sleep\0\0\0"]);
            let comm = *b"sleep\0\0\0\0\0\0\0\0\0\0\0";
            assert_eq!(only(&bytes), Record::Comm { tgid: 10, tid: 11, comm, exec });
        }
    }

    #[test]
    fn reads_how_threads_begin_and_end() {
        // Process, parent's process, thread, parent's thread.
        let task = [u32s([10, 1, 11, 2]), u64s([5])].concat();
        let fork = Record::Fork { tgid: 10, tid: 11, parent_tgid: 1, parent_tid: 2 };
        assert_eq!(only(&record(sys::PERF_RECORD_FORK, 0, &[&task])), fork);
        let exit = Record::Exit { tgid: 10, tid: 11 };
        assert_eq!(only(&record(sys::PERF_RECORD_EXIT, 0, &[&task])), exit);
    }

    #[test]
    fn reads_kernel_symbols_that_come_and_go() {
        for (flags, registered) in [(0, true), (sys::PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER, false)] {
            // `u16` type and `u16` flags.
            let flags = u16::try_from(flags).unwrap().to_ne_bytes();
            let kind = u16::try_from(sys::PERF_RECORD_KSYMBOL_TYPE_BPF).unwrap().to_ne_bytes();
            let place = [u64s([0xffff_ffff_c000_0000]), u32s([96])].concat();
            let fields = [&place[..], &kind, &flags, b"bpf_prog_1\0\0\0\0\0\0"];
            let name = b"bpf_prog_1".to_vec();
            let start = 0xffff_ffff_c000_0000;
            let expected = Record::Ksymbol { start, bytes: 96, name, registered };
            assert_eq!(only(&record(sys::PERF_RECORD_KSYMBOL, 0, &fields)), expected);
        }
    }

    #[test]
    fn goes_on_behind_what_it_has_no_use_for_and_what_it_can_not_read() {
        let lost = record(sys::PERF_RECORD_LOST, 0, &[&u64s([1, 42])]);
        let throttle = record(sys::PERF_RECORD_THROTTLE, 0, &[&u64s([1, 2, 3])]);
        let unknown = record(4711, 0, &[&[1; 8]]);
        let short = record(sys::PERF_RECORD_MMAP2, 0, &[&u32s([10, 11])]);
        let run = [throttle, unknown, short, lost].concat();
        let lost = Timed { time_ns: TIME, record: Record::Lost { records: 42 } };
        assert_eq!(parse(&run).collect::<Vec<_>>(), [Err(Malformed), Ok(lost)]);
        let kinds =
            [sys::PERF_RECORD_THROTTLE, 4711, sys::PERF_RECORD_MMAP2, sys::PERF_RECORD_LOST];
        assert_eq!(split(&run).map(|(kind, _)| kind).collect::<Vec<_>>(), kinds);
    }

    #[test]
    fn ends_at_a_record_that_is_not_whole() {
        let whole = record(sys::PERF_RECORD_COMM, 0, &[&u32s([10, 11]), b"sleep\0\0\0"]);
        for kept in 0..whole.len() {
            let is_cut = usize::from(kept > 0);
            let (cut, behind) = (&whole[..kept], [&whole[..], &whole[..kept]].concat());
            assert_eq!(parse(cut).filter(Result::is_err).count(), is_cut, "{kept}");
            assert_eq!(parse(cut).flatten().count(), 0, "{kept}");
            assert_eq!(parse(&behind).filter(Result::is_err).count(), is_cut, "{kept}");
            assert_eq!(parse(&behind).flatten().count(), 1, "{kept}");
        }
        let mut no_size = whole.clone();
        no_size[6..8].fill(0);
        let all: Vec<_> = parse(&[no_size, whole].concat()).collect();
        assert_eq!(all, [Err(Malformed)]);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(split(&bytes).count() <= bytes.len() / HEADER_BYTES);
            prop_assert!(parse(&bytes).count() <= bytes.len() / HEADER_BYTES + 1);
        }

        #[test]
        fn nearly_right_records_too(
            records in prop::collection::vec(
                (0_u32..24, any::<u16>(), prop::collection::vec(any::<u8>(), 0..120)), 0..20,
            ),
        ) {
            let whole = |(kind, misc, fields): &(u32, u16, Vec<u8>)| {
                record(*kind, u32::from(*misc), &[fields])
            };
            let run: Vec<u8> = records.iter().flat_map(whole).collect();
            prop_assert_eq!(split(&run).count(), records.len());
            prop_assert!(parse(&run).count() <= records.len());
        }
    }
}
