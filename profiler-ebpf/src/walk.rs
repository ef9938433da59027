//! The walk of the user stack: by the tables that the agent has made of unwind information, and by
//! frame pointers where there is none.
//!
//! What costs is reading user memory, and that by the call, not by the
//! byte; so the stack is read in windows of 2 KiB. Which rule holds at an address is kept in a cache
//! of each CPU, since stacks repeat.

use core::{ffi::c_void, hint::black_box};

use aya_ebpf::{
    btf_maps::{Array as BtfArray, ArrayOfMaps},
    helpers::generated::bpf_probe_read_user,
    macros::{btf_map, map},
    maps::{Array, HashMap, PerCpuArray},
};
use profiler_common::{
    sample::{INTERRUPTED, MAX_FRAMES, UserEnd},
    settings::walk as by,
    unwind::{
        Native,
        quick::Quick,
        rule::{Cfa, Rule},
        space::{self, Block, Blocks, NO_TABLE, NOT_OPEN, Space},
        step::{Caller, Memory, Registers, Stop, step},
        table::{self, Chunk, Chunks, RULES, TABLES, TAKEN_OUT},
    },
};

use crate::{FRAME_LIMIT, FRAMES, SCRATCH, Scratch, WALK, python, registers};

/// What the agent knows of each process. It sets the size.
#[map]
static SPACES: HashMap<u32, Space> = HashMap::with_max_entries(1, 0);
/// Their mappings. The agent sets the size.
#[map]
static BLOCKS: Array<Block> = Array::with_max_entries(1, 0);
/// The rules of all tables.
#[map]
static RULE: Array<Rule> = Array::with_max_entries(RULES, 0);
/// Which tables are looked for, there or not, by their positions.
#[map]
static WANTED: Array<[u8; TABLES as usize]> = Array::with_max_entries(1, 0);
/// What a CPU has looked up last, for each slot: the agent has as many as there are sources.
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
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Rules kept by address: as many as a per-CPU value, which has 32 KiB at most, can hold.
const CACHED: usize = 2048;
/// What is kept is looked up again when about a second has passed, so that the agent learns which tables are
/// in use: as a power of two, nanoseconds.
const SECOND_BITS: u32 = 30;
/// Addresses of user space have fewer bits; above goes the second.
const PC_BITS: u32 = 58;

type Cache = [Cached; CACHED];

/// Which rule holds at an address of a process.
#[repr(C)]
struct Cached {
    /// The address, and the second in which it was looked up.
    key: u64,
    /// Zero in one that is not in use.
    generation: u32,
    rule: Quick,
}

