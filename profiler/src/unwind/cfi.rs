//! Call frame information to rows: from an address to another, a rule holds.
//!
//! Of a frame's registers only the CFA, the frame pointer and the return address matter here. The
//! instructions are decoded by gimli, and run here rather than by its `UnwindTable`, which keeps all
//! registers and gives up a whole function where a rule that nobody needs can't be told.
//!
//! What is read is written by others. Every entry is read once for its address and once for its
//! rows, so that time grows with the size of the section only; what refers to other places, as the
//! functions to what they have in common (CIE), has a limit of its own.

use std::{collections::BTreeMap, marker::PhantomData};

use gimli::{
    BaseAddresses, CallFrameInstruction as Instruction, CallFrameInstructionIter,
    CommonInformationEntry, EndianSlice, FrameDescriptionEntry, LittleEndian, Reader as _,
    Register, UnwindExpression, UnwindOffset, UnwindSection,
};
use profiler_common::unwind::{
    rule::{Cfa, Rule, Saved},
    step::Arch,
};

use super::expression::{Shape, shape};

/// The bytes of a section.
pub type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Most different CIEs of a file. Linkers merge equal ones: real files have some dozens.
const MOST_CIES: usize = 1 << 14;
/// Most bytes of a CIE. They overlap in hostile files only, but each of [`MOST_CIES`] is read.
const MOST_CIE_BYTES: usize = 1 << 12;
/// How deep `DW_CFA_remember_state` may nest. Compilers don't nest it.
const MOST_REMEMBERED: usize = 16;

/// A rule and where it holds, in addresses of the ELF image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// The rule.
    pub rule: Rule,
}

/// What one entry (FDE) describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// Where in the section the entry is.
    pub at: u32,
}

/// Why there is no rule that can be applied, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The CFA is an expression of a shape of its own.
    CfaExpression,
    /// The CFA is given by a register that can't be named.
    CfaRegister,
    /// The return address is neither below the CFA nor in a register.
    ReturnAddress,
    /// An offset is too large for its field.
    Offset,
    /// Two registers would have to be named.
    Registers,
    /// The instructions make no sense from here on.
    Instructions,
}

impl Unsupported {
    /// Each, with the words for it, in the order of [`Counts::unsupported`].
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::CfaExpression, "CFA by an expression of an unknown shape"),
        (Self::CfaRegister, "CFA by a register that no frame keeps"),
        (Self::ReturnAddress, "return address in no known place"),
        (Self::Offset, "an offset too large"),
        (Self::Registers, "CFA and return address in two registers"),
        (Self::Instructions, "malformed instructions"),
    ];
}

/// What was met in a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that describe code.
    pub functions: u64,
    /// Entries that can't be read, nor what they describe be told.
    pub malformed: u64,
    /// Rows.
    pub rows: u64,
    /// Rows without a rule that can be applied, by [`Unsupported`].
    pub unsupported: [u64; Unsupported::ALL.len()],
}

/// The entries of a section, for one machine.
#[derive(Debug)]
pub struct Frames<'a, S, A> {
    section: S,
    bytes: Bytes<'a>,
    bases: &'a BaseAddresses,
    ends_at_zero: bool,
    /// By their offset; `None` is a malformed one.
    cies: BTreeMap<usize, Option<Cie<'a>>>,
    counts: Counts,
    arch: PhantomData<A>,
}

/// What functions have in common, and the state that they begin with.
#[derive(Clone, Debug)]
struct Cie<'a> {
    entry: CommonInformationEntry<Bytes<'a>>,
    initial: State,
}

/// An entry, with the state that it begins with.
type Entry<'a> = (Function, State, FrameDescriptionEntry<Bytes<'a>>);

/// Where the CFA is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Register { register: u16, offset: i64 },
    Expression(UnwindExpression<usize>),
}

/// Where a register was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing is said of it, which means `Same` of what a callee has to keep.
    Unsaid,
    Same,
    Undefined,
    AtCfa(i64),
    Register(u16),
    Expression(UnwindExpression<usize>),
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    cfa: Base,
    fp: Place,
    ra: Place,
}

const NOTHING_SAID: State = State {
    cfa: Base::Register { register: u16::MAX, offset: 0 },
    fp: Place::Unsaid,
    ra: Place::Unsaid,
};

