//! The walk of the user stack: by the tables that the agent has made of unwind information, and by
//! frame pointers where there is none.
//!
//! Needs `bpf_loop` (Linux 5.17). What costs is reading user memory, and that by the call, not by the
//! byte; so the stack is read in windows of 2 KiB. Which rule holds at an address is kept in a cache
//! of each CPU, since stacks repeat.

use core::{
    ffi::{c_long, c_void},
    hint::black_box,
};

use aya_ebpf::{
    btf_maps::{Array as BtfArray, ArrayOfMaps},
    helpers::generated::{bpf_loop, bpf_probe_read_user},
    macros::{btf_map, map},
    maps::{Array, HashMap, PerCpuArray},
};
use profiler_common::{
    sample::{INTERRUPTED, MAX_FRAMES, UserEnd},
    settings::flag,
    unwind::{
        Native,
        rule::{Cfa, Rule},
        space::{self, Block, Blocks, NO_TABLE, Space},
        step::{Caller, Memory, Registers, Stop, step},
        table::{self, Chunk, Chunks, RULES, TABLES, TAKEN_OUT},
    },
};

use crate::{FLAGS, FRAMES, Scratch, registers};

/// What the agent knows of each process. It sets the size.
#[map]
static SPACES: HashMap<u32, Space> = HashMap::with_max_entries(1, 0);
/// Their mappings. The agent sets the size.
#[map]
static BLOCKS: Array<Block> = Array::with_max_entries(1, 0);
/// The rules of all tables.
#[map]
static RULE: Array<Rule> = Array::with_max_entries(RULES, 0);
/// Which tables are asked for and not there, by their positions.
#[map]
static WANTED: Array<[u8; TABLES as usize]> = Array::with_max_entries(1, 0);
#[map]
static CACHE: PerCpuArray<Cache> = PerCpuArray::with_max_entries(1, 0);
/// The tables, each an array of chunks as long as it needs.
#[btf_map]
static TABLE: ArrayOfMaps<BtfArray<Chunk, 1, { BPF_F_INNER_MAP }>, { TABLES as usize }> =
    ArrayOfMaps::new();

/// Arrays of different lengths may take each other's place (Linux 5.10).
const BPF_F_INNER_MAP: usize = 1 << 12;
/// Words that are read of the stack at once.
const WINDOW_WORDS: usize = 256;
const WINDOW_BYTES: u64 = WINDOW_WORDS as u64 * 8;
/// Memory is there by pages of at least this size.
const PAGE_BYTES: u64 = 4096;
/// Rules kept by address: as many as a per-CPU value, which has 32 KiB at most, can hold.
const CACHED: usize = 2048;

type Cache = [Cached; CACHED];

/// Which rule holds at an address of a process.
#[repr(C)]
struct Cached {
    pc: u64,
    /// Zero in one that is not in use.
    generation: u32,
    rule: u32,
}

/// The state of a walk.
#[repr(C)]
pub(crate) struct Walk {
    /// The frame at hand.
    frame: Registers,
    /// Which of the record's frames is the next, and which is behind the last.
    next: u32,
    behind: u32,
    /// Whether the frame's address is that of a call's return: 0 or 1.
    is_return: u32,
    /// Whether the frame was found by a frame pointer, and has yet to be shown to be one.
    is_guess: u32,
    /// What the agent has not told, where frames may be missing for that: a [`UserEnd`], or 0.
    lacks: u32,
    reserved: u32,
    space: Space,
    /// How it has ended.
    end: u32,
    /// Whether the registers are still those of the sample.
    is_sampled: u32,
    /// The sample's registers, by DWARF's numbers.
    pub(crate) registers: [u64; registers::COUNT],
    window: Window,
}

/// A part of the stack.
#[repr(C)]
struct Window {
    start: u64,
    /// How many bytes of it have been read.
    bytes: u64,
    words: [u64; WINDOW_WORDS],
}

/// What a step of the loop gets.
struct Context {
    scratch: *mut Scratch,
    cache: *mut Cache,
}

