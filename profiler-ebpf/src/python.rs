//! The walk of CPython's frames, before that of the native ones.
//!
//! Each call of the evaluator keeps a record on the C stack. Their addresses are kept, too: the walk of the
//! native frames marks each frame that holds one.

use core::{ffi::c_void, hint::black_box};

use aya_ebpf::{
    helpers::generated::{bpf_get_current_task, bpf_probe_read_kernel, bpf_probe_read_user},
    macros::map,
    maps::{Array, PerCpuArray},
};
use profiler_common::{
    python::{
        CHECKED_WORDS, FRAME_BYTES, INTERPRETERS, Interpreter, MAX_WALK_BYTES,
        walk::{self, Chain, FRAME_WORDS, Step, Stop},
        wire::{self, Frame},
    },
    sample::{InterpreterEnd, MAX_INTERPRETER_WORDS, RUNS_CODE},
};

use crate::{FRAME_LIMIT, FRAMES, SCRATCH, Scratch};

/// How interpreters keep their frames. An element that a process refers to does not change.
#[map]
static INTERPRETER: Array<Interpreter> = Array::with_max_entries(INTERPRETERS, 0);
/// The state of a walk, for each slot.
#[map]
static PYTHON: PerCpuArray<Python> = PerCpuArray::with_max_entries(1, 0);

/// Records on the stack that are kept, a power of two. What is entered further out is not marked.
const RECORDS: usize = 256;
/// How many frames a call of [`walk_python`] goes up, at most.
const FRAMES_A_CALL: u32 = 4;
/// Words that a frame writes, at most: its code, and that the evaluator was entered with it.
const WORDS_A_FRAME: u32 = 2 * wire::WORDS as u32;

/// The state of a walk.
#[repr(C)]
struct Python {
    chain: Chain,
    /// Where the next word goes, and where there is no more room.
    next: u32,
    behind: u32,
    /// How it has ended.
    end: u32,
    /// Records that were found, and those that the native walk has passed.
    records: u32,
    passed: u32,
    reserved: u32,
    /// What was read of a frame.
    words: [u64; FRAME_WORDS],
    /// Their addresses, innermost first, and one behind the last that nothing passes.
    record: [u64; RECORDS],
}

const _: () = assert!(size_of::<Python>() <= MAX_WALK_BYTES as usize);

/// Writes frames to the scratch's from `first` on; gives how many words, and how it has ended.
#[inline(always)]
pub(crate) fn walk<const SLOT: u32>(scratch: &mut Scratch, first: u32) -> (u64, InterpreterEnd) {
    if scratch.walk.space.interpreter == 0 {
        return (0, InterpreterEnd::None);
    }
    // The calls find the scratch in its map: see the native walk.
    black_box(&raw mut *scratch);
    let slot = black_box(SLOT);
    if begin_python(slot, first) == 0 {
        for _ in 0..=MAX_INTERPRETER_WORDS / WORDS as u32 / FRAMES_A_CALL {
            if walk_python(slot) != 0 {
                break;
            }
        }
    }
    let Some(python) = PYTHON.get_ptr(slot) else { return (0, InterpreterEnd::None) };
    // SAFETY: it points to this CPU's value of the slot, which `take` keeps for this run of the program.
    let python = unsafe { &*python };
    // As for the native walk: LLVM must not merge the comparison into one of a sum.
    let words = black_box(u64::from(python.next.wrapping_sub(first)));
    let end = InterpreterEnd::from_wire(python.end as u8).unwrap_or(InterpreterEnd::None);
    (black_box(if words <= u64::from(MAX_INTERPRETER_WORDS) { words } else { 0 }), end)
}

const WORDS: usize = wire::WORDS;

/// Finds the innermost frame; 1 if there is none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn begin_python(slot: u32, first: u32) -> u32 {
    let (Some(scratch), Some(python)) = (SCRATCH.get_ptr_mut(slot), PYTHON.get_ptr_mut(slot))
    else {
        return 1;
    };
    // SAFETY: both point to this CPU's values of the slot, which `take` keeps for this run of the program.
    let (scratch, python) = unsafe { (&mut *scratch, &mut *python) };
    python.next = first;
    python.behind = first + (FRAME_LIMIT.load() * WORDS_A_FRAME).min(MAX_INTERPRETER_WORDS);
    python.end = InterpreterEnd::None as u32;
    (python.records, python.passed) = (0, 0);
    python.record[0] = u64::MAX;
    let Some(interpreter) = INTERPRETER.get(scratch.walk.space.interpreter.wrapping_sub(1)) else {
        return 1;
    };
    let mut thread_pointer = 0_u64;
    // SAFETY: `thread_pointer` has the size given; the helper reads from any address or fails.
    let result = unsafe {
        let at = bpf_get_current_task().wrapping_add(interpreter.thread_pointer);
        bpf_probe_read_kernel((&raw mut thread_pointer).cast(), 8, at as *const c_void)
    };
    if result != 0 {
        return 1;
    }
    let Python { chain, words, .. } = python;
    match walk::begin(&interpreter.layout, thread_pointer, &mut Memory(words)) {
        Ok(begun) => {
            *chain = begun;
            python.end = InterpreterEnd::Depth as u32;
            0
        }
        Err(stop) => {
            python.end = ended(stop);
            1
        }
    }
}

