//! How many bytes of heap a thread holds: what a cache of others' data structures is bounded by.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Heaps that threads share: few of them allocate much.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;
/// From this size on a block is mapped on its own, and gone when it is freed.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 128 << 10;

thread_local! {
    // Without a destructor, and made without an allocation: it is used inside of the allocator.
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting for each thread what it has allocated and not freed.
pub struct Counting;

fn add(bytes: isize) {
    HELD_BYTES.set(HELD_BYTES.get().wrapping_add(bytes));
}

fn signed(bytes: usize) -> isize {
    // A `Layout` is never larger.
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: each call is passed on to `System` as it is; counting touches no memory that is allocated.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(signed(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(signed(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-signed(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) };
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(signed(new_size).wrapping_sub(signed(layout.size())));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Has the C library give memory back that was freed. By itself glibc keeps what several threads have freed in a
/// heap of each of them, and takes ever larger blocks from there once one of that size was freed. To be called
/// before the first thread starts.
pub fn give_back_what_is_freed() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_ARENA_MAX, ARENAS),
        (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
        (libc::M_TRIM_THRESHOLD, 4 * LARGE_BYTES),
    ] {
        // It works as before if this fails.
        // SAFETY: takes no pointer, and no other thread is there yet.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Runs something, and also returns by how many bytes the heap of this thread has grown meanwhile.
/// Where [`Counting`] is not the program's allocator, that is none.
pub fn grown_by<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD_BYTES.get();
    let result = run();
    let grown = HELD_BYTES.get().wrapping_sub(before);
    (result, usize::try_from(grown).unwrap_or(0))
}