/// The state of a walk.
#[repr(C)]
pub(crate) struct Walk {
    /// The frame at hand.
    frame: Registers,
    /// Which of the record's frames is the next, and which is behind the last.
    pub(crate) next: u32,
    behind: u32,
    /// Whether the frame's address is that of a call's return: 0 or 1.
    is_return: u32,
    /// Whether the frame was found by a frame pointer, and has yet to be shown to be one.
    is_guess: u32,
    /// What the agent has not told, where frames may be missing for that: a [`UserEnd`], or 0.
    pub(crate) lacks: u32,
    reserved: u32,
    /// The second of the walk, in the upper bits.
    second: u64,
    pub(crate) space: Space,
    /// Up to where the stack pointer goes until the frame that was left is marked: see [`python`].
    pub(crate) mark_above: u64,
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

/// Begins a walk from these registers on.
#[inline(always)]
pub(crate) fn begin(scratch: &mut Scratch, tgid: u32, registers: Registers, by_tables: bool) {
    let state = &mut scratch.walk;
    state.frame = registers;
    state.is_return = 0;
    state.is_guess = 0;
    state.lacks = 0;
    state.end = UserEnd::Depth as u32;
    state.is_sampled = 1;
    state.window.bytes = 0;
    state.space = Space::default();
    // The time of the last sample on this CPU is near enough.
    state.second = (scratch.header.time_ns >> SECOND_BITS) << PC_BITS;
    if by_tables {
        // SAFETY: the agent replaces a value whole, and the kernel keeps the old one until no program
        // uses it any more, or uses it again for the same process: then this walk finds nothing.
        if let Some(space) = unsafe { SPACES.get(tgid) } {
            state.space = *space;
        }
    }
    state.mark_above = u64::MAX;
}

/// Walks on, and writes addresses to the scratch's frames from `first` on; gives how many there are, and how
/// it has ended.
#[inline(always)]
pub(crate) fn walk<const SLOT: u32>(
    scratch: &mut Scratch,
    first: u32,
    limit: u32,
) -> (u64, UserEnd) {
    scratch.walk.next = first;
    scratch.walk.behind = first + limit;
    // The calls find the scratch in its map: it has to count as given away meanwhile. Nothing of it is
    // used here between, so that theirs is the only reference in use.
    let scratch = black_box(&raw mut *scratch);
    // LLVM must not make copies of the function for each slot: the verifier would inline those.
    let slot = black_box(SLOT);
    // One more than fit, since it is the next that finds no room.
    for _ in 0..=MAX_FRAMES / (FRAMES_A_CALL * CALLS) {
        if walk_on(slot) != 0 {
            break;
        }
    }
    // SAFETY: it is what the caller has given, and no call runs any more.
    let state = unsafe { &(*scratch).walk };
    // LLVM must neither compare another copy of it than is used, nor merge the comparison into one of
    // a sum: the verifier would not see the bound.
    let frames = black_box(u64::from(state.next.wrapping_sub(first)));
    let end = UserEnd::from_wire(state.end as u8).unwrap_or(UserEnd::Depth);
    (black_box(if frames <= u64::from(MAX_FRAMES) { frames } else { 0 }), end)
}

/// How many frames a call of [`walk_frames`] goes up, at most.
const FRAMES_A_CALL: u32 = 4;
/// How many of these calls [`walk_on`] makes.
const CALLS: u32 = 12;

/// Goes up more frames; 1 if the walk has ended. A loop of few turns that has another in it is verified sooner than
/// one of many.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_on(slot: u32) -> u32 {
    for _ in 0..CALLS {
        if walk_frames(slot) != 0 {
            return 1;
        }
    }
    0
}

/// Goes up some frames; 1 if the walk has ended.
///
/// The verifier takes a function with external linkage by itself, once, as a program of its own, however
/// often it is called (Linux 5.6): the whole walk inlined is more than it reads. So it gets nothing but
/// numbers, and what it finds in maps, by the slot. What few frames need has functions of its own for the
/// same reason: here it would be verified once for each frame.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_frames(slot: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(slot) else { return 1 };
    let Some(cache) = CACHE.get_ptr_mut(slot) else { return 1 };
    // SAFETY: both point to this CPU's values of the slot, which `take` keeps for this run of the program.
    let (scratch, cache) = unsafe { (&mut *scratch, &mut *cache) };
    let mut frame = scratch.walk.frame;
    for _ in 0..FRAMES_A_CALL {
        if let Err(end) = up(slot, scratch, cache, &mut frame) {
            let lacks = scratch.walk.lacks;
            scratch.walk.end = if lacks == 0 { end } else { lacks };
            return 1;
        }
        if frame.sp > scratch.walk.mark_above {
            python::mark(scratch, slot);
        }
    }
    scratch.walk.frame = frame;
    0
}

