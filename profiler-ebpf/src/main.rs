//! The profiler's eBPF program: one run a sample, one record a run.
//!
//! It runs in the overflow handler of a perf event, often in NMI context, or at each hit of a tracepoint or probe, so
//! it does little: it fills a record in per-CPU scratch, copies exactly the bytes in use into the ring, and counts what
//! it could not do. What a sample is, and what the counters mean, stands in `profiler-common`.
//!
//! Each source of samples has a slot, and each slot programs of its own: the same code with another constant,
//! so that the verifier knows the slot's settings. Scratch, cache and counters are there for each slot, since the
//! program of one source may interrupt that of another.
#![no_std]
#![no_main]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

mod context;
mod copy;
mod filter;
mod hits;
mod kernel_name;
mod python;
mod registers;
mod walk;

use core::hint::black_box;

use aya_ebpf::{
    Global,
    bindings::{
        BPF_F_USER_STACK, BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP,
        bpf_user_pt_regs_t,
    },
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{
            bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_smp_processor_id,
            bpf_get_stack, bpf_ktime_get_ns, bpf_ringbuf_output, bpf_ringbuf_query,
        },
    },
    macros::{kprobe, map, perf_event, tracepoint},
    maps::{Array, CgroupArray, HashMap, PerCpuArray, RingBuf},
    programs::{PerfEventContext, ProbeContext, TracePointContext},
};
use aya_log_ebpf::{info, warn};
use profiler_common::{
    comm_patterns::States,
    counter::{Counter, Counters},
    hit_filter::{TEXT_BYTES, Tests},
    sample::{
        COMM_LEN, COPY_BYTES, InterpreterEnd, MAX_FRAMES, MAX_INTERPRETER_WORDS, SampleHeader,
        UserEnd,
    },
    settings::{MAX_OWN, MAX_SOURCES, flag, walk as by},
};

use crate::{context::Context, registers::User, walk::Walk};

// Settings, patched by the agent before it loads the object: see `profiler_common::settings`.
#[unsafe(no_mangle)]
static FLAGS: Global<[u32; MAX_SOURCES]> = Global::new([0; MAX_SOURCES]);
#[unsafe(no_mangle)]
static WALK: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FRAME_LIMIT: Global<u32> = Global::new(127);
#[unsafe(no_mangle)]
static TASK_STACK: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_REGISTERS: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static RING_BYTES: Global<u64> = Global::new(4096);
#[unsafe(no_mangle)]
static WAKE_BYTES: Global<u64> = Global::new(1024);
#[unsafe(no_mangle)]
static CGROUP_COUNT: Global<u32> = Global::new(0);

// The agent sets the sizes of SAMPLES, PERIODS and of what filters need, and has as many counters and scratches as
// there are sources.
#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
static PIDS: HashMap<u32, u8> = HashMap::with_max_entries(1, 0);
#[map]
static TIDS: HashMap<u32, u8> = HashMap::with_max_entries(1, 0);
#[map]
static UIDS: HashMap<u32, u8> = HashMap::with_max_entries(1, 0);
/// Patterns of threads' names: see `profiler_common::comm_patterns`.
#[map]
static COMMS: Array<States> = Array::with_max_entries(1, 0);
#[map]
static CGROUPS: CgroupArray = CgroupArray::with_max_entries(1, 0);
/// The profiler's own processes.
#[map]
static OWN: HashMap<u32, u8> = HashMap::with_max_entries(MAX_OWN, 0);
/// The period of each source on each CPU: in ns where the agent moves it, since the kernel goes on to tell the first
/// one, and in hits of tracepoints and probes. Else 0.
#[map]
static PERIODS: Array<u64> = Array::with_max_entries(1, 0);
/// Which hits of a tracepoint count, by slot.
#[map]
static HIT_FILTERS: Array<Tests> = Array::with_max_entries(1, 0);
/// The patterns of these filters, one behind another: see `profiler_common::comm_patterns`.
#[map]
static TEXTS: Array<States> = Array::with_max_entries(1, 0);
#[map]
static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);
#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// Where a CPU builds a source's record: it is too large for the program's 512 bytes of stack.
#[repr(C)]
struct Scratch {
    /// When this CPU last woke the reader.
    woken_ns: u64,
    /// When the event last fired, where its period is moved.
    fired_ns: u64,
    /// Not zero while a run of the program uses this scratch.
    busy: u64,
    /// Hits since the last sample, of tracepoints and probes.
    hits: u64,
    /// The record of a tracepoint's hit, while a filter looks at its fields, and what it has read of it.
    record: u64,
    number: u64,
    text: [u8; TEXT_BYTES],
    walk: Walk,
    /// What was interrupted, or the user registers if that was the kernel.
    regs: bpf_user_pt_regs_t,
    header: SampleHeader,
    frames: [u64; FRAMES],
    /// Room behind the last address for a copy of the stack.
    behind: [u8; COPY_BYTES],
}

