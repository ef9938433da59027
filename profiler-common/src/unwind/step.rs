//! From a frame to its caller.

use super::rule::{Cfa, Rule, Saved};

/// The registers of a frame that a walk keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// The program counter.
    pub pc: u64,
    /// The stack pointer, and [`UNSURE`].
    pub sp: u64,
    /// The frame pointer.
    pub fp: u64,
    /// The link register; [`NO_LINK`] where there is none, or it is not known.
    pub lr: u64,
}

/// Set in a stack pointer, where a call does not push, that was found by a frame pointer, or from
/// there on: it is at least that. A frame record is anywhere in its frame, not right below the CFA.
pub const UNSURE: u64 = 1;

/// In the link register of a caller: a call changes it. No instruction is at such an address.
pub const NO_LINK: u64 = 1;

/// What a machine has of its own.
pub trait Arch {
    /// DWARF's number of the frame pointer.
    const FP: u16;
    /// DWARF's number of the stack pointer.
    const SP: u16;
    /// DWARF's number of the return address: a column of its own, or the link register.
    const RA: u16;
    /// Registers that a rule can name, by DWARF's numbers from 0 on.
    const REGISTERS: usize;
    /// Whether a call pushes the return address.
    const CALL_PUSHES: bool;
    /// Bytes below the stack pointer that a function may use, and what it has just taken off the stack is
    /// still there: gcc says so of the registers that an epilogue has restored.
    const RED_ZONE: usize;
    /// Where, from the stack pointer of a signal's frame, the interrupted frame pointer is.
    const SIGNAL_FP: u64;
    /// The same of the stack pointer.
    const SIGNAL_SP: u64;
    /// The same of the program counter.
    const SIGNAL_PC: u64;
    /// The same of the link register.
    const SIGNAL_LR: Option<u64>;

    /// A return address without what the machine keeps in its upper bits.
    fn code_address(address: u64) -> u64;
}

/// What a step can read.
pub trait Memory {
    /// Eight bytes of the stack; `None` if they can't be read, or the address is no multiple of eight.
    fn word(&mut self, address: u64) -> Option<u64>;
    /// A register of the interrupted frame, by DWARF's number; `None` in its callers, since a call
    /// changes registers.
    fn register(&self, number: u8) -> Option<u64>;
}

/// How a step came to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// It called: its address is the one behind the call.
    Called,
    /// A signal came in between: its address is that of the next instruction.
    Interrupted,
}

/// Why there is no step to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was the outermost frame.
    Complete,
    /// The stack can't be read there.
    Unreadable,
    /// The rule is of a kind that can't be applied.
    Unsupported,
}

/// Goes to the caller: `(pc, sp, fp) = (*ra, cfa, *saved fp)`.
///
/// In code without a rule by frame pointers: `(pc, sp, fp) = (*(fp + 8), fp + 16, *fp)`. Where the stack
/// pointer is [`UNSURE`] for that, a rule that saves both in a frame record finds it again:
/// `cfa = fp - record`.
#[inline(always)]
pub fn step<A: Arch>(
    rule: &Rule,
    frame: &mut Registers,
    memory: &mut impl Memory,
) -> Result<Caller, Stop> {
    let Registers { pc, sp, fp, lr } = *frame;
    let mut is_unsure = !A::CALL_PUSHES && sp & UNSURE != 0;
    let sp = if A::CALL_PUSHES { sp } else { sp & !UNSURE };
    let cfa = match rule.cfa {
        Cfa::SP if is_unsure && has_record(rule) => {
            let by_record = add(fp, -bytes(rule.fp_words));
            let at_least = add(sp, rule.cfa_offset);
            // One below is of a frame further in: this function keeps another value in the register.
            is_unsure = by_record < at_least;
            if is_unsure { at_least } else { by_record }
        }
        Cfa::SP => add(sp, rule.cfa_offset),
        Cfa::FP => add(fp, rule.cfa_offset),
        Cfa::UNKNOWN => {
            is_unsure = !A::CALL_PUSHES;
            fp.wrapping_add(16)
        }
        Cfa::AT_SP | Cfa::AT_FP => {
            let base = if rule.cfa == Cfa::AT_SP { sp } else { fp };
            add(read(memory, add(base, rule.cfa_offset))?, rule.cfa_addend.into())
        }
        Cfa::REGISTER => {
            add(memory.register(rule.register).ok_or(Stop::Unsupported)?, rule.cfa_offset)
        }
        Cfa::PLT => sp.wrapping_add(if pc & 15 >= u64::from(rule.register) { 16 } else { 8 }),
        Cfa::SIGNAL => {
            let saved_fp = read(memory, sp.wrapping_add(A::SIGNAL_FP))?;
            let lr = match A::SIGNAL_LR {
                Some(at) => read(memory, sp.wrapping_add(at))?,
                None => NO_LINK,
            };
            let saved_sp = read(memory, sp.wrapping_add(A::SIGNAL_SP))?;
            let pc = read(memory, sp.wrapping_add(A::SIGNAL_PC))?;
            *frame = Registers { pc, sp: saved_sp, fp: saved_fp, lr };
            return Ok(Caller::Interrupted);
        }
        Cfa::END => return Err(Stop::Complete),
        _ => return Err(Stop::Unsupported),
    };
    // A caller's frame lies above: what does not would be walked for ever. Where a function has taken
    // the return address off the stack, as glibc's vfork does, the frame is empty; only the interrupted
    // one can be so, since others have no registers.
    if cfa < sp || (A::CALL_PUSHES && cfa == sp && rule.ra != Saved::REGISTER) {
        return Err(Stop::Unreadable);
    }
    let (ra, saved_fp) = if rule.cfa == Cfa::UNKNOWN {
        (Saved::AT_CFA, read(memory, fp)?)
    } else {
        // Before the return address, which mostly lies above: a stack is read upwards.
        let saved_fp = match rule.fp {
            Saved::SAME => fp,
            Saved::AT_CFA => read(memory, add(cfa, bytes(rule.fp_words)))?,
            Saved::AT_FP => read(memory, add(fp, bytes(rule.fp_words)))?,
            Saved::AT_SP => read(memory, add(sp, bytes(rule.fp_words)))?,
            // Should a caller need it, there is nothing to read at zero.
            _ => 0,
        };
        (rule.ra, saved_fp)
    };
    let return_address = match ra {
        Saved::SAME if !A::CALL_PUSHES && lr != NO_LINK => lr,
        Saved::AT_CFA => {
            let words = if rule.cfa == Cfa::UNKNOWN { -1 } else { rule.ra_words };
            read(memory, add(cfa, bytes(words)))?
        }
        Saved::REGISTER => memory.register(rule.register).ok_or(Stop::Unsupported)?,
        _ => return Err(Stop::Unsupported),
    };
    let pc = A::code_address(return_address);
    // Only one by the stack pointer is as unsure as that.
    let is_unsure = is_unsure && matches!(rule.cfa, Cfa::SP | Cfa::AT_SP | Cfa::UNKNOWN);
    let sp = if is_unsure { cfa | UNSURE } else { cfa };
    *frame = Registers { pc, sp, fp: saved_fp, lr: NO_LINK };
    // Threads and coroutines start so.
    if pc == 0 { Err(Stop::Complete) } else { Ok(Caller::Called) }
}

