//! x86-64: a call pushes the return address, right below the CFA.

use super::step::Arch;

/// The machine.
#[derive(Clone, Copy, Debug)]
pub struct X86_64;

// Numbers: <https://gitlab.com/x86-psABIs/x86-64-ABI>, "DWARF Register Number Mapping"; there also the red
// zone, "The Stack Frame".
//
// When a signal's handler returns, the stack pointer is at the `ucontext`, with the registers from its
// byte 40 on: <https://github.com/torvalds/linux/blob/v6.12/include/uapi/asm-generic/ucontext.h>,
// <https://github.com/torvalds/linux/blob/v6.12/arch/x86/include/uapi/asm/sigcontext.h>.
impl Arch for X86_64 {
    const FP: u16 = 6;
    const SP: u16 = 7;
    const RA: u16 = 16;
    const REGISTERS: usize = 16;
    const CALL_PUSHES: bool = true;
    const RED_ZONE: usize = 128;
    const SIGNAL_FP: u64 = 40 + 10 * 8;
    const SIGNAL_SP: u64 = 40 + 15 * 8;
    const SIGNAL_PC: u64 = 40 + 16 * 8;
    const SIGNAL_LR: Option<u64> = None;

    #[inline(always)]
    fn code_address(address: u64) -> u64 {
        address
    }
}
