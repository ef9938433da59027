//! A copy of the stack for the agent to walk, where it had not told in time what the walk needs: what a
//! process has mapped that began a moment ago, or the table of a file.

use core::{ffi::c_void, hint::black_box, mem::offset_of};

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use profiler_common::{
    sample::{COPY_BELOW, COPY_BYTES, COPY_REGISTERS},
    unwind::{Native, step::Arch as _},
};

use crate::{FRAMES, RING_BYTES, SCRATCH, Scratch, unread, walk::PAGE_BYTES};

/// Whole pages that are copied, above what is left of the first: two, since a frame with a path in it takes
/// one, and there are others above.
const PAGES: u32 = 2;

/// Copies the stack behind the record's addresses if the walk was not told enough; gives its bytes.
///
/// Not where that would leave half of the ring unread: copies are large, and must not cost a sample. The reader
/// is woken well before that.
#[inline(always)]
pub(crate) fn copy<const SLOT: u32>(scratch: &mut Scratch) -> u64 {
    if scratch.walk.lacks == 0 || unread() + COPY_BYTES as u64 > RING_BYTES.load() / 2 {
        return 0;
    }
    // The call finds the scratch in its map, as those of the walk do.
    black_box(&raw mut *scratch);
    let bytes = black_box(u64::from(copy_stack(black_box(SLOT))));
    // LLVM must not merge the comparison into one of a sum: the verifier would not see the bound.
    black_box(if bytes <= COPY_BYTES as u64 { bytes } else { 0 })
}

/// Copies the sample's registers, what is below its stack pointer, and the stack from there up to where it
/// ends, or to the third page boundary: what is left of the first page, and two more.
///
/// With external linkage, so that the verifier takes it by itself, as the walk's steps.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn copy_stack(slot: u32) -> u32 {
    const REGISTERS_BYTES: usize = COPY_REGISTERS * 8;
    let Some(scratch) = SCRATCH.get_ptr_mut(slot) else { return 0 };
    // SAFETY: it points to this CPU's value of the slot, which `take` keeps for this run of the program.
    let used = black_box(unsafe { (*scratch).walk.next });
    if used > FRAMES as u32 {
        return 0;
    }
    // SAFETY: as above, and `used` addresses have room in `frames`, behind which there is room for a copy.
    let to = unsafe {
        let frames = scratch.cast::<u8>().add(offset_of!(Scratch, frames));
        frames.add(used as usize * 8)
    };
    let mut at = 0;
    for number in 0..COPY_REGISTERS {
        // SAFETY: as above.
        unsafe {
            let value = (*scratch).walk.registers[number];
            to.cast::<u64>().add(number).write(value);
            if number == Native::SP as usize {
                at = value;
            }
        }
    }
    let mut bytes = PAGE_BYTES - (at & (PAGE_BYTES - 1));
    // SAFETY: a copy has room for the registers, what is below, and three pages, of which the first may be
    // whole; the helper reads from any address or fails.
    unsafe {
        let below = to.add(REGISTERS_BYTES);
        let to = below.add(COPY_BELOW);
        // Within exec and exit there is no stack any more, which the agent learns so; also of one that is
        // not in memory, or at no multiple of eight.
        if at & 7 != 0 || bpf_probe_read_user(to.cast(), bytes as u32, at as *const c_void) != 0 {
            return REGISTERS_BYTES as u32;
        }
        if COPY_BELOW > 0 {
            // The page below may never have been used. The helper then leaves zeros.
            let from = at.wrapping_sub(COPY_BELOW as u64) as *const c_void;
            if bpf_probe_read_user(below.cast(), COPY_BELOW as u32, from) != 0 {
                let in_page = at as usize & COPY_BELOW.wrapping_sub(1);
                // LLVM must not subtract from the pointer first: the verifier would see it leave the map.
                let to = below.add(black_box(COPY_BELOW - in_page));
                let from = at.wrapping_sub(in_page as u64) as *const c_void;
                bpf_probe_read_user(to.cast(), in_page as u32, from);
            }
        }
        for _ in 0..PAGES {
            let next = at.wrapping_add(bytes) as *const c_void;
            if bpf_probe_read_user(to.add(bytes as usize).cast(), PAGE_BYTES as u32, next) != 0 {
                break;
            }
            bytes += PAGE_BYTES;
        }
    }
    (REGISTERS_BYTES + COPY_BELOW) as u32 + bytes as u32
}