impl<'a, S: UnwindSection<Bytes<'a>>, A: Arch> Frames<'a, S, A> {
    /// The entries of a section. `section` is made from the same `bytes`; if it `ends_at_zero`, what
    /// follows an empty entry isn't its.
    pub fn new(section: S, bytes: &'a [u8], bases: &'a BaseAddresses, ends_at_zero: bool) -> Self {
        Self {
            section,
            bytes: EndianSlice::new(bytes, LittleEndian),
            bases,
            ends_at_zero,
            cies: BTreeMap::new(),
            counts: Counts::default(),
            arch: PhantomData,
        }
    }

    /// What was met so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Tells what each entry describes, in the order of the section.
    pub fn functions(&mut self, mut tell: impl FnMut(Function)) {
        let mut input = self.bytes;
        // One after the other by their length, so that one that can't be read costs only itself.
        loop {
            let at = input.offset_from(self.bytes);
            let length = match input.read_initial_length() {
                Ok((0, _)) if self.ends_at_zero => break,
                Ok((length, _)) => length,
                Err(_) => {
                    self.counts.malformed += u64::from(!input.is_empty());
                    break;
                }
            };
            if length == 0 {
                continue;
            }
            if input.skip(length).is_err() {
                self.counts.malformed += 1;
                break;
            }
            match self.function(at) {
                Some(Ok((function, ..))) => {
                    self.counts.functions += 1;
                    tell(function);
                }
                Some(Err(())) => self.counts.malformed += 1,
                None => {}
            }
        }
    }

    /// The entry at an offset, if it is none of a CIE.
    fn function(&mut self, at: usize) -> Option<Result<Entry<'a>, ()>> {
        let Self { section, bases, cies, .. } = self;
        let partial = match section.partial_fde_from_offset(bases, at.into()) {
            Ok(partial) => partial,
            Err(gimli::Error::NotCiePointer(_)) => return None,
            Err(_) => return Some(Err(())),
        };
        let mut initial = NOTHING_SAID;
        let parsed = partial.parse(|section, bases, offset| {
            let cie = cie::<S, A>(cies, section, bases, offset)?;
            initial = cie.initial;
            Ok(cie.entry.clone())
        });
        let Ok(entry) = parsed else { return Some(Err(())) };
        let start = entry.initial_address();
        let Some(end) = start.checked_add(entry.len()) else { return Some(Err(())) };
        let Ok(at) = u32::try_from(at) else { return Some(Err(())) };
        Some(Ok((Function { start, end, at }, initial, entry)))
    }

    /// Tells the rows of the [entry](Function::at) there, in the order of their addresses, without gaps.
    pub fn rows(&mut self, at: u32, mut tell: impl FnMut(Row)) {
        let Ok(at) = usize::try_from(at) else { return };
        let Some(Ok((Function { start, end: function_end, .. }, initial, entry))) =
            self.function(at)
        else {
            return;
        };
        let Self { section, bases, counts, .. } = self;
        let mut row = |start: u64, end: u64, rule: Result<Rule, Unsupported>| {
            let end = end.min(function_end);
            if start >= end {
                return;
            }
            counts.rows += 1;
            let rule = rule.unwrap_or_else(|why| {
                if let Some(count) = counts.unsupported.get_mut(why as usize) {
                    *count += 1;
                }
                Rule::of(Cfa::UNSUPPORTED)
            });
            tell(Row { start, end, rule });
        };
        if entry.is_signal_trampoline() {
            return row(start, function_end, Ok(Rule::of(Cfa::SIGNAL)));
        }
        let mut run = Run::<A> {
            state: initial,
            initial: Some(initial),
            remembered: Vec::new(),
            cie: entry.cie(),
            arch: PhantomData,
        };
        let mut instructions = entry.instructions(section, bases);
        let mut from = start;
        loop {
            match run.to_next_row(&mut instructions, from) {
                Ok(Some(next)) => {
                    if from < next {
                        row(from, next, rule::<S, A>(&run.state, section, run.cie));
                    }
                    from = next;
                }
                Ok(None) => {
                    return row(from, function_end, rule::<S, A>(&run.state, section, run.cie));
                }
                Err(()) => return row(from, function_end, Err(Unsupported::Instructions)),
            }
        }
    }
}

/// The CIE at an offset, read once.
fn cie<'c, 'a, S: UnwindSection<Bytes<'a>>, A: Arch>(
    cies: &'c mut BTreeMap<usize, Option<Cie<'a>>>,
    section: &S,
    bases: &BaseAddresses,
    offset: S::Offset,
) -> gimli::Result<&'c Cie<'a>> {
    let at: usize = UnwindOffset::into(offset);
    let malformed = gimli::Error::NotCieId(at as u64);
    if cies.len() >= MOST_CIES && !cies.contains_key(&at) {
        return Err(malformed);
    }
    let read = || {
        let entry = section.cie_from_offset(bases, offset).ok()?;
        if entry.entry_len() > MOST_CIE_BYTES {
            return None;
        }
        let mut run = Run::<A> {
            state: NOTHING_SAID,
            initial: None,
            remembered: Vec::new(),
            cie: &entry,
            arch: PhantomData,
        };
        let mut instructions = entry.instructions(section, bases);
        while run.to_next_row(&mut instructions, 0).ok()?.is_some() {}
        let initial = run.state;
        Some(Cie { entry, initial })
    };
    cies.entry(at).or_insert_with(read).as_ref().ok_or(malformed)
}

/// A run of instructions.
struct Run<'r, 'a, A> {
    state: State,
    /// What `DW_CFA_restore` goes back to; not known to the CIE's own instructions.
    initial: Option<State>,
    remembered: Vec<State>,
    cie: &'r CommonInformationEntry<Bytes<'a>>,
    arch: PhantomData<A>,
}