/// Words that a record can have: the addresses of both halves of the stack, and what an interpreter runs.
const FRAMES: usize = (2 * MAX_FRAMES + MAX_INTERPRETER_WORDS) as usize;

/// The kernel refuses per-CPU values that are larger.
const _: () = assert!(size_of::<Scratch>() <= 32 << 10);

/// The idle tasks have this id on every CPU.
const IDLE: u32 = 0;

/// A header of zero bytes in the ring that the kernel puts before each record.
const RING_HEADER_BYTES: u64 = 8;
/// While the ring stays above its watermark, a CPU wakes the reader at most this often: the wake-up
/// is a self-interrupt that costs more than the rest of a sample.
const WAKE_INTERVAL_NS: u64 = 1_000_000;

/// The programs of each slot, in the order of `settings::Program`.
macro_rules! programs {
    ($($slot:literal: $sample:ident $sample_walk:ident $tracepoint:ident $tracepoint_walk:ident $probe:ident
       $probe_walk:ident,)*) => {
        $(
            /// Runs when the slot's event overflows. Returns 0, which tells the kernel to write no perf
            /// sample of its own. This one leaves the user stack to the kernel, which walks frame pointers.
            #[perf_event]
            fn $sample(ctx: PerfEventContext) -> u32 {
                take::<_, false, $slot>(&ctx)
            }

            /// The same, for kernels that have what our own walk of the user stack needs.
            #[perf_event]
            fn $sample_walk(ctx: PerfEventContext) -> u32 {
                take::<_, true, $slot>(&ctx)
            }

            /// Runs when one of the slot's tracepoints is hit.
            #[tracepoint]
            fn $tracepoint(ctx: TracePointContext) -> u32 {
                take::<_, false, $slot>(&ctx)
            }

            /// As above.
            #[tracepoint]
            fn $tracepoint_walk(ctx: TracePointContext) -> u32 {
                take::<_, true, $slot>(&ctx)
            }

            /// Runs when the slot's probe is hit, in the kernel or in user code.
            #[kprobe]
            fn $probe(ctx: ProbeContext) -> u32 {
                take::<_, false, $slot>(&ctx)
            }

            /// As above.
            #[kprobe]
            fn $probe_walk(ctx: ProbeContext) -> u32 {
                take::<_, true, $slot>(&ctx)
            }
        )*
        const _: () = assert!(MAX_SOURCES == [$($slot),*].len());
    };
}
programs! {
    0: sample_0 sample_walk_0 tracepoint_0 tp_walk_0 probe_0 probe_walk_0,
    1: sample_1 sample_walk_1 tracepoint_1 tp_walk_1 probe_1 probe_walk_1,
    2: sample_2 sample_walk_2 tracepoint_2 tp_walk_2 probe_2 probe_walk_2,
    3: sample_3 sample_walk_3 tracepoint_3 tp_walk_3 probe_3 probe_walk_3,
}

