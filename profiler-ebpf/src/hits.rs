//! Which hits of a tracepoint count: `--filter`.

use core::{ffi::c_void, hint::black_box};

use aya_ebpf::{
    EbpfContext as _,
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_current_comm, bpf_get_smp_processor_id, bpf_probe_read_kernel},
    },
    programs::TracePointContext,
};
use profiler_common::{
    comm_patterns::{self, ENTRIES},
    hit_filter::{
        Field, MAX_TESTS, MAX_TEXTS, TEXT_BYTES, Test, WANTED, holds, number, number_bytes, place,
    },
    sample::COMM_LEN,
};

use crate::{HIT_FILTERS, SCRATCH, Scratch, TEXTS};

/// Whether the hit counts.
#[inline(always)]
pub(crate) fn is_wanted<const SLOT: u32>(ctx: &TracePointContext, scratch: &mut Scratch) -> bool {
    // As a number: the verifier lets nobody read a context at a place that it does not know.
    scratch.record = black_box(ctx.as_ptr()) as u64;
    // The call finds the scratch in its map, as those of the walk do.
    black_box(&raw mut *scratch);
    wanted(black_box(SLOT)) != 0
}

/// Runs the slot's filter: 1 if the hit counts.
///
/// With external linkage, so that the verifier takes it by itself, as the walk's steps.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn wanted(slot: u32) -> u32 {
    let Some(tests) = HIT_FILTERS.get(slot) else { return 0 };
    let mut next = 0_u32;
    for at in 0..MAX_TESTS {
        if at as u32 != next {
            continue;
        }
        let Some(test) = tests.get(at) else { return 0 };
        let is_so = if test.field >= Field::Text as u8 {
            text(slot, at as u32) != 0
        } else {
            is_number_so(slot, test)
        };
        next = u32::from(if is_so { test.if_true } else { test.if_false });
    }
    u32::from(next == u32::from(WANTED))
}

#[inline(always)]
fn is_number_so(slot: u32, test: &Test) -> bool {
    let value = if test.field == Field::Tid as u8 {
        u64::from(bpf_get_current_pid_tgid() as u32)
    } else if test.field == Field::Cpu as u8 {
        // SAFETY: a helper without preconditions.
        u64::from(unsafe { bpf_get_smp_processor_id() })
    } else {
        let Some(scratch) = SCRATCH.get_ptr_mut(slot) else { return false };
        // SAFETY: it points to this CPU's value of the slot, of which nothing else is used now.
        let Some(raw) = (unsafe { read_number(&mut *scratch, test) }) else { return false };
        number(test.field, raw)
    };
    holds(test, value)
}

#[inline(always)]
fn read_number(scratch: &mut Scratch, test: &Test) -> Option<u64> {
    scratch.number = 0;
    let bytes = black_box(number_bytes(test.field));
    let from = scratch.record.wrapping_add(u64::from(test.offset)) as *const c_void;
    // SAFETY: there is room for eight bytes; the helper reads from any address of the kernel or fails.
    let result =
        unsafe { bpf_probe_read_kernel((&raw mut scratch.number).cast(), bytes.min(8), from) };
    (result == 0).then_some(scratch.number)
}

/// Whether a text is as the slot's test of this number wants it: 1 if so.
///
/// With external linkage, as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn text(slot: u32, test: u32) -> u32 {
    let Some(tests) = HIT_FILTERS.get(slot) else { return 0 };
    let Some(test) = tests.get(test as usize & (MAX_TESTS - 1)) else { return 0 };
    let Some(scratch) = SCRATCH.get_ptr_mut(slot) else { return 0 };
    // SAFETY: it points to this CPU's value of the slot, of which nothing else is used now.
    let scratch = unsafe { &mut *scratch };
    if !read_text(scratch, test) {
        return 0;
    }
    let first = (test.value as u32 & (MAX_TEXTS - 1)) * ENTRIES;
    u32::from(comm_patterns::matches(&scratch.text, |entry| TEXTS.get(first + entry)))
}

/// Reads the text, with a zero behind it.
#[inline(always)]
fn read_text(scratch: &mut Scratch, test: &Test) -> bool {
    const LAST: usize = TEXT_BYTES - 1;
    let to = (&raw mut scratch.text).cast::<c_void>();
    if test.field == Field::Comm as u8 {
        // SAFETY: there is room for a name; the helper fills all of it, with a zero at its end.
        return unsafe { bpf_get_current_comm(to, COMM_LEN as u32) } == 0;
    }
    let (at, bytes) = if test.field == Field::Text as u8 {
        (u32::from(test.offset), u32::from(test.bytes))
    } else {
        scratch.number = 0;
        let from = scratch.record.wrapping_add(u64::from(test.offset)) as *const c_void;
        // SAFETY: there is room for four bytes; the helper reads from any address of the kernel or fails.
        if unsafe { bpf_probe_read_kernel((&raw mut scratch.number).cast(), 4, from) } != 0 {
            return false;
        }
        place(test, scratch.number as u32)
    };
    // The verifier sees the bound in a mask alone.
    let bytes = black_box(bytes.min(LAST as u32)) & LAST as u32;
    let from = scratch.record.wrapping_add(u64::from(at)) as *const c_void;
    // SAFETY: there is room for so many bytes; the helper reads from any address of the kernel or fails.
    if unsafe { bpf_probe_read_kernel(to, bytes, from) } != 0 {
        return false;
    }
    if let Some(end) = scratch.text.get_mut(bytes as usize & LAST) {
        *end = 0;
    }
    true
}
