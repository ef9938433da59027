//! aarch64: a call leaves the return address in the link register, `x30`, which a function saves
//! before it calls others. The frame pointer is `x29`.

use super::step::Arch;

/// The machine.
#[derive(Clone, Copy, Debug)]
pub struct Aarch64;

/// Bits of a user address. Above may be a signature of the return address:
/// <https://docs.kernel.org/arch/arm64/pointer-authentication.html>. Only who asks `mmap` for them gets
/// addresses of more bits.
const ADDRESS: u64 = (1 << 48) - 1;

// Numbers: <https://github.com/ARM-software/abi-aa/blob/main/aadwarf64/aadwarf64.rst>.
//
// When a signal's handler returns, the stack pointer is at a `siginfo` of 128 bytes; the `ucontext`
// behind it has the registers from its byte 184 on (`struct rt_sigframe`):
// <https://github.com/torvalds/linux/blob/v6.12/arch/arm64/kernel/signal.c>,
// <https://github.com/torvalds/linux/blob/v6.12/arch/arm64/include/uapi/asm/ucontext.h>,
// <https://github.com/torvalds/linux/blob/v6.12/arch/arm64/include/uapi/asm/sigcontext.h>.
impl Arch for Aarch64 {
    const FP: u16 = 29;
    const SP: u16 = 31;
    const RA: u16 = 30;
    const REGISTERS: usize = 32;
    const CALL_PUSHES: bool = false;
    const RED_ZONE: usize = 0;
    const SIGNAL_FP: u64 = 128 + 184 + 29 * 8;
    const SIGNAL_SP: u64 = 128 + 184 + 31 * 8;
    const SIGNAL_PC: u64 = 128 + 184 + 32 * 8;
    const SIGNAL_LR: Option<u64> = Some(128 + 184 + 30 * 8);

    #[inline(always)]
    fn code_address(address: u64) -> u64 {
        address & ADDRESS
    }
}
