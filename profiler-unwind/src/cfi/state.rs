//! Runs call frame instructions, and keeps what they say of a frame.

use std::marker::PhantomData;

use gimli::{
    CallFrameInstruction as Instruction, CallFrameInstructionIter, CommonInformationEntry,
    Register, UnwindExpression, UnwindSection,
};
use profiler_common::unwind::{rule::Rule, step::Arch};

use super::{Bytes, rule::rule};

/// How deep `DW_CFA_remember_state` may nest. Compilers don't nest it.
const MAX_REMEMBERED: usize = 16;

/// Why no rule can express a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The CFA is an expression of a shape of its own.
    CfaExpression,
    /// The CFA is given by a register that can't be named.
    CfaRegister,
    /// The return address is neither below the CFA nor in a register.
    ReturnAddress,
    /// An offset is too large for its field, or that of a saved register is no multiple of eight.
    Offset,
    /// The CFA and the return address are by two different registers, and a rule can name one.
    Registers,
    /// The instructions are malformed from here on.
    Instructions,
}

impl Unsupported {
    /// Each, with the words for it, in the order of [`Counts::unsupported`](super::Counts::unsupported).
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::CfaExpression, "CFA by an expression of an unknown shape"),
        (Self::CfaRegister, "CFA by a register that no frame keeps"),
        (Self::ReturnAddress, "return address in no known place"),
        (Self::Offset, "an offset too large"),
        (Self::Registers, "CFA and return address in two registers"),
        (Self::Instructions, "malformed instructions"),
    ];
}

/// Where the CFA is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Register { register: u16, offset: i64 },
    Expression(UnwindExpression<usize>),
}

/// Where a register was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SavedAt {
    /// Nothing is said of it, which means `Same` of what a callee has to keep.
    Unsaid,
    Same,
    Undefined,
    AtCfa(i64),
    Register(u16),
    Expression(UnwindExpression<usize>),
    Other,
}

/// Where what matters of a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) cfa: Base,
    pub(super) fp: SavedAt,
    pub(super) ra: SavedAt,
}

impl State {
    pub(super) const NOTHING_SAID: Self = Self {
        cfa: Base::Register { register: u16::MAX, offset: 0 },
        fp: SavedAt::Unsaid,
        ra: SavedAt::Unsaid,
    };
}

/// A run of instructions.
pub(super) struct Run<'r, 'a, A> {
    pub(super) state: State,
    /// What `DW_CFA_restore` goes back to; not known to the CIE's own instructions.
    initial: Option<State>,
    remembered: Vec<State>,
    cie: &'r CommonInformationEntry<Bytes<'a>>,
    arch: PhantomData<A>,
}

impl<'r, 'a, A: Arch> Run<'r, 'a, A> {
    /// One that is to make the state in which functions begin.
    pub(super) fn of_cie(cie: &'r CommonInformationEntry<Bytes<'a>>) -> Self {
        let (state, arch) = (State::NOTHING_SAID, PhantomData);
        Self { state, initial: None, remembered: Vec::new(), cie, arch }
    }

    /// One of a function.
    pub(super) fn of_function(cie: &'r CommonInformationEntry<Bytes<'a>>, initial: State) -> Self {
        Self { state: initial, initial: Some(initial), ..Self::of_cie(cie) }
    }

    /// The rule that says what the state says.
    pub(super) fn rule<S: UnwindSection<Bytes<'a>>>(
        &self,
        section: &S,
    ) -> Result<Rule, Unsupported> {
        rule::<S, A>(&self.state, section, self.cie)
    }

    /// Goes on until the state is that up to the next row's address, which is returned, or the end.
    pub(super) fn next_row(
        &mut self,
        instructions: &mut CallFrameInstructionIter<'_, Bytes<'_>>,
        from: u64,
    ) -> Result<Option<u64>, ()> {
        while let Some(instruction) = instructions.next().map_err(drop)? {
            match instruction {
                Instruction::AdvanceLoc { delta } => {
                    let factor = self.cie.code_alignment_factor();
                    let delta = u64::from(delta).checked_mul(factor).ok_or(())?;
                    return from.checked_add(delta).ok_or(()).map(Some);
                }
                Instruction::SetLoc { address } if address >= from => return Ok(Some(address)),
                Instruction::SetLoc { .. } => return Err(()),
                instruction => self.execute(&instruction)?,
            }
        }
        Ok(None)
    }

    fn execute(&mut self, instruction: &Instruction<usize>) -> Result<(), ()> {
        let factor = self.cie.data_alignment_factor();
        match *instruction {
            Instruction::DefCfa { register, offset } => {
                self.state.cfa =
                    Base::Register { register: register.0, offset: offset.cast_signed() };
            }
            Instruction::DefCfaSf { register, factored_offset } => {
                let offset = factored_offset.wrapping_mul(factor);
                self.state.cfa = Base::Register { register: register.0, offset };
            }
            Instruction::DefCfaRegister { register: new } => match &mut self.state.cfa {
                Base::Register { register, .. } => *register = new.0,
                Base::Expression(_) => return Err(()),
            },
            Instruction::DefCfaOffset { offset } => self.set_cfa_offset(offset.cast_signed())?,
            Instruction::DefCfaOffsetSf { factored_offset } => {
                self.set_cfa_offset(factored_offset.wrapping_mul(factor))?;
            }
            Instruction::DefCfaExpression { expression } => {
                self.state.cfa = Base::Expression(expression);
            }
            Instruction::Undefined { register } => self.set(register, SavedAt::Undefined),
            Instruction::SameValue { register } => self.set(register, SavedAt::Same),
            Instruction::Offset { register, factored_offset } => {
                let offset = factored_offset.cast_signed().wrapping_mul(factor);
                self.set(register, SavedAt::AtCfa(offset));
            }
            Instruction::OffsetExtendedSf { register, factored_offset } => {
                self.set(register, SavedAt::AtCfa(factored_offset.wrapping_mul(factor)));
            }
            Instruction::Register { dest_register, src_register } => {
                self.set(dest_register, SavedAt::Register(src_register.0));
            }
            Instruction::Expression { register, expression } => {
                self.set(register, SavedAt::Expression(expression));
            }
            Instruction::ValOffset { register, .. }
            | Instruction::ValOffsetSf { register, .. }
            | Instruction::ValExpression { register, .. } => self.set(register, SavedAt::Other),
            Instruction::Restore { register } => {
                let State { fp, ra, .. } = self.initial.ok_or(())?;
                self.set(register, if register.0 == A::FP { fp } else { ra });
            }
            Instruction::RememberState => {
                if self.remembered.len() == MAX_REMEMBERED {
                    return Err(());
                }
                self.remembered.push(self.state);
            }
            Instruction::RestoreState => self.state = self.remembered.pop().ok_or(())?,
            // A signed return address is known by its upper bits, and the step clears these.
            _ => {}
        }
        Ok(())
    }

    fn set(&mut self, register: Register, place: SavedAt) {
        if register.0 == A::FP {
            self.state.fp = place;
        } else if register == self.cie.return_address_register() {
            self.state.ra = place;
        }
    }

    fn set_cfa_offset(&mut self, new: i64) -> Result<(), ()> {
        match &mut self.state.cfa {
            Base::Register { offset, .. } => *offset = new,
            Base::Expression(_) => return Err(()),
        }
        Ok(())
    }
}