#[inline(always)]
fn take<C: Context, const WALKS: bool, const SLOT: u32>(ctx: &C) -> u32 {
    let Some(counters) = COUNTERS.get_ptr_mut(SLOT) else { return 0 };
    let Some(scratch) = SCRATCH.get_ptr_mut(SLOT) else { return 0 };
    // SAFETY: both point to this CPU's value of a per-CPU array, which stays where it is while the
    // program runs. Another run of the slot's program on this CPU can come in between only as an
    // interrupt, and then `busy` keeps it away from the scratch; a counter it increments in between
    // can lose that increment, nothing else. Where it can come in between as another thread, both are
    // changed atomically.
    let (counters, scratch) = unsafe { (&mut *counters, &mut *scratch) };
    let flags = flags::<SLOT>();
    let Some(period) = ctx.stands_for::<SLOT>(scratch, flags) else { return 0 };
    count::<C>(counters, Counter::Fired, 1);
    count::<C>(counters, Counter::PeriodSum, period);
    if let Some(max) = counters.get_mut(Counter::PeriodMax as usize)
        && *max < period
    {
        *max = period;
    }

    let id = bpf_get_current_pid_tgid();
    let (tgid, tid) = ((id >> 32) as u32, id as u32);
    if tid == IDLE {
        if flags & flag::IDLE == 0 {
            count::<C>(counters, Counter::FilteredIdle, 1);
            return 0;
        }
        count::<C>(counters, Counter::Idle, 1);
    }
    // SAFETY: the value is not used, so a concurrent update of it does not matter.
    if flags & flag::EXCLUDE_OWN != 0 && unsafe { OWN.get(tgid) }.is_some() {
        count::<C>(counters, Counter::FilteredSelf, 1);
        return 0;
    }
    if let Some(filter) = filter::drops(flags, tgid, tid) {
        count::<C>(counters, filter, 1);
        return 0;
    }
    if flags & flag::KERNEL_ONLY != 0 && ctx.hit_user(flags) {
        count::<C>(counters, Counter::FilteredUserMode, 1);
        return 0;
    }
    if !claim::<C>(scratch) {
        count::<C>(counters, Counter::ScratchBusy, 1);
        warn!(ctx, "sample lost: the scratch is in use, tid {}", tid);
        return 0;
    }
    // SAFETY: a helper without preconditions.
    scratch.header.time_ns = unsafe { bpf_ktime_get_ns() };
    let bytes = record::<C, WALKS, SLOT>(ctx, counters, scratch, flags, tgid, tid, period);
    send(ctx, counters, scratch, bytes);
    // SAFETY: as above.
    let took_ns = unsafe { bpf_ktime_get_ns() }.wrapping_sub(scratch.header.time_ns);
    count::<C>(counters, Counter::RunNs, took_ns);
    release::<C>(scratch);
    0
}

/// Takes the scratch for this run, if no other has it.
#[inline(always)]
fn claim<C: Context>(scratch: &mut Scratch) -> bool {
    if !C::IS_PREEMPTED {
        let is_free = scratch.busy == 0;
        scratch.busy = 1;
        return is_free;
    }
    // Of several that come at once, at most one finds its own mark alone: kernels before Linux 5.12 have no operation
    // that adds and tells what was there.
    add(&mut scratch.busy, 1);
    // SAFETY: it is aligned, and others only ever add to it.
    let is_ours = unsafe { (&raw const scratch.busy).read_volatile() } == 1;
    if !is_ours {
        add(&mut scratch.busy, u64::MAX);
    }
    is_ours
}

/// Gives the scratch back.
#[inline(always)]
fn release<C: Context>(scratch: &mut Scratch) {
    if C::IS_PREEMPTED {
        add(&mut scratch.busy, u64::MAX);
    } else {
        scratch.busy = 0;
    }
}