/// Writes the address of the frame, and steps to its caller. Where there is none it gives the [`UserEnd`], as its
/// number.
#[inline(always)]
fn up(
    slot: u32,
    scratch: &mut Scratch,
    cache: &mut Cache,
    frame: &mut Registers,
) -> Result<(), u32> {
    if WALK.load() & by::TABLES == 0 {
        push(scratch, frame)?;
        // What there is beyond a single frame is not asked for, and nothing is to be read for it.
        if FRAME_LIMIT.load() == 1 {
            return Err(UserEnd::Depth as u32);
        }
        return advance(slot, &mut scratch.walk, frame, &const { Rule::of(Cfa::UNKNOWN) });
    }
    let rule = match rule_at(slot, scratch, frame, cache) {
        Ok(rule) => rule,
        // The frame pointer did not lead to code, so this is no frame.
        Err(end) if end == UserEnd::NotMapped as u32 && scratch.walk.is_guess != 0 => {
            return Err(UserEnd::NoUnwindInfo as u32);
        }
        Err(end) => {
            if scratch.walk.lacks == 0 {
                scratch.walk.lacks = end;
            }
            Quick::UNKNOWN
        }
    };
    push(scratch, frame)?;
    let walk = &mut scratch.walk;
    if let Some(number) = rule.number() {
        walk.frame = *frame;
        // The call finds the scratch in its map: it has to count as given away meanwhile.
        let walk = black_box(&raw mut *walk);
        let end = apply_rule(slot, number);
        // SAFETY: it is what the caller has given, and the call has ended.
        *frame = unsafe { (*walk).frame };
        return if end == 0 { Ok(()) } else { Err(end) };
    }
    walk.is_guess = 0;
    let stepped = rule.step::<Native>(frame, &mut stack(slot, walk));
    arrive(walk, stepped, false)
}

/// Steps from the scratch's frame to its caller by any rule of the tables: 0, or the [`UserEnd`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn apply_rule(slot: u32, number: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(slot) else { return UserEnd::Unsupported as u32 };
    // SAFETY: as in `walk_frames`, whose reference is not in use meanwhile.
    let walk = unsafe { &mut (*scratch).walk };
    let Some(rule) = RULE.get(number) else { return UserEnd::Unsupported as u32 };
    let is_guess = rule.cfa == Cfa::UNKNOWN;
    if is_guess && WALK.load() & by::OR_FRAME_POINTERS == 0 {
        return UserEnd::NoUnwindInfo as u32;
    }
    // Where what is mapped is not known, as of a process that has just begun, a guess can't be checked.
    let knows_mappings = walk.lacks != UserEnd::NotMapped as u32;
    walk.is_guess = u32::from(is_guess && knows_mappings);
    let mut frame = walk.frame;
    let advanced = advance(slot, walk, &mut frame, rule);
    walk.frame = frame;
    advanced.err().unwrap_or(0)
}

/// Writes the address of the frame, if there is room.
#[inline(always)]
fn push(scratch: &mut Scratch, frame: &Registers) -> Result<(), u32> {
    let Walk { next, behind, is_return, is_sampled, .. } = scratch.walk;
    if next >= behind {
        return Err(UserEnd::Depth as u32);
    }
    let is_interrupted = is_return == 0 && is_sampled == 0;
    let address = if is_interrupted { frame.pc | INTERRUPTED } else { frame.pc };
    if let Some(place) = scratch.frames.get_mut(next as usize & (FRAMES - 1)) {
        *place = address;
    }
    scratch.walk.next = next + 1;
    Ok(())
}

/// Steps to the caller by this rule.
#[inline(always)]
fn advance(slot: u32, walk: &mut Walk, frame: &mut Registers, rule: &Rule) -> Result<(), u32> {
    let stepped = step::<Native>(rule, frame, &mut stack(slot, walk));
    arrive(walk, stepped, rule.cfa == Cfa::UNKNOWN)
}

#[inline(always)]
fn arrive(walk: &mut Walk, stepped: Result<Caller, Stop>, is_guess: bool) -> Result<(), u32> {
    walk.is_sampled = 0;
    let by_tables = walk.space.generation != 0;
    match stepped {
        Ok(caller) => {
            walk.is_return = u32::from(caller == Caller::Called);
            Ok(())
        }
        Err(stop) => Err(UserEnd::of_stop(stop, is_guess, by_tables) as u32),
    }
}

/// The rule for the frame, or the [`UserEnd`] as its number.
#[inline(always)]
fn rule_at(
    slot: u32,
    scratch: &mut Scratch,
    frame: &Registers,
    cache: &mut Cache,
) -> Result<Quick, u32> {
    let walk = &scratch.walk;
    // The call may be the last instruction of its function.
    let pc = frame.pc.wrapping_sub(u64::from(walk.is_return));
    let (key, generation) = (pc ^ walk.second, walk.space.generation);
    let cached = entry(cache, pc, generation);
    if cached.key == key && cached.generation == generation && generation != 0 {
        return Ok(cached.rule);
    }
    // The call finds both in their maps: they have to count as given away meanwhile.
    black_box((&raw mut *scratch, &raw mut *cache));
    let found = find_rule(slot, pc);
    if found < FAILED { Ok(Quick::from_bits(found as u32)) } else { Err(found as u32) }
}

