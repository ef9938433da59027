//! What fires: an event that overflows, or a hit of a tracepoint or probe. The kernel takes a type of program for each,
//! which differ in what they are given, and in what can come in between.

use aya_ebpf::{
    EbpfContext,
    bindings::bpf_user_pt_regs_t,
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    programs::{PerfEventContext, ProbeContext, TracePointContext},
};
use profiler_common::settings::{flag, period_index};

use crate::{PERIODS, Scratch, hits, registers};

/// What the program is given at each run.
pub(crate) trait Context: EbpfContext {
    /// Whether a run can be interrupted by another thread on its CPU, whose run for the same slot comes in between.
    const IS_PREEMPTED: bool;

    /// How many units of the event a sample stands for; `None` if none is due.
    fn stands_for<const SLOT: u32>(&self, scratch: &mut Scratch, flags: u32) -> Option<u64>;

    /// Whether user code was hit.
    fn hit_user(&self, flags: u32) -> bool;

    /// The registers of what was hit, if they may be those of user code.
    fn registers(&self, flags: u32) -> Option<*const bpf_user_pt_regs_t>;
}

impl Context for PerfEventContext {
    // It runs in an interrupt.
    const IS_PREEMPTED: bool = false;

    /// A period, or where the period is moved, what has passed since the last sample. What is far from a period is not
    /// taken for one: then samples were missed, or the event was late and comes soon again.
    #[inline(always)]
    fn stands_for<const SLOT: u32>(&self, scratch: &mut Scratch, flags: u32) -> Option<u64> {
        // SAFETY: the context of a perf event program is a `bpf_perf_event_data`.
        let told = unsafe { (*self.ctx).sample_period };
        if flags & flag::MOVED == 0 {
            return Some(told);
        }
        let period = period::<SLOT>();
        if period == 0 {
            return Some(told);
        }
        // SAFETY: a helper without preconditions.
        let now_ns = unsafe { bpf_ktime_get_ns() };
        let passed = now_ns.wrapping_sub(scratch.fired_ns);
        scratch.fired_ns = now_ns;
        Some(if passed > period / 2 && passed < period + period / 2 { passed } else { period })
    }

    #[inline(always)]
    fn hit_user(&self, _: u32) -> bool {
        // SAFETY: the context of a perf event program is a `bpf_perf_event_data`. Volatile, since the
        // verifier takes no part of a word.
        #[cfg(not(bpf_target_arch = "aarch64"))]
        let mode = unsafe { (&raw const (*self.ctx).regs.cs).read_volatile() };
        // SAFETY: as above.
        #[cfg(bpf_target_arch = "aarch64")]
        let mode = unsafe { (&raw const (*self.ctx).regs.pstate).read_volatile() };
        registers::is_user_mode(mode)
    }

    #[inline(always)]
    fn registers(&self, _: u32) -> Option<*const bpf_user_pt_regs_t> {
        // A `bpf_perf_event_data` begins with them.
        Some(self.ctx.cast())
    }
}

impl Context for TracePointContext {
    // The kernel runs no other program of this type, and no kernel probe's, while it runs one:
    // `bpf_prog_active` in https://github.com/torvalds/linux/blob/v6.12/kernel/trace/bpf_trace.c#L110-L150.
    const IS_PREEMPTED: bool = false;

    #[inline(always)]
    fn stands_for<const SLOT: u32>(&self, scratch: &mut Scratch, flags: u32) -> Option<u64> {
        let period = period::<SLOT>();
        if period == 0 || flags & flag::HIT_FILTER != 0 && !hits::is_wanted::<SLOT>(self, scratch) {
            return None;
        }
        due(scratch, period)
    }

    #[inline(always)]
    fn hit_user(&self, _: u32) -> bool {
        false
    }

    #[inline(always)]
    fn registers(&self, _: u32) -> Option<*const bpf_user_pt_regs_t> {
        None
    }
}

impl Context for ProbeContext {
    // Those in user code, since Linux 6.0.
    const IS_PREEMPTED: bool = true;

    #[inline(always)]
    fn stands_for<const SLOT: u32>(&self, scratch: &mut Scratch, _: u32) -> Option<u64> {
        let period = period::<SLOT>();
        if period == 0 { None } else { due(scratch, period) }
    }

    #[inline(always)]
    fn hit_user(&self, flags: u32) -> bool {
        flags & flag::USER_PROBE != 0
    }

    #[inline(always)]
    fn registers(&self, flags: u32) -> Option<*const bpf_user_pt_regs_t> {
        // The kernel's `pt_regs` begin with what user space is shown of them.
        (flags & flag::USER_PROBE != 0).then_some(self.regs.cast())
    }
}

/// The period of the slot on this CPU, or 0.
#[inline(always)]
fn period<const SLOT: u32>() -> u64 {
    // SAFETY: a helper without preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let Some(period) = PERIODS.get_ptr(period_index(cpu, SLOT)) else { return 0 };
    // SAFETY: it points to a value of the map. Volatile, since the agent writes it meanwhile.
    unsafe { period.read_volatile() }
}

/// Counts a hit; the period, if it is the last of one. Where another thread comes in between, one of the two may not be
/// counted, and the sample comes a hit later.
#[inline(always)]
fn due(scratch: &mut Scratch, period: u64) -> Option<u64> {
    if period == 1 {
        return Some(1);
    }
    let hits = scratch.hits + 1;
    let is_due = hits >= period;
    scratch.hits = if is_due { 0 } else { hits };
    is_due.then_some(period)
}