/// The settings of a slot.
#[inline(always)]
fn flags<const SLOT: u32>() -> u32 {
    let all = (&raw const FLAGS).cast::<u32>();
    // SAFETY: there is a value for each slot. Volatile, since the agent patches it.
    unsafe { all.add(SLOT as usize).read_volatile() }
}

/// Fills the record and returns its size in bytes.
#[inline(always)]
fn record<C: Context, const WALKS: bool, const SLOT: u32>(
    ctx: &C,
    counters: &mut Counters,
    scratch: &mut Scratch,
    flags: u32,
    tgid: u32,
    tid: u32,
    period: u64,
) -> u64 {
    let limit = FRAME_LIMIT.load().min(MAX_FRAMES) * 8;
    let frames = scratch.frames.as_mut_ptr();
    let mut kernel_bytes = 0;
    // User code is called by no frame of the kernel: asking for one would cost more than it looks.
    if flags & flag::KERNEL_STACK != 0 && !ctx.hit_user(flags) {
        kernel_bytes = stack(ctx, frames, limit, 0);
    }
    let (mut user_bytes, mut copy_bytes) = (0, 0);
    let mut user_end = UserEnd::NotCaptured;
    let (mut interpreter_bytes, mut interpreter_end) = (0, InterpreterEnd::None);
    if flags & flag::USER_STACK != 0 {
        let user = if tid == IDLE {
            // Not told by its registers: on aarch64 before Linux 5.11 its stack begins where other
            // tasks have those.
            // https://github.com/torvalds/linux/blob/v5.10/arch/arm64/kernel/head.S
            User::None
        } else if WALKS {
            registers::take(ctx, flags, &mut scratch.regs, &mut scratch.walk.registers)
        } else {
            User::Compat
        };
        match user {
            User::None => user_end = UserEnd::NoUserMemory,
            User::Compat => {
                // SAFETY: `frames` has room for `2 * limit` bytes, and `kernel_bytes <= limit`.
                let user = unsafe { frames.byte_add(kernel_bytes as usize) };
                user_bytes = stack(ctx, user, limit, u64::from(BPF_F_USER_STACK));
                user_end = match user_bytes {
                    0 => UserEnd::NoUserMemory,
                    n if n >= u64::from(limit) => UserEnd::Depth,
                    _ => UserEnd::ChainEnded,
                };
            }
            User::Registers(registers) => {
                let by_tables = WALK.load() & by::TABLES != 0;
                let first = (kernel_bytes / 8) as u32;
                walk::begin(scratch, tgid, registers, by_tables);
                let (words, end) = python::walk::<SLOT>(scratch, first);
                (interpreter_bytes, interpreter_end) = (words * 8, end);
                let first = first + words as u32;
                let (frames, end) = walk::walk::<SLOT>(scratch, first, limit / 8);
                user_bytes = frames * 8;
                user_end = end;
                if by_tables {
                    copy_bytes = copy::copy::<SLOT>(scratch);
                }
            }
        }
    }
    // A task is either in the kernel or has user memory, so one of the two stacks exists. (What the
    // helper returns does not tell "there is none" from "no buffer to walk it".)
    let both = flag::KERNEL_STACK | flag::USER_STACK;
    if flags & both == both && kernel_bytes + user_bytes == 0 {
        count::<C>(counters, Counter::StackFailed, 1);
    }

    let header = &mut scratch.header;
    // SAFETY: helpers without preconditions.
    unsafe {
        header.cgroup_id = bpf_get_current_cgroup_id();
        header.cpu = bpf_get_smp_processor_id();
    }
    header.period = period;
    header.tgid = tgid;
    header.tid = tid;
    header.kernel_frames = (kernel_bytes / 8) as u16;
    header.user_frames = (user_bytes / 8) as u16;
    header.user_end = user_end as u8;
    header.source = SLOT as u8;
    header.copy_bytes = copy_bytes as u16;
    header.interpreter_words = (interpreter_bytes / 8) as u16;
    header.interpreter_end = interpreter_end as u8;
    header.reserved = 0;
    // SAFETY: `comm` is `COMM_LEN` bytes long; the helper fills all of them.
    unsafe { bpf_get_current_comm(header.comm.as_mut_ptr().cast(), COMM_LEN as u32) };
    SampleHeader::BYTES as u64 + kernel_bytes + interpreter_bytes + user_bytes + copy_bytes
}

