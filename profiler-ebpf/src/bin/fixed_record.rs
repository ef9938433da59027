//! A program in the shape of the libbpf `profile` example, to compare with: it reserves a fixed
//! record of 2 KiB, takes both stacks into it, and submits it with the default wake-up of the
//! reader, once a sample. `cargo xtask bench` loads it; no release embeds it.
#![no_std]
#![no_main]

use aya_ebpf::{
    EbpfContext as _,
    bindings::BPF_F_USER_STACK,
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_current_comm, bpf_get_smp_processor_id, bpf_get_stack},
    },
    macros::{map, perf_event},
    maps::RingBuf,
    programs::PerfEventContext,
};

const FRAMES: usize = 127;

#[repr(C)]
struct Record {
    tgid: u32,
    cpu: u32,
    comm: [u8; 16],
    kernel_bytes: i32,
    user_bytes: i32,
    kernel: [u64; FRAMES],
    user: [u64; FRAMES],
}

#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// Runs when the event overflows.
#[perf_event]
fn sample(ctx: PerfEventContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    if id as u32 == 0 {
        return 0;
    }
    let Some(mut entry) = SAMPLES.reserve::<Record>(0) else { return 0 };
    let record = entry.as_mut_ptr();
    let stack_bytes = (FRAMES * 8) as u32;
    // SAFETY: `record` points to the reserved `Record`, and each helper writes at most the size of
    // the field that it is given.
    unsafe {
        (*record).tgid = (id >> 32) as u32;
        (*record).cpu = bpf_get_smp_processor_id();
        bpf_get_current_comm((&raw mut (*record).comm).cast(), 16);
        (*record).kernel_bytes =
            bpf_get_stack(ctx.as_ptr(), (&raw mut (*record).kernel).cast(), stack_bytes, 0) as i32;
        (*record).user_bytes = bpf_get_stack(
            ctx.as_ptr(),
            (&raw mut (*record).user).cast(),
            stack_bytes,
            u64::from(BPF_F_USER_STACK),
        ) as i32;
    }
    entry.submit(0);
    0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
