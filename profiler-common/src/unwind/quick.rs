//! The rules of most frames, in one word: the CFA is so far from the stack pointer, and what was saved
//! lies below it.
//!
//! | bits | |
//! |---|---|
//! | 31 | set |
//! | 20 to 29 | words from the stack pointer to the CFA |
//! | 10 to 19 | words from where the frame pointer was saved to the CFA; 0 if it still has its value |
//! | 0 to 9 | the same of the return address; 0 if it is in the link register |

use super::{
    rule::{Cfa, Rule, Saved},
    step::{Arch, Caller, Memory, NO_LINK, Registers, Stop, UNSURE, step},
    table,
};

/// Such a rule, or the number of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Quick(u32);

const QUICK: u32 = 1 << 31;
/// Where the fields begin.
const CFA: u32 = 20;
const FP: u32 = 10;
const RA: u32 = 0;
const MASK: u32 = 0x3ff;

impl Quick {
    /// That of code of which nothing is known.
    pub const UNKNOWN: Self = Self(table::UNKNOWN as u32);

    /// This rule, or its number if it is of another kind.
    #[inline(always)]
    #[must_use]
    pub fn of<A: Arch>(number: u32, rule: &Rule) -> Self {
        let (cfa, fp, ra) = (rule.cfa_offset, -i32::from(rule.fp_words), -i32::from(rule.ra_words));
        // Where a call pushes, the frame has at least what it pushed.
        let least = i32::from(A::CALL_PUSHES);
        let fits = rule.cfa == Cfa::SP
            && cfa % 8 == 0
            && (least..=MASK.cast_signed()).contains(&(cfa / 8))
            && is_saved(rule.fp, fp, 0)
            && is_saved(rule.ra, ra, least);
        if !fits {
            return Self(number);
        }
        let [cfa, fp, ra] = [cfa / 8, fp, ra].map(i32::cast_unsigned);
        Self(QUICK | cfa << CFA | fp << FP | ra << RA)
    }

    /// The number of one of another kind.
    #[inline(always)]
    #[must_use]
    pub const fn number(self) -> Option<u32> {
        if self.0 & QUICK == 0 { Some(self.0) } else { None }
    }

    /// What [`step`] does by the rule, which must be of this kind.
    #[inline(always)]
    pub fn step<A: Arch>(
        self,
        frame: &mut Registers,
        memory: &mut impl Memory,
    ) -> Result<Caller, Stop> {
        let Registers { sp, fp, lr, .. } = *frame;
        if !A::CALL_PUSHES && sp & UNSURE != 0 {
            return step::<A>(&self.rule(), frame, memory);
        }
        let cfa = sp.wrapping_add(u64::from(self.words(CFA)) * 8);
        if cfa < sp {
            return Err(Stop::Unreadable);
        }
        let mut saved = |words: u32, same: u64| match words {
            0 => Ok(same),
            _ => memory.word(cfa.wrapping_sub(u64::from(words) * 8)).ok_or(Stop::Unreadable),
        };
        let fp = saved(self.words(FP), fp)?;
        let return_address = saved(self.words(RA), lr)?;
        if self.words(RA) == 0 && lr == NO_LINK {
            return Err(Stop::Unsupported);
        }
        let pc = A::code_address(return_address);
        *frame = Registers { pc, sp: cfa, fp, lr: NO_LINK };
        if pc == 0 { Err(Stop::Complete) } else { Ok(Caller::Called) }
    }

    /// It as a number.
    #[inline(always)]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The one that [`Self::bits`] has given.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline(always)]
    const fn words(self, shift: u32) -> u32 {
        (self.0 >> shift) & MASK
    }

    /// The rule that it is made of.
    #[inline(always)]
    fn rule(self) -> Rule {
        let saved = |words| if words == 0 { Saved::SAME } else { Saved::AT_CFA };
        // None has more than ten bits.
        let below = |words: u32| -(i16::try_from(words).unwrap_or(0));
        let (cfa, fp, ra) = (self.words(CFA), self.words(FP), self.words(RA));
        Rule {
            fp: saved(fp),
            ra: saved(ra),
            cfa_offset: cfa.cast_signed() * 8,
            fp_words: below(fp),
            ra_words: below(ra),
            ..Rule::of(Cfa::SP)
        }
    }
}

/// Whether a register still has its value, or was saved so many words below the CFA, at least `least`.
#[inline(always)]
fn is_saved(saved: u8, below: i32, least: i32) -> bool {
    match saved {
        Saved::SAME => below == 0 && least == 0,
        Saved::AT_CFA => (1..=MASK.cast_signed()).contains(&below),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::{aarch64::Aarch64, x86_64::X86_64};

    const STACK: u64 = 0x7ff0_0000;

    /// Each word tells its address; one is the end of a stack, and one can't be read.
    struct Words;

    impl Memory for Words {
        fn word(&mut self, address: u64) -> Option<u64> {
            match address.wrapping_sub(STACK) {
                0x28 => Some(0),
                0x38 => None,
                _ => Some(address ^ 0x1000_0000),
            }
        }

        fn register(&self, _: u8) -> Option<u64> {
            None
        }
    }

    /// Compares with the general step; gives how many rules were of this kind.
    fn compare<A: Arch>() -> u32 {
        let mut quick_ones = 0;
        let saved = [Saved::SAME, Saved::AT_CFA, Saved::AT_FP, Saved::LOST];
        let words = [0, -1, -2, -3, -4, -5, 1, -1023, -1024];
        for cfa in [Cfa::SP, Cfa::FP, Cfa::UNKNOWN] {
            for cfa_offset in [0, 4, 8, 16, 40, 48, 64, 72, -8, 8184, 8192] {
                for (fp, ra) in saved.iter().flat_map(|fp| saved.iter().map(move |ra| (*fp, *ra))) {
                    for (fp_words, ra_words) in
                        words.iter().flat_map(|fp| words.iter().map(move |ra| (*fp, *ra)))
                    {
                        let rule = Rule { fp, ra, cfa_offset, fp_words, ra_words, ..Rule::of(cfa) };
                        quick_ones += u32::from(agrees::<A>(&rule));
                    }
                }
            }
        }
        quick_ones
    }

    fn agrees<A: Arch>(rule: &Rule) -> bool {
        let quick = Quick::of::<A>(7, rule);
        if let Some(number) = quick.number() {
            assert_eq!(number, 7);
            return false;
        }
        assert_eq!(quick.rule(), *rule);
        for (sp, lr) in
            [(STACK, 0), (STACK, NO_LINK), (STACK, 5), (STACK | UNSURE, 5), (u64::MAX - 7, 5)]
        {
            let begin = Registers { pc: 1, sp, fp: STACK + 16, lr };
            if A::CALL_PUSHES && sp & UNSURE != 0 {
                continue;
            }
            let (mut one, mut other) = (begin, begin);
            let expected = step::<A>(rule, &mut one, &mut Words);
            assert_eq!(quick.step::<A>(&mut other, &mut Words), expected, "{rule:?}");
            assert_eq!(other, one, "{rule:?}");
        }
        true
    }

    #[test]
    fn goes_where_the_rule_goes() {
        // CFA, frame pointer and return address: 7 of each but for a call that pushes, and a CFA that
        // is the stack pointer where none does.
        assert_eq!(compare::<X86_64>(), 7 * 7 * 6);
        assert_eq!(compare::<Aarch64>(), 8 * 7 * 7);
    }
}