/// Takes one half of the stack and returns its size in bytes: 0 where there is none.
#[inline(always)]
fn stack<C: Context>(ctx: &C, to: *mut u64, limit: u32, flags: u64) -> u64 {
    // SAFETY: the caller gives a buffer of at least `limit` bytes.
    let bytes = unsafe { bpf_get_stack(ctx.as_ptr(), to.cast(), limit, flags) } as u64;
    // An error is a negative number, and so beyond the bound.
    let bytes = if bytes <= u64::from(MAX_FRAMES) * 8 { bytes } else { 0 };
    // LLVM would merge the comparison with later ones, into one of a sum, of which verifiers before
    // Linux 6.11 learn nothing.
    black_box(bytes)
}

/// Copies the record into the ring, and wakes the reader when much is unread.
#[inline(always)]
fn send<C: Context>(ctx: &C, counters: &mut Counters, scratch: &mut Scratch, bytes: u64) {
    let ring = (&raw const SAMPLES).cast_mut().cast();
    let unread = unread();
    let now_ns = scratch.header.time_ns;
    let mut wake = BPF_RB_NO_WAKEUP;
    if unread + bytes >= WAKE_BYTES.load()
        && now_ns.wrapping_sub(scratch.woken_ns) >= WAKE_INTERVAL_NS
    {
        wake = BPF_RB_FORCE_WAKEUP;
        scratch.woken_ns = now_ns;
    }
    let from = (&raw mut scratch.header).cast();
    // SAFETY: header and frames lie side by side in the scratch, with room behind them, `bytes` is the size
    // of the header and of what was written behind it, and `ring` is a ring buffer map.
    let result = unsafe { bpf_ringbuf_output(ring, from, bytes, u64::from(wake)) };
    if result == 0 {
        count::<C>(counters, Counter::Written, 1);
        info!(ctx, "sample of tid {}, {} bytes", scratch.header.tid, bytes);
    } else if unread + bytes + RING_HEADER_BYTES >= RING_BYTES.load() {
        // One byte always stays free:
        // https://github.com/torvalds/linux/blob/v6.12/kernel/bpf/ringbuf.c#L441-L449
        count::<C>(counters, Counter::RingFull, 1);
        warn!(ctx, "sample lost: the ring is full, tid {}", scratch.header.tid);
    } else {
        count::<C>(counters, Counter::RingContended, 1);
        warn!(ctx, "sample lost: the ring's lock was taken, tid {}", scratch.header.tid);
    }
}

/// Bytes in the ring that the agent has not read.
#[inline(always)]
fn unread() -> u64 {
    let ring = (&raw const SAMPLES).cast_mut().cast();
    // SAFETY: `ring` is a ring buffer map.
    unsafe { bpf_ringbuf_query(ring, u64::from(BPF_RB_AVAIL_DATA)) }
}

#[inline(always)]
fn count<C: Context>(counters: &mut Counters, counter: Counter, n: u64) {
    // `Counters` has an element for each `Counter`.
    if let Some(value) = counters.get_mut(counter as usize) {
        if C::IS_PREEMPTED { add(value, n) } else { *value += n }
    }
}

/// Adds in one step, which other runs on the same CPU can't come in between.
#[inline(always)]
fn add(value: &mut u64, n: u64) {
    #[cfg(target_arch = "bpf")]
    // SAFETY: it is an aligned word that nobody else refers to but by such steps.
    unsafe {
        core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) &raw mut *value, in(reg) n);
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        *value = value.wrapping_add(n);
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