impl<A: Arch> Run<'_, '_, A> {
    /// Goes on until the state is that up to the next row's address, which is returned, or the end.
    fn to_next_row(
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
            Instruction::Undefined { register } => self.set(register, Place::Undefined),
            Instruction::SameValue { register } => self.set(register, Place::Same),
            Instruction::Offset { register, factored_offset } => {
                let offset = factored_offset.cast_signed().wrapping_mul(factor);
                self.set(register, Place::AtCfa(offset));
            }
            Instruction::OffsetExtendedSf { register, factored_offset } => {
                self.set(register, Place::AtCfa(factored_offset.wrapping_mul(factor)));
            }
            Instruction::Register { dest_register, src_register } => {
                self.set(dest_register, Place::Register(src_register.0));
            }
            Instruction::Expression { register, expression } => {
                self.set(register, Place::Expression(expression));
            }
            Instruction::ValOffset { register, .. }
            | Instruction::ValOffsetSf { register, .. }
            | Instruction::ValExpression { register, .. } => self.set(register, Place::Other),
            Instruction::Restore { register } => {
                let State { fp, ra, .. } = self.initial.ok_or(())?;
                self.set(register, if register.0 == A::FP { fp } else { ra });
            }
            Instruction::RememberState => {
                if self.remembered.len() == MOST_REMEMBERED {
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

    fn set(&mut self, register: Register, place: Place) {
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

/// The rule that says what a state says.
fn rule<'a, S: UnwindSection<Bytes<'a>>, A: Arch>(
    state: &State,
    section: &S,
    cie: &CommonInformationEntry<Bytes<'a>>,
) -> Result<Rule, Unsupported> {
    if state.ra == Place::Undefined {
        return Ok(Rule::of(Cfa::END));
    }
    let shape_of =
        |expression: UnwindExpression<usize>| shape(expression.get(section).ok()?, cie.encoding());
    let narrow = |offset: i64| i16::try_from(offset).map_err(|_| Unsupported::Offset);
    let wide = |offset: i64| i32::try_from(offset).map_err(|_| Unsupported::Offset);

    let cfa = match state.cfa {
        Base::Register { register, offset } => Shape::Register { register, offset },
        Base::Expression(expression) => shape_of(expression).ok_or(Unsupported::CfaExpression)?,
    };
    let mut rule = Rule::default();
    match cfa {
        Shape::Register { register, offset } => {
            rule.cfa_offset = wide(offset)?;
            rule.cfa = if register == A::SP {
                Cfa::SP
            } else if register == A::FP {
                Cfa::FP
            } else {
                rule.register = named::<A>(register).ok_or(Unsupported::CfaRegister)?;
                Cfa::REGISTER
            };
        }
        Shape::AtRegister { register, offset, addend } => {
            rule.cfa = match register {
                _ if register == A::SP => Cfa::AT_SP,
                _ if register == A::FP => Cfa::AT_FP,
                _ => return Err(Unsupported::CfaExpression),
            };
            rule.cfa_offset = wide(offset)?;
            rule.cfa_addend = narrow(addend.cast_signed())?;
        }
        Shape::Plt { register, pc_register, from } => {
            if !A::CALL_PUSHES || register != A::SP || pc_register != A::RA {
                return Err(Unsupported::CfaExpression);
            }
            rule.cfa = Cfa::PLT;
            rule.register = u8::try_from(from).map_err(|_| Unsupported::CfaExpression)?;
        }
    }

    rule.fp = match state.fp {
        Place::Unsaid | Place::Same => Saved::SAME,
        Place::AtCfa(offset) => {
            rule.fp_offset = narrow(offset)?;
            Saved::AT_CFA
        }
        Place::Expression(expression) => match shape_of(expression) {
            Some(Shape::Register { register, offset }) if register == A::FP => {
                rule.fp_offset = narrow(offset)?;
                Saved::AT_FP
            }
            Some(Shape::Register { register, offset }) if register == A::SP => {
                rule.fp_offset = narrow(offset)?;
                Saved::AT_SP
            }
            _ => Saved::LOST,
        },
        Place::Undefined | Place::Register(_) | Place::Other => Saved::LOST,
    };

    let column = cie.return_address_register().0;
    let in_register = match state.ra {
        Place::AtCfa(offset) => {
            rule.ra_offset = narrow(offset)?;
            rule.ra = Saved::AT_CFA;
            return Ok(rule);
        }
        Place::Register(register) => register,
        Place::Unsaid | Place::Same if !A::CALL_PUSHES => column,
        _ => return Err(Unsupported::ReturnAddress),
    };
    if in_register == A::RA && !A::CALL_PUSHES {
        rule.ra = Saved::SAME;
        return Ok(rule);
    }
    let register = named::<A>(in_register).ok_or(Unsupported::ReturnAddress)?;
    if matches!(rule.cfa, Cfa::REGISTER | Cfa::PLT) && rule.register != register {
        return Err(Unsupported::Registers);
    }
    rule.register = register;
    rule.ra = Saved::REGISTER;
    Ok(rule)
}

/// A general register that a rule can name: neither one that a walk keeps, nor a vector.
fn named<A: Arch>(register: u16) -> Option<u8> {
    let general = if A::CALL_PUSHES { 0..16 } else { 0..31 };
    u8::try_from(register).ok().filter(|_| general.contains(&register))
}