/// Walks from these registers on, and writes addresses to the scratch's frames from `first` on; gives
/// how many there are, and how it has ended.
#[inline(always)]
pub(crate) fn walk(
    scratch: &mut Scratch,
    tgid: u32,
    registers: Registers,
    first: u32,
    limit: u32,
    by_tables: bool,
) -> (u64, UserEnd) {
    let Some(cache) = CACHE.get_ptr_mut(0) else { return (0, UserEnd::NotMapped) };
    let state = &mut scratch.walk;
    state.frame = registers;
    state.next = first;
    state.behind = first + limit;
    state.is_return = 0;
    state.is_guess = 0;
    state.lacks = 0;
    state.end = UserEnd::Depth as u32;
    state.is_sampled = 1;
    state.window.bytes = 0;
    state.space = Space::default();
    if by_tables {
        // SAFETY: the agent replaces a value whole, and the kernel keeps the old one until no program
        // uses it any more, or uses it again for the same process: then this walk finds nothing.
        if let Some(space) = unsafe { SPACES.get(tgid) } {
            state.space = *space;
        }
    }
    let mut context = Context { scratch, cache };
    let next: extern "C" fn(u32, *mut Context) -> c_long =
        if by_tables { next_by_tables } else { next_by_frame_pointers };
    // SAFETY: the callback has the signature that the kernel expects, and `context` outlives the call.
    unsafe {
        bpf_loop(limit + 1, next as *mut c_void, (&raw mut context).cast(), 0);
    }
    let state = &scratch.walk;
    // LLVM must neither compare another copy of it than is used, nor merge the comparison into one of
    // a sum: the verifier would not see the bound.
    let frames = black_box(u64::from(state.next.wrapping_sub(first)));
    let end = UserEnd::from_wire(state.end as u8).unwrap_or(UserEnd::Depth);
    (black_box(if frames <= u64::from(MAX_FRAMES) { frames } else { 0 }), end)
}

const GO_ON: c_long = 0;
const DONE: c_long = 1;

extern "C" fn next_by_tables(_: u32, context: *mut Context) -> c_long {
    // SAFETY: `walk` gives the loop a context with pointers to two different values.
    let (scratch, cache) = unsafe { (&mut *(*context).scratch, &mut *(*context).cache) };
    let rule = match rule_at(&scratch.walk, cache) {
        Ok(rule) => rule,
        // The frame pointer did not lead to code, so this is no frame.
        Err(UserEnd::NotMapped) if scratch.walk.is_guess != 0 => {
            return done(scratch, UserEnd::NoUnwindInfo);
        }
        Err(end) => {
            if scratch.walk.lacks == 0 {
                scratch.walk.lacks = end as u32;
            }
            u32::from(table::UNKNOWN)
        }
    };
    if !push(scratch) {
        return DONE;
    }
    let Some(rule) = RULE.get(rule) else { return done(scratch, UserEnd::Unsupported) };
    let is_guess = rule.cfa == Cfa::UNKNOWN;
    if is_guess && FLAGS.load() & flag::OR_FRAME_POINTERS == 0 {
        return done(scratch, UserEnd::NoUnwindInfo);
    }
    // Where nothing is known of the process, or what is known is from before an exec, a guess can't be
    // checked.
    let is_known =
        scratch.walk.space.generation != 0 && scratch.walk.lacks != UserEnd::NotMapped as u32;
    scratch.walk.is_guess = u32::from(is_guess && is_known);
    advance(scratch, rule)
}

extern "C" fn next_by_frame_pointers(_: u32, context: *mut Context) -> c_long {
    // SAFETY: as above.
    let scratch = unsafe { &mut *(*context).scratch };
    if push(scratch) { advance(scratch, &const { Rule::of(Cfa::UNKNOWN) }) } else { DONE }
}

#[inline(always)]
fn done(scratch: &mut Scratch, end: UserEnd) -> c_long {
    let lacks = scratch.walk.lacks;
    scratch.walk.end = if lacks == 0 { end as u32 } else { lacks };
    DONE
}

/// Writes the address of the frame at hand, if there is room.
#[inline(always)]
fn push(scratch: &mut Scratch) -> bool {
    let Walk { next, behind, frame, is_return, is_sampled, .. } = scratch.walk;
    if next >= behind {
        return false;
    }
    let is_interrupted = is_return == 0 && is_sampled == 0;
    let address = if is_interrupted { frame.pc | INTERRUPTED } else { frame.pc };
    if let Some(place) = scratch.frames.get_mut(next as usize & (FRAMES - 1)) {
        *place = address;
    }
    scratch.walk.next = next + 1;
    true
}

/// Steps to the caller.
#[inline(always)]
fn advance(scratch: &mut Scratch, rule: &Rule) -> c_long {
    let walk = &mut scratch.walk;
    let mut frame = walk.frame;
    let mut memory = Stack {
        window: &mut walk.window,
        registers: &walk.registers,
        is_sampled: walk.is_sampled != 0,
    };
    let stepped = step::<Native>(rule, &mut frame, &mut memory);
    walk.frame = frame;
    walk.is_sampled = 0;
    let is_guess = rule.cfa == Cfa::UNKNOWN;
    let by_tables = walk.space.generation != 0;
    let end = match stepped {
        Ok(Caller::Called) => {
            walk.is_return = 1;
            return GO_ON;
        }
        Ok(Caller::Interrupted) => {
            walk.is_return = 0;
            return GO_ON;
        }
        Err(Stop::Complete | Stop::Unreadable) if is_guess => {
            if by_tables {
                UserEnd::NoUnwindInfo
            } else {
                UserEnd::ChainEnded
            }
        }
        Err(Stop::Complete) => UserEnd::Complete,
        Err(Stop::Unreadable) => UserEnd::Unreadable,
        Err(Stop::Unsupported) => UserEnd::Unsupported,
    };
    done(scratch, end)
}

