//! The user registers of the sampled task.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::bpf_user_pt_regs_t,
    helpers::generated::{
        bpf_get_current_task, bpf_get_current_task_btf, bpf_probe_read_kernel, bpf_task_pt_regs,
    },
};
use profiler_common::unwind::{
    Native,
    step::{Arch as _, Registers},
};

use crate::{TASK_REGISTERS, TASK_STACK, context::Context};

/// Registers that a rule can name, by DWARF's numbers from 0 on.
pub(crate) const COUNT: usize = Native::REGISTERS;

/// What the task has in user space.
pub(crate) enum User {
    /// Nothing: it is a thread of the kernel.
    None,
    /// A program of 32 bits.
    Compat,
    /// These registers.
    Registers(Registers),
}

/// Takes the registers, into `all` by their numbers: from the sample, if it hit user code, else those
/// that the task had when it entered the kernel.
#[inline(always)]
pub(crate) fn take<C: Context>(
    ctx: &C,
    flags: u32,
    regs: &mut bpf_user_pt_regs_t,
    all: &mut [u64; COUNT],
) -> User {
    if let Some(hit) = ctx.registers(flags) {
        // SAFETY: these are registers, made of words.
        unsafe { copy_words(hit.cast(), (&raw mut *regs).cast()) };
        if is_user(regs) {
            return split(regs, all);
        }
    }
    let Some(entered) = entered() else { return User::None };
    // SAFETY: `regs` has the size given. The kernel's `pt_regs` begin with what user space is shown of
    // them.
    let result = unsafe {
        let bytes = size_of::<bpf_user_pt_regs_t>() as u32;
        bpf_probe_read_kernel((&raw mut *regs).cast(), bytes, entered)
    };
    // Threads of the kernel have zeros there, or the mode of the kernel.
    if result != 0 || !is_user(regs) { User::None } else { split(regs, all) }
}

/// Where the registers are with which the task entered the kernel.
#[inline(always)]
fn entered() -> Option<*const c_void> {
    let stack = TASK_STACK.load();
    if stack == 0 {
        // SAFETY: helpers without preconditions (Linux 5.15).
        return Some(unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as *const c_void);
    }
    let mut start = 0_u64;
    // SAFETY: `start` has the size given, and the helper reads from any address or fails.
    let result = unsafe {
        let at = bpf_get_current_task().wrapping_add(u64::from(stack));
        bpf_probe_read_kernel((&raw mut start).cast(), 8, at as *const c_void)
    };
    (result == 0).then(|| start.wrapping_add(u64::from(TASK_REGISTERS.load())) as *const c_void)
}

/// Copies words at fixed places, one by one: the verifier takes no others of a context. Volatile, or
/// LLVM would make a loop of it.
macro_rules! copy_words {
    ($($at:literal)*) => {
        #[inline(always)]
        unsafe fn copy_words(from: *const u64, to: *mut u64) {
            // SAFETY: the caller gives as many words as `bpf_user_pt_regs_t` has.
            unsafe { $(to.add($at).write_volatile(from.add($at).read_volatile());)* }
        }
        const _: () = assert!(size_of::<bpf_user_pt_regs_t>() == 8 * [$($at),*].len());
    };
}

#[cfg(not(bpf_target_arch = "aarch64"))]
copy_words!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20);
#[cfg(bpf_target_arch = "aarch64")]
copy_words!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33);

#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn is_user(regs: &bpf_user_pt_regs_t) -> bool {
    is_user_mode(regs.cs)
}

/// By the code segment's privilege level.
#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn is_user_mode(cs: u64) -> bool {
    cs & 3 == 3
}

#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn split(regs: &bpf_user_pt_regs_t, all: &mut [u64; COUNT]) -> User {
    /// `__USER32_CS`, of programs of 32 bits:
    /// <https://github.com/torvalds/linux/blob/v6.12/arch/x86/include/asm/segment.h>.
    const USER32_CS: u64 = 0x23;
    /// A call pushes the return address here.
    const NO_LINK: u64 = profiler_common::unwind::step::NO_LINK;
    if regs.cs == USER32_CS {
        return User::Compat;
    }
    *all = [
        regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp, regs.r8,
        regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ];
    User::Registers(Registers { pc: regs.rip, sp: regs.rsp, fp: regs.rbp, lr: NO_LINK })
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn is_user(regs: &bpf_user_pt_regs_t) -> bool {
    is_user_mode(regs.pstate) && regs.pc != 0
}

/// By the exception level: <https://github.com/torvalds/linux/blob/v6.12/arch/arm64/include/uapi/asm/ptrace.h>.
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn is_user_mode(pstate: u64) -> bool {
    const MODE: u64 = 0xf;
    pstate & MODE == 0
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn split(regs: &bpf_user_pt_regs_t, all: &mut [u64; COUNT]) -> User {
    const MODE32: u64 = 0x10;
    if regs.pstate & MODE32 != 0 {
        return User::Compat;
    }
    let [.., fp, lr] = regs.regs;
    let (numbered, last) = all.split_at_mut(COUNT - 1);
    numbered.copy_from_slice(&regs.regs);
    last.copy_from_slice(&[regs.sp]);
    User::Registers(Registers { pc: regs.pc, sp: regs.sp, fp, lr })
}
