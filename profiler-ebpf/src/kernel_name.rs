//! The name of the kernel's code at an address, which the agent asks for.
//!
//! The program is attached to nothing. The agent runs it by `BPF_PROG_TEST_RUN` with the address as the
//! first argument, and reads the answer from the map.

use aya_ebpf::{
    helpers::generated::bpf_snprintf,
    macros::{map, raw_tracepoint},
    maps::Array,
    programs::RawTracePointContext,
};
use profiler_common::kernel_name::NAME_BYTES;

/// The answer to the last question: text that ends with a zero, empty if there was none.
#[map]
static KERNEL_NAME: Array<[u8; NAME_BYTES]> = Array::with_max_entries(1, 0);

/// `symbol+0x1d/0x60 [module]`, or the address itself. The helper wants it in a map that nobody can write.
#[unsafe(no_mangle)]
static SYMBOL_FORMAT: [u8; 4] = *b"%pS\0";

/// Writes the name of the address. Needs `bpf_snprintf` (Linux 5.13).
#[raw_tracepoint]
fn kernel_name(ctx: RawTracePointContext) -> i32 {
    let Some(name) = KERNEL_NAME.get_ptr_mut(0) else { return 0 };
    let mut address: u64 = ctx.arg(0);
    let name = name.cast::<u8>();
    // SAFETY: `name` points to `NAME_BYTES` bytes of a map's value. Only the agent runs this, once at a time.
    unsafe {
        name.write(0);
        bpf_snprintf(
            name.cast(),
            NAME_BYTES as u32,
            (&raw const SYMBOL_FORMAT).cast(),
            &raw mut address,
            size_of::<u64>() as u32,
        );
    }
    0
}