/// Whether the function saves the caller's frame pointer and, above it, the return address: a record,
/// which its own frame pointer leads to once it calls.
#[inline(always)]
fn has_record(rule: &Rule) -> bool {
    rule.fp == Saved::AT_CFA
        && rule.ra == Saved::AT_CFA
        && bytes(rule.ra_words) == bytes(rule.fp_words) + 8
}

#[inline(always)]
fn bytes(words: i16) -> i32 {
    i32::from(words) * 8
}

#[inline(always)]
fn add(address: u64, offset: i32) -> u64 {
    address.wrapping_add(i64::from(offset).cast_unsigned())
}

#[inline(always)]
fn read(memory: &mut impl Memory, address: u64) -> Result<u64, Stop> {
    memory.word(address).ok_or(Stop::Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::{aarch64::Aarch64, x86_64::X86_64};

    /// Where the stack begins.
    const STACK: u64 = 0x7ff0_0000;

    struct Words<'a>(&'a [(u64, u64)]);

    impl Memory for Words<'_> {
        /// By offsets from the begin of the stack.
        fn word(&mut self, address: u64) -> Option<u64> {
            self.0.iter().find(|(at, _)| STACK + at == address).map(|(_, value)| *value)
        }

        fn register(&self, _: u8) -> Option<u64> {
            None
        }
    }

    /// `stp x29, x30, [sp, #-n]!`, by the stack pointer, as gcc describes it.
    fn record_below(bytes: i16) -> Rule {
        let words = bytes / 8;
        Rule {
            fp: Saved::AT_CFA,
            ra: Saved::AT_CFA,
            cfa_offset: bytes.into(),
            fp_words: -words,
            ra_words: 1 - words,
            ..Rule::of(Cfa::SP)
        }
    }

    const BY_FRAME_POINTER: Rule = Rule::of(Cfa::UNKNOWN);

    #[test]
    fn a_frame_record_may_be_anywhere_in_its_frame() {
        // A frame of 64 bytes with its record at the bottom, below one of 48 bytes, and what that
        // returns to; between the two the stack says other things.
        let stack = [
            (0, STACK + 64),
            (8, 0x1001),
            (24, 0xbad),
            (64, STACK + 112),
            (72, 0x2001),
            (112, STACK + 200),
        ];
        let mut memory = Words(&stack);
        let mut frame = Registers { pc: 1, sp: STACK, fp: STACK, lr: NO_LINK };
        assert_eq!(step::<Aarch64>(&BY_FRAME_POINTER, &mut frame, &mut memory), Ok(Caller::Called));
        let unsure =
            Registers { pc: 0x1001, sp: (STACK + 16) | UNSURE, fp: STACK + 64, lr: NO_LINK };
        assert_eq!(frame, unsure);
        assert_eq!(step::<Aarch64>(&record_below(48), &mut frame, &mut memory), Ok(Caller::Called));
        let sure = Registers { pc: 0x2001, sp: STACK + 112, fp: STACK + 112, lr: NO_LINK };
        assert_eq!(frame, sure);
        // A rule by the frame pointer needs no stack pointer.
        let rule = Rule { cfa: Cfa::FP, ..record_below(48) };
        frame = unsure;
        assert_eq!(step::<Aarch64>(&rule, &mut frame, &mut memory), Ok(Caller::Called));
        assert_eq!(frame, sure);
    }

    #[test]
    fn without_a_record_the_stack_pointer_is_taken_to_be_behind_the_last_one() {
        // The record is at the top of its frame, as in code made at run time. Of the callers one saves
        // the return address only, the other the frame pointer too, of which it has made something else.
        let stack = [(32, 0x77), (40, 0x1001), (48, 0x2001), (64, 0x88), (72, 0x3001)];
        let mut memory = Words(&stack);
        let mut frame = Registers { pc: 1, sp: STACK, fp: STACK + 32, lr: NO_LINK };
        let mut go = |rule: &Rule, pc| {
            assert_eq!(step::<Aarch64>(rule, &mut frame, &mut memory), Ok(Caller::Called));
            assert_eq!(frame.pc, pc);
            frame
        };
        go(&BY_FRAME_POINTER, 0x1001);
        let rule = Rule { ra: Saved::AT_CFA, cfa_offset: 16, ra_words: -2, ..Rule::of(Cfa::SP) };
        let frame = go(&rule, 0x2001);
        assert_eq!(
            frame,
            Registers { pc: 0x2001, sp: (STACK + 64) | UNSURE, fp: 0x77, lr: NO_LINK }
        );
        let frame = go(&record_below(16), 0x3001);
        assert_eq!(
            frame,
            Registers { pc: 0x3001, sp: (STACK + 80) | UNSURE, fp: 0x88, lr: NO_LINK }
        );
    }

    #[test]
    fn what_a_call_has_changed_is_no_end() {
        // Code that calls without a word of where it has saved the return address.
        let stack = [(0, STACK + 64), (8, 0x1001)];
        let mut frame = Registers { pc: 1, sp: STACK, fp: STACK, lr: 0x77 };
        let mut go = |rule: &Rule| step::<Aarch64>(rule, &mut frame, &mut Words(&stack));
        assert_eq!(go(&record_below(16)), Ok(Caller::Called));
        assert_eq!(go(&Rule::of(Cfa::SP)), Err(Stop::Unsupported));
        // The entry of a thread has zero there, until it calls.
        frame = Registers { pc: 1, sp: STACK, fp: 0, lr: 0 };
        let end = step::<Aarch64>(&Rule::of(Cfa::SP), &mut frame, &mut Words(&stack));
        assert_eq!(end, Err(Stop::Complete));
    }

    #[test]
    fn the_signature_of_a_return_address_is_taken_off() {
        const SIGNED: u64 = 0xffac_0000_0000_1001;
        let caller = |rule: &Rule, lr| {
            let mut frame = Registers { pc: 1, sp: STACK, fp: STACK, lr };
            let stack = [(0, STACK + 32), (8, SIGNED)];
            assert_eq!(
                step::<Aarch64>(rule, &mut frame, &mut Words(&stack)),
                Ok(Caller::Called),
                "{rule:?}"
            );
            frame.pc
        };
        assert_eq!(caller(&Rule::of(Cfa::SP), SIGNED), 0x1001);
        assert_eq!(caller(&record_below(16), 0), 0x1001);
        assert_eq!(caller(&BY_FRAME_POINTER, 0), 0x1001);
    }

    #[test]
    fn what_a_signal_interrupted_is_where_the_kernel_put_it() {
        // siginfo, and of the ucontext: flags, link, stack, mask, and the fault's address, aligned
        let registers = 128 + 8 + 8 + 24 + 128 + 8 + 8;
        let stack = [
            (registers + 29 * 8, STACK + 0x3000),
            (registers + 30 * 8, 0x1001),
            (registers + 31 * 8, STACK + 0x2000),
            (registers + 32 * 8, 0x5000),
        ];
        let mut frame = Registers { pc: 1, sp: STACK, fp: 0, lr: NO_LINK };
        let rule = Rule::of(Cfa::SIGNAL);
        let found = step::<Aarch64>(&rule, &mut frame, &mut Words(&stack));
        assert_eq!(found, Ok(Caller::Interrupted));
        let interrupted =
            Registers { pc: 0x5000, sp: STACK + 0x2000, fp: STACK + 0x3000, lr: 0x1001 };
        assert_eq!(frame, interrupted);
    }

    #[test]
    fn where_calls_push_a_record_is_at_the_top_of_its_frame() {
        let stack = [(0, STACK + 0x40), (8, 0x1001)];
        let mut frame = Registers { pc: 1, sp: STACK - 8, fp: STACK, lr: NO_LINK };
        let found = step::<X86_64>(&BY_FRAME_POINTER, &mut frame, &mut Words(&stack));
        assert_eq!(found, Ok(Caller::Called));
        assert_eq!(frame, Registers { pc: 0x1001, sp: STACK + 16, fp: STACK + 0x40, lr: NO_LINK });
    }
}
