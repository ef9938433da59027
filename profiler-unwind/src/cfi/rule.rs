//! The rule for a frame: where a walk finds the caller's registers.

use gimli::{CommonInformationEntry, UnwindExpression, UnwindSection};
use profiler_common::unwind::{
    rule::{Cfa, Rule, Saved},
    step::Arch,
};

use super::{
    Bytes,
    expression::{Shape, shape},
    state::{Base, SavedAt, State, Unsupported},
};

/// The rule for a frame in this state.
pub(super) fn rule<'a, S: UnwindSection<Bytes<'a>>, A: Arch>(
    state: &State,
    section: &S,
    cie: &CommonInformationEntry<Bytes<'a>>,
) -> Result<Rule, Unsupported> {
    let shape_of =
        |expression: UnwindExpression<usize>| shape(expression.get(section).ok()?, cie.encoding());
    // The augmentation `S` says less: OCaml has it for frames of its own.
    let of_signal = Shape::Register { register: A::SP, offset: A::SIGNAL_PC.cast_signed() };
    match state.ra {
        SavedAt::Undefined => return Ok(Rule::of(Cfa::END)),
        SavedAt::Expression(it) if shape_of(it) == Some(of_signal) => {
            return Ok(Rule::of(Cfa::SIGNAL));
        }
        _ => {}
    }
    let words = |offset: i64| {
        let words = if offset % 8 == 0 { i16::try_from(offset / 8).ok() } else { None };
        words.ok_or(Unsupported::Offset)
    };
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
            rule.cfa_addend =
                i16::try_from(addend.cast_signed()).map_err(|_| Unsupported::Offset)?;
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
        SavedAt::Unsaid | SavedAt::Same => Saved::SAME,
        SavedAt::AtCfa(offset) => {
            rule.fp_words = words(offset)?;
            Saved::AT_CFA
        }
        SavedAt::Expression(expression) => match shape_of(expression) {
            Some(Shape::Register { register, offset }) if register == A::FP => {
                rule.fp_words = words(offset)?;
                Saved::AT_FP
            }
            Some(Shape::Register { register, offset }) if register == A::SP => {
                rule.fp_words = words(offset)?;
                Saved::AT_SP
            }
            _ => Saved::LOST,
        },
        SavedAt::Undefined | SavedAt::Register(_) | SavedAt::Other => Saved::LOST,
    };

    let column = cie.return_address_register().0;
    let in_register = match state.ra {
        SavedAt::AtCfa(offset) => {
            rule.ra_words = words(offset)?;
            rule.ra = Saved::AT_CFA;
            return Ok(rule);
        }
        SavedAt::Register(register) => register,
        SavedAt::Unsaid | SavedAt::Same if !A::CALL_PUSHES => column,
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