/// The number of the rule for the frame at hand.
#[inline(always)]
fn rule_at(walk: &Walk, cache: &mut Cache) -> Result<u32, UserEnd> {
    // The call may be the last instruction of its function.
    let pc = walk.frame.pc.wrapping_sub(u64::from(walk.is_return));
    let generation = walk.space.generation;
    // The upper bits of a product depend on all bits of its factors.
    let hash = (pc ^ u64::from(generation) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let cached = cache.get_mut(hash as usize & (CACHED - 1)).ok_or(UserEnd::NotMapped)?;
    if cached.pc == pc && cached.generation == generation && generation != 0 {
        return Ok(cached.rule);
    }
    let rule = look_up(&walk.space, pc)?;
    *cached = Cached { pc, generation, rule };
    Ok(rule)
}

/// The same, by the maps.
#[inline(always)]
fn look_up(space: &Space, pc: u64) -> Result<u32, UserEnd> {
    let unknown = u32::from(table::UNKNOWN);
    if space.generation == 0 {
        return Err(UserEnd::NotMapped);
    }
    let mapping = space::find(&Map, space, pc).ok_or(UserEnd::NotMapped)?;
    let number = mapping.table;
    if number == NO_TABLE {
        return Ok(unknown);
    }
    let offset = pc.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset);
    let table = Table { number };
    if table.chunk(0).is_none_or(|head| head.first() == Some(&TAKEN_OUT)) {
        if let Some(wanted) = WANTED.get_ptr_mut(0)
            // SAFETY: it points to a map's value; the byte is only ever set here.
            && let Some(wanted) = unsafe { &mut *wanted }.get_mut(number as usize & (TABLES as usize - 1))
        {
            *wanted = 1;
        }
        return Err(UserEnd::NotLoaded);
    }
    Ok(table::find(&table, offset).map_or(unknown, u32::from))
}

struct Map;

impl Blocks for Map {
    #[inline(always)]
    fn block(&self, number: u32) -> Option<&Block> {
        BLOCKS.get(number)
    }
}

struct Table {
    number: u32,
}

impl Chunks for Table {
    #[inline(always)]
    fn chunk(&self, number: u32) -> Option<&Chunk> {
        TABLE.get_value(self.number, &number)
    }
}

struct Stack<'a> {
    window: &'a mut Window,
    registers: &'a [u64; registers::COUNT],
    is_sampled: bool,
}

impl Memory for Stack<'_> {
    #[inline(always)]
    fn word(&mut self, address: u64) -> Option<u64> {
        if address & 7 != 0 {
            return None;
        }
        if address.wrapping_sub(self.window.start) >= self.window.bytes {
            read(self.window, address)?;
        }
        let at = address.wrapping_sub(self.window.start) / 8;
        self.window.words.get(at as usize & (WINDOW_WORDS - 1)).copied()
    }

    #[inline(always)]
    fn register(&self, number: u8) -> Option<u64> {
        let value = *self.registers.get(usize::from(number) & (registers::COUNT - 1))?;
        (self.is_sampled && usize::from(number) < registers::COUNT).then_some(value)
    }
}

/// Reads the stack from an address on: a window, or what is left of the page.
#[inline(always)]
fn read(window: &mut Window, address: u64) -> Option<()> {
    window.start = address;
    window.bytes = WINDOW_BYTES;
    let to = (&raw mut window.words).cast::<c_void>();
    // SAFETY: `words` has so many bytes; the helper reads from any address or fails.
    if unsafe { bpf_probe_read_user(to, WINDOW_BYTES as u32, address as *const c_void) } == 0 {
        return Some(());
    }
    window.bytes = 0;
    let left = PAGE_BYTES - (address & (PAGE_BYTES - 1));
    if left >= WINDOW_BYTES {
        return None;
    }
    // SAFETY: as above, of fewer bytes.
    if unsafe {
        bpf_probe_read_user(to, left as u32 & (WINDOW_BYTES as u32 - 1), address as *const c_void)
    } != 0
    {
        return None;
    }
    window.bytes = left;
    Some(())
}
