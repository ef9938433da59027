//! The mmap ring of a perf event, for the records that do not come from the eBPF program.
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
use rustix::param::page_size;

/// One page of control data, and some of records.
#[derive(Debug)]
pub(crate) struct MmapRing {
    control: NonNull<sys::perf_event_mmap_page>,
    page_bytes: usize,
    data_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and is not bound to a thread.
unsafe impl Send for MmapRing {}

impl MmapRing {
    /// Maps the ring of an event, with so many pages for records: a power of two.
    pub(crate) fn map(event: BorrowedFd<'_>, pages: usize) -> io::Result<Self> {
        let page_bytes = page_size();
        let too_large = || io::Error::from(io::ErrorKind::InvalidInput);
        let data_bytes = page_bytes.checked_mul(pages).ok_or_else(too_large)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                page_bytes.checked_add(data_bytes).ok_or_else(too_large)?,
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
        Ok(Self { control, page_bytes, data_bytes })
    }

    /// Moves what is there behind `bytes`: whole records.
    pub(crate) fn read(&mut self, bytes: &mut Vec<u8>) {
        let (head, tail) = self.positions();
        // Pairs with the barrier before the kernel's store of the head:
        // https://github.com/torvalds/linux/blob/v6.12/kernel/events/ring_buffer.c#L83-L107
        let end = head.load(Ordering::Acquire);
        let start = tail.load(Ordering::Relaxed);
        let unread = usize::try_from(end.wrapping_sub(start)).unwrap_or(0).min(self.data_bytes);
        if unread == 0 {
            return;
        }
        bytes.reserve(unread);
        let offset = usize::try_from(start % self.data_bytes as u64).unwrap_or(0);
        let first = unread.min(self.data_bytes - offset);
        // SAFETY: the data pages follow the control page; `offset + first` and `unread - first` are
        // at most their size. The kernel doesn't write between tail and head until tail moves.
        unsafe {
            let data = self.control.as_ptr().cast::<u8>().add(self.page_bytes);
            bytes.extend_from_slice(std::slice::from_raw_parts(data.add(offset), first));
            bytes.extend_from_slice(std::slice::from_raw_parts(data, unread - first));
        }
        // The reads above are done before the kernel may write there again.
        tail.store(end, Ordering::Release);
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

impl Drop for MmapRing {
    fn drop(&mut self) {
        let bytes = self.page_bytes + self.data_bytes;
        // SAFETY: this is the mapping that `map` has made, and nothing refers to it any more.
        unsafe { libc::munmap(self.control.as_ptr().cast(), bytes) };
    }
}
