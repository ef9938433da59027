//! A count of what the calling thread does, read without a system call where the kernel allows that.
//!
//! `perf_event_open(2)` describes the page that an event is read by (`cap_user_rdpmc`), and
//! <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h#L580-L760> its layout. x86-64 allows it
//! by default (`/sys/bus/event_source/devices/cpu/rdpmc`); aarch64 since Linux 5.17, where `kernel.perf_user_access` is 1:
//! <https://docs.kernel.org/arch/arm64/perf.html>.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsRawFd as _, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{Ordering, fence},
};

use perf_event_open_sys::bindings as sys;
use rustix::param::page_size;

use super::{
    attr,
    event::Event,
    open::{self, Scope},
    refusal::{self, Use},
};
use crate::{
    error::{Error, Result},
    kernel,
};

/// The bit `cap_user_rdpmc` in the page's capabilities.
const USER_RDPMC: u64 = 1 << 2;
/// How often a reading is begun anew, when the event was moved meanwhile, before the kernel is asked.
const TRIES: u32 = 100;

/// An event of the thread that has started it, which alone may read it.
#[derive(Debug)]
pub struct OwnCount {
    fd: OwnedFd,
    page: Option<Page>,
    /// A counter is that of the CPU that reads it.
    of_thread: PhantomData<*const ()>,
}

/// What the kernel says of where the event is counted now.
#[derive(Debug)]
struct Page(NonNull<sys::perf_event_mmap_page>);

/// The kernel has written the page while it was read.
struct Moved;

impl OwnCount {
    /// Counts what this thread does from now on.
    ///
    /// # Errors
    ///
    /// Those of `perf_event_open(2)`, as where there is no PMU.
    pub fn start(event: &Event) -> Result<Self> {
        let of_self = Scope::Task { tid: 0, cpu: None };
        let open = |direct| open::open(&mut attr::own(event, direct), of_self, None);
        // Of a kernel that allows no thread to read a counter, aarch64 refuses events that are to be read so.
        let fd = match open(is_asked_for()) {
            Err(_) if is_asked_for() => open(false),
            other => other,
        };
        let fd = fd.map_err(|error| refusal::explain(event, Use::Count, &error))?;
        // Without it, the kernel is asked each time.
        let page = Page::map(&fd).ok();
        Ok(Self { fd, page, of_thread: PhantomData })
    }

    /// How often it has happened so far. It is not scaled: with more events than counters, it is a part.
    pub fn read(&self) -> Result<u64> {
        match self.read_directly() {
            Some(count) => Ok(count),
            None => self.read_by_kernel(),
        }
    }

    /// The same without a system call; `None` where that can't be, or not now: the event has no counter.
    #[must_use]
    pub fn read_directly(&self) -> Option<u64> {
        let page = self.page.as_ref()?;
        (0..TRIES).find_map(|_| page.read().ok()).flatten()
    }

    /// The same by a system call.
    pub fn read_by_kernel(&self) -> Result<u64> {
        // The count, the time enabled and the time running: `attr::own` asks for these.
        let mut words = [[0; size_of::<u64>()]; 3];
        let bytes = words.as_flattened_mut();
        let failed = |why: &dyn std::fmt::Display| Error::system("cannot read a counter", why);
        let read = rustix::io::read(&self.fd, &mut *bytes).map_err(|error| failed(&error))?;
        if read != bytes.len() {
            return Err(failed(&"the kernel has given it up"));
        }
        let [count, _, _] = words.map(u64::from_ne_bytes);
        Ok(count)
    }
}