/// The bit by which [`find_rule`] tells a [`UserEnd`] from a rule.
const FAILED: u64 = 1 << 32;

/// Looks the rule for the address up, and keeps it in the cache: as bits of [`Quick`], or [`FAILED`] and the
/// [`UserEnd`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_rule(slot: u32, pc: u64) -> u64 {
    const NOT_MAPPED: u64 = FAILED | UserEnd::NotMapped as u64;
    let Some(scratch) = SCRATCH.get_ptr_mut(slot) else { return NOT_MAPPED };
    let Some(cache) = CACHE.get_ptr_mut(slot) else { return NOT_MAPPED };
    // SAFETY: as in `walk_frames`, whose references are not in use meanwhile.
    let (walk, cache) = unsafe { (&(*scratch).walk, &mut *cache) };
    let number = match look_up(&walk.space, pc) {
        Ok(number) => number,
        Err(end) => return FAILED | end as u64,
    };
    let Some(rule) = RULE.get(number) else { return FAILED | UserEnd::Unsupported as u64 };
    let rule = Quick::of::<Native>(number, rule);
    let (key, generation) = (pc ^ walk.second, walk.space.generation);
    *entry(cache, pc, generation) = Cached { key, generation, rule };
    u64::from(rule.bits())
}

/// Where the cache has what holds at an address.
#[inline(always)]
fn entry(cache: &mut Cache, pc: u64, generation: u32) -> &mut Cached {
    // The upper bits of a product depend on all bits of its factors.
    let hash = (pc ^ u64::from(generation) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    &mut cache[hash as usize & (CACHED - 1)]
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
    match number {
        NO_TABLE => return Ok(unknown),
        NOT_OPEN => return Err(UserEnd::NotLoaded),
        _ => {}
    }
    let offset = pc.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset);
    let table = Table { number };
    // Also of one that is there, so that the agent knows which are in use.
    if let Some(wanted) = WANTED.get_ptr_mut(0)
        // SAFETY: it points to a map's value; the byte is only ever set here.
        && let Some(wanted) = unsafe { &mut *wanted }.get_mut(number as usize & (TABLES as usize - 1))
    {
        *wanted = 1;
    }
    if table.chunk(0).is_none_or(|head| head.first() == Some(&TAKEN_OUT)) {
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

#[inline(always)]
fn stack(slot: u32, walk: &mut Walk) -> Stack<'_> {
    let is_sampled = walk.is_sampled != 0;
    Stack { slot, window: &mut walk.window, registers: &walk.registers, is_sampled }
}

struct Stack<'a> {
    slot: u32,
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
            // The call finds the window in its map: it has to count as given away meanwhile.
            black_box(&raw mut *self.window);
            if read_window(self.slot, address) == 0 {
                return None;
            }
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

/// Reads the stack from an address on: a window, or what is left of the page. Gives how many bytes.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_window(slot: u32, address: u64) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(slot) else { return 0 };
    // SAFETY: as in `walk_frames`, whose reference is not in use meanwhile.
    let window = unsafe { &mut (*scratch).walk.window };
    window.start = address;
    window.bytes = WINDOW_BYTES;
    let to = (&raw mut window.words).cast::<c_void>();
    // SAFETY: `words` has so many bytes; the helper reads from any address or fails.
    if unsafe { bpf_probe_read_user(to, WINDOW_BYTES as u32, address as *const c_void) } == 0 {
        return WINDOW_BYTES as u32;
    }
    window.bytes = 0;
    let left = PAGE_BYTES - (address & (PAGE_BYTES - 1));
    if left >= WINDOW_BYTES {
        return 0;
    }
    // SAFETY: as above, of fewer bytes.
    if unsafe {
        bpf_probe_read_user(to, left as u32 & (WINDOW_BYTES as u32 - 1), address as *const c_void)
    } != 0
    {
        return 0;
    }
    window.bytes = left;
    left as u32
}
