//! The mmap ring of a perf event, for the few records that do not come from the eBPF program.
//!
//! Layout: <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>, struct
//! `perf_event_mmap_page`, then the data pages.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use perf_event_open_sys::bindings as sys;

/// A record's header: `u32` type, `u16` misc, `u16` size.
const HEADER_BYTES: usize = 8;

/// One page of control data and one of records. A throttle record takes 32 bytes, so a page holds
/// more than a timer tick's worth of them on every CPU.
#[derive(Debug)]
pub(crate) struct RecordRing {
    control: NonNull<sys::perf_event_mmap_page>,
    page_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and is not bound to a thread.
unsafe impl Send for RecordRing {}

impl RecordRing {
    /// Maps the ring of an event.
    pub(crate) fn map(event: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: no preconditions.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page_bytes = usize::try_from(page_bytes).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                2 * page_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let control = NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { control, page_bytes })
    }

    /// Reads what is there and counts the throttle records.
    pub(crate) fn take_throttles(&mut self) -> u64 {
        let (head, tail) = self.positions();
        // Pairs with the barrier before the kernel's store of the head:
        // https://github.com/torvalds/linux/blob/v6.12/kernel/events/ring_buffer.c#L83-L107
        let end = head.load(Ordering::Acquire);
        let start = tail.load(Ordering::Relaxed);
        let unread = usize::try_from(end.wrapping_sub(start)).unwrap_or(0).min(self.page_bytes);
        if unread == 0 {
            return 0;
        }
        let mut bytes = Vec::with_capacity(unread);
        let offset = usize::try_from(start % self.page_bytes as u64).unwrap_or(0);
        let first = unread.min(self.page_bytes - offset);
        // SAFETY: the data page follows the control page; `offset + first` and `unread - first` are
        // at most its size. The kernel doesn't write between tail and head until tail moves.
        unsafe {
            let data = self.control.as_ptr().cast::<u8>().add(self.page_bytes);
            bytes.extend_from_slice(std::slice::from_raw_parts(data.add(offset), first));
            bytes.extend_from_slice(std::slice::from_raw_parts(data, unread - first));
        }
        // The reads above are done before the kernel may write there again.
        tail.store(end, Ordering::Release);
        count_throttles(&bytes)
    }

    fn positions(&self) -> (&AtomicU64, &AtomicU64) {
        let control = self.control.as_ptr();
        // SAFETY: the control page is mapped as long as `self` lives; both words are aligned, and
        // only ever accessed atomically on our side.
        unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*control).data_head),
                AtomicU64::from_ptr(&raw mut (*control).data_tail),
            )
        }
    }
}

impl Drop for RecordRing {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` has made, and nothing refers to it any more.
        unsafe { libc::munmap(self.control.as_ptr().cast(), 2 * self.page_bytes) };
    }
}

/// Counts `PERF_RECORD_THROTTLE` in a run of records; stops at one that can't be.
fn count_throttles(mut records: &[u8]) -> u64 {
    let mut throttles = 0;
    while let Some(([a, b, c, d, _, _, e, f], _)) = records.split_first_chunk::<HEADER_BYTES>() {
        if u32::from_ne_bytes([*a, *b, *c, *d]) == sys::PERF_RECORD_THROTTLE {
            throttles += 1;
        }
        let size = usize::from(u16::from_ne_bytes([*e, *f]));
        match records.get(size..) {
            Some(rest) if size >= HEADER_BYTES => records = rest,
            _ => break,
        }
    }
    throttles
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, size: u16) -> Vec<u8> {
        let mut record = kind.to_ne_bytes().to_vec();
        record.extend([0, 0]);
        record.extend(size.to_ne_bytes());
        record.resize(usize::from(size).max(HEADER_BYTES), 0);
        record
    }

    #[test]
    fn counts_throttles_among_others() {
        let kinds = [sys::PERF_RECORD_THROTTLE, sys::PERF_RECORD_UNTHROTTLE, sys::PERF_RECORD_LOST];
        let records: Vec<u8> = kinds.iter().cycle().take(7).flat_map(|&k| record(k, 32)).collect();
        assert_eq!(count_throttles(&records), 3);
    }

    #[test]
    fn a_record_of_no_size_ends_it() {
        let mut records = record(sys::PERF_RECORD_THROTTLE, 0);
        records.extend(record(sys::PERF_RECORD_THROTTLE, 32));
        assert_eq!(count_throttles(&records), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(count_throttles(&bytes) <= bytes.len() as u64 / HEADER_BYTES as u64);
        }
    }
}