impl Page {
    fn map(fd: &OwnedFd) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                page_size(),
                libc::PROT_READ,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast()).map(Self).ok_or_else(io::Error::last_os_error)
    }

    /// The count; `None` if it can't be read like this.
    fn read(&self) -> Result<Option<u64>, Moved> {
        let page = self.0.as_ptr();
        // SAFETY: the page is mapped as long as `self` lives, and its fields are aligned. The kernel writes it while
        // this thread does not run.
        let lock = || unsafe { ptr::read_volatile(&raw const (*page).lock) };
        let before = lock();
        fence(Ordering::Acquire);
        // SAFETY: as above; `capabilities` is all bits of the union.
        let (capabilities, index, offset, width) = unsafe {
            (
                ptr::read_volatile(&raw const (*page).__bindgen_anon_1.capabilities),
                ptr::read_volatile(&raw const (*page).index),
                ptr::read_volatile(&raw const (*page).offset),
                ptr::read_volatile(&raw const (*page).pmc_width),
            )
        };
        let count = match index.checked_sub(1) {
            Some(counter) if capabilities & USER_RDPMC != 0 => {
                // SAFETY: the kernel lets this thread read counters, since the page says so.
                let value = unsafe { counter::read(counter) };
                sum(offset, value, width)
            }
            _ => None,
        };
        fence(Ordering::Acquire);
        if lock() == before { Ok(count) } else { Err(Moved) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` has made, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), page_size()) };
    }
}

/// Whether an event has to be opened for being read by the thread itself, and may be.
fn is_asked_for() -> bool {
    cfg!(target_arch = "aarch64") && kernel::sysctl_number("kernel.perf_user_access") == Some(1)
}

/// What was counted before, and by a counter of so many bits, which may have begun below zero.
fn sum(offset: i64, counter: u64, width: u16) -> Option<u64> {
    let unused = u64::BITS.checked_sub(width.into()).filter(|it| *it < u64::BITS)?;
    let counter = (counter << unused).cast_signed() >> unused;
    Some(offset.wrapping_add(counter).cast_unsigned())
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::asm;

    /// Reads a counter of this CPU.
    ///
    /// # Safety
    ///
    /// The kernel must let this thread do so.
    pub(super) unsafe fn read(counter: u32) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: the caller sees to it that it does not trap; it changes nothing else. It is no memory access, but
        // has to stay between those that are around it.
        unsafe {
            asm!("rdpmc", in("ecx") counter, out("eax") low, out("edx") high,
                 options(nostack, preserves_flags));
        }
        u64::from(high) << u32::BITS | u64::from(low)
    }
}

#[cfg(target_arch = "aarch64")]
mod counter {
    use std::arch::asm;

    /// The number of the counter that counts cycles only.
    const OF_CYCLES: u32 = 31;

    /// Reads a counter of this CPU.
    ///
    /// # Safety
    ///
    /// The kernel must let this thread do so.
    pub(super) unsafe fn read(counter: u32) -> u64 {
        let value: u64;
        // SAFETY: the caller sees to it that these don't trap. The selection is this thread's until it is preempted,
        // and then the page was written. They have to stay between the memory accesses that are around them.
        unsafe {
            asm!("isb", options(nostack, preserves_flags));
            if counter == OF_CYCLES {
                asm!("mrs {}, pmccntr_el0", out(reg) value, options(nostack, preserves_flags));
            } else {
                asm!("msr pmselr_el0, {}", "isb", "mrs {}, pmxevcntr_el0",
                     in(reg) u64::from(counter), out(reg) value, options(nostack, preserves_flags));
            }
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stderr;
    use profiler_events::Attr;
    use std::{hint::black_box, time::Instant};

    #[test]
    fn a_counter_continues_what_was_counted_before() {
        assert_eq!(sum(1000, 5, 48), Some(1005));
        // It counts up to zero, as the kernel sets it for a period.
        assert_eq!(sum(1000, (1 << 48) - 10, 48), Some(990));
        assert_eq!(sum(0, u64::MAX, 64), Some(u64::MAX));
        assert_eq!((sum(0, 1, 0), sum(0, 1, 65)), (None, None));
    }

    #[test]
    fn a_clock_is_read_by_the_kernel() {
        let clock = Event::new(Attr { name: "task-clock".into(), ..Attr::new(1, 1) });
        let own = match OwnCount::start(&clock) {
            Ok(own) => own,
            Err(error) => return stderr::say(&format!("skipped: {error}")),
        };
        assert_eq!(own.read_directly(), None);
        let (before, start) = (own.read().unwrap(), Instant::now());
        while own.read().unwrap() < before + 1_000_000 {
            black_box(start.elapsed());
        }
        assert!(own.read().unwrap() <= own.read_by_kernel().unwrap());
    }

    #[test]
    fn what_is_read_directly_lies_between_what_the_kernel_says() {
        let own = match OwnCount::start(&Event::cycles()) {
            Ok(own) => own,
            Err(error) => return stderr::say(&format!("skipped: {error}")),
        };
        for _ in 0..1000 {
            let before = own.read_by_kernel().unwrap();
            let Some(between) = own.read_directly() else {
                return stderr::say("skipped: the kernel lets no thread read its counters");
            };
            let after = own.read_by_kernel().unwrap();
            assert!((before..=after).contains(&between), "{before} {between} {after}");
        }
    }
}
