//! From a frame to its caller.

use super::rule::{Cfa, Rule, Saved};

/// The registers of a frame that a walk keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// The program counter.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer.
    pub fp: u64,
    /// The link register; zero where there is none, or it is not known.
    pub lr: u64,
}

/// What a machine has of its own.
pub trait Arch {
    /// DWARF's number of the frame pointer.
    const FP: u16;
    /// DWARF's number of the stack pointer.
    const SP: u16;
    /// DWARF's number of the return address: a column of its own, or the link register.
    const RA: u16;
    /// Whether a call pushes the return address.
    const CALL_PUSHES: bool;
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
/// In code without a rule by frame pointers: `(pc, sp, fp) = (*(fp + 8), fp + 16, *fp)`.
#[inline(always)]
pub fn step<A: Arch>(
    rule: &Rule,
    frame: &mut Registers,
    memory: &mut impl Memory,
) -> Result<Caller, Stop> {
    let Registers { pc, sp, fp, lr } = *frame;
    let cfa = match rule.cfa {
        Cfa::SP => add(sp, rule.cfa_offset),
        Cfa::FP => add(fp, rule.cfa_offset),
        Cfa::UNKNOWN => fp.wrapping_add(16),
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
                None => 0,
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
        Saved::SAME if !A::CALL_PUSHES => lr,
        Saved::AT_CFA => {
            let words = if rule.cfa == Cfa::UNKNOWN { -1 } else { rule.ra_words };
            read(memory, add(cfa, bytes(words)))?
        }
        Saved::REGISTER => memory.register(rule.register).ok_or(Stop::Unsupported)?,
        _ => return Err(Stop::Unsupported),
    };
    let pc = A::code_address(return_address);
    *frame = Registers { pc, sp: cfa, fp: saved_fp, lr: 0 };
    // Threads and coroutines start so.
    if pc == 0 { Err(Stop::Complete) } else { Ok(Caller::Called) }
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