/// Goes up some frames; 1 if the walk has ended. With external linkage, so that the verifier takes it by
/// itself, as the native walk's steps.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_python(slot: u32) -> u32 {
    let (Some(scratch), Some(python)) = (SCRATCH.get_ptr_mut(slot), PYTHON.get_ptr_mut(slot))
    else {
        return 1;
    };
    // SAFETY: as above.
    let (scratch, python) = unsafe { (&mut *scratch, &mut *python) };
    let Some(interpreter) = INTERPRETER.get(scratch.walk.space.interpreter.wrapping_sub(1)) else {
        return 1;
    };
    // One way out, or LLVM leaves a register unset on one of two.
    let end = 'walk: {
        for _ in 0..FRAMES_A_CALL {
            if python.next.wrapping_add(WORDS_A_FRAME) > python.behind {
                break 'walk InterpreterEnd::Depth as u32;
            }
            let Python { chain, words, .. } = python;
            match walk::step(&interpreter.layout, chain, &mut Memory(words)) {
                Ok(Step { code, entry }) => {
                    if let Some(code) = code {
                        push(scratch, python, code);
                    }
                    if let Some(Frame::Entry { record }) = entry {
                        push(scratch, python, Frame::Entry { record });
                        keep(python, record);
                    }
                }
                Err(stop) => break 'walk ended(stop),
            }
        }
        return 0;
    };
    python.end = black_box(end);
    // The native walk is told of the first record.
    python.record[python.records as usize & (RECORDS - 1)] = u64::MAX;
    scratch.walk.mark_above = python.record[0];
    1
}

#[inline(always)]
fn ended(stop: Stop) -> u32 {
    match stop {
        Stop::Complete => InterpreterEnd::Complete as u32,
        Stop::Unreadable => InterpreterEnd::Unreadable as u32,
    }
}

/// Keeps the address of a record, if there is one, and room.
#[inline(always)]
fn keep(python: &mut Python, record: u64) {
    if record != 0 && python.records < RECORDS as u32 - 1 {
        python.record[python.records as usize & (RECORDS - 1)] = record;
        python.records += 1;
    }
}

#[inline(always)]
fn push(scratch: &mut Scratch, python: &mut Python, frame: Frame) {
    let words = frame.to_wire();
    for word in words {
        if let Some(place) = scratch.frames.get_mut(python.next as usize & (FRAMES - 1)) {
            *place = word;
        }
        python.next += 1;
    }
}

/// Marks the native frame that was left last: it holds the next record.
#[inline(always)]
pub(crate) fn mark(scratch: &mut Scratch, slot: u32) {
    let Some(python) = PYTHON.get_ptr_mut(slot) else { return };
    // SAFETY: as above.
    let python = unsafe { &mut *python };
    let last = scratch.walk.next.wrapping_sub(1);
    if let Some(place) = scratch.frames.get_mut(last as usize & (FRAMES - 1)) {
        *place |= RUNS_CODE;
    }
    python.passed += 1;
    scratch.walk.mark_above = python.record[python.passed as usize & (RECORDS - 1)];
}

struct Memory<'a>(&'a mut [u64; FRAME_WORDS]);

impl walk::Memory for Memory<'_> {
    #[inline(always)]
    fn word(&mut self, address: u64) -> Option<u64> {
        let mut value = 0_u64;
        // SAFETY: `value` has the size given; the helper reads from any address or fails.
        let result =
            unsafe { bpf_probe_read_user((&raw mut value).cast(), 8, address as *const c_void) };
        (result == 0).then_some(value)
    }

    #[inline(always)]
    fn frame(&mut self, address: u64, bytes: u16) -> Option<&[u64; FRAME_WORDS]> {
        let bytes = u32::from(bytes.min(FRAME_BYTES));
        // SAFETY: there is room for so many; the helper reads from any address or fails.
        let result = unsafe {
            bpf_probe_read_user((&raw mut *self.0).cast(), bytes, address as *const c_void)
        };
        (result == 0).then_some(&*self.0)
    }

    #[inline(always)]
    fn checked(&mut self, address: u64) -> Option<[u64; CHECKED_WORDS]> {
        let mut words = [0; CHECKED_WORDS];
        let bytes = size_of_val(&words) as u32;
        // SAFETY: `words` has the size given; the helper reads from any address or fails.
        let result = unsafe {
            bpf_probe_read_user((&raw mut words).cast(), bytes, address as *const c_void)
        };
        (result == 0).then_some(words)
    }
}
