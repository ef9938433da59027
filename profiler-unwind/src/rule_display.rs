//! A rule as text, in the words of `readelf -wF`.

use std::fmt::{self, Display};

use profiler_common::unwind::rule::{Cfa, Rule, Saved};

use crate::source::Machine;

/// What a kind of rule means, in few words; the index is a [`Cfa`].
pub(crate) const KINDS: [&str; crate::packer::KINDS] = [
    "not described",
    "CFA by sp",
    "CFA by fp",
    "CFA in memory, by sp",
    "CFA in memory, by fp",
    "CFA by another register",
    "PLT entry",
    "outermost frame",
    "signal frame",
    "unsupported",
];

/// A rule as equations.
pub(crate) struct RuleDisplay<'a>(pub(crate) &'a Rule, pub(crate) Machine);

impl Display for RuleDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rule, machine) = self;
        let register = Register(rule.register, *machine);
        let offset = Signed(rule.cfa_offset.into());
        match rule.cfa {
            Cfa::UNKNOWN => return f.write_str("not described: frame pointers are tried"),
            Cfa::END => return f.write_str("outermost frame: there is no caller"),
            Cfa::SIGNAL => return f.write_str("signal frame: all registers are on the stack"),
            Cfa::SP => write!(f, "CFA = sp{offset}")?,
            Cfa::FP => write!(f, "CFA = fp{offset}")?,
            Cfa::AT_SP => write!(f, "CFA = *(sp{offset}){}", Signed(rule.cfa_addend.into()))?,
            Cfa::AT_FP => write!(f, "CFA = *(fp{offset}){}", Signed(rule.cfa_addend.into()))?,
            Cfa::REGISTER => write!(f, "CFA = {register}{offset}")?,
            Cfa::PLT => write!(f, "CFA = sp + 8, + 16 from byte {} of 16 on", rule.register)?,
            _ => return f.write_str("unsupported: described in a way that can't be followed"),
        }
        let fp = Signed(i64::from(rule.fp_words) * 8);
        match rule.fp {
            Saved::SAME => f.write_str(", fp unchanged")?,
            Saved::AT_CFA => write!(f, ", fp at CFA{fp}")?,
            Saved::AT_FP => write!(f, ", fp at fp{fp}")?,
            Saved::AT_SP => write!(f, ", fp at sp{fp}")?,
            _ => f.write_str(", fp lost")?,
        }
        match rule.ra {
            Saved::SAME => f.write_str(", return address in the link register"),
            Saved::AT_CFA => {
                write!(f, ", return address at CFA{}", Signed(i64::from(rule.ra_words) * 8))
            }
            Saved::REGISTER => write!(f, ", return address in {register}"),
            _ => f.write_str(", return address lost"),
        }
    }
}

/// ` + 8`, ` - 8`, or nothing.
struct Signed(i64);

impl Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            offset if offset < 0 => write!(f, " - {}", offset.unsigned_abs()),
            offset => write!(f, " + {offset}"),
        }
    }
}

/// A register by its name on the machine.
struct Register(u8, Machine);

impl Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = gimli::Register(self.0.into());
        let name = match self.1 {
            Machine::X86_64 => gimli::X86_64::register_name(number),
            Machine::Aarch64 => gimli::AArch64::register_name(number),
        };
        write!(f, "{}", name.unwrap_or("an unknown register"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_well() {
        let usual = Rule {
            fp: Saved::AT_CFA,
            ra: Saved::AT_CFA,
            cfa_offset: 16,
            fp_words: -2,
            ra_words: -1,
            ..Rule::of(Cfa::SP)
        };
        let realigned = Rule {
            cfa: Cfa::AT_FP,
            fp: Saved::AT_FP,
            cfa_offset: -8,
            cfa_addend: 8,
            fp_words: 0,
            ..usual
        };
        let vfork =
            Rule { ra: Saved::REGISTER, register: 5, ra_words: 0, fp: 0, fp_words: 0, ..usual };
        let leaf = Rule { ra: Saved::SAME, cfa_offset: 0, ..vfork };
        for (rule, machine, text) in [
            (usual, Machine::X86_64, "CFA = sp + 16, fp at CFA - 16, return address at CFA - 8"),
            (
                realigned,
                Machine::X86_64,
                "CFA = *(fp - 8) + 8, fp at fp, return address at CFA - 8",
            ),
            (vfork, Machine::X86_64, "CFA = sp + 16, fp unchanged, return address in rdi"),
            (leaf, Machine::Aarch64, "CFA = sp, fp unchanged, return address in the link register"),
            (Rule::of(Cfa::UNKNOWN), Machine::X86_64, "not described: frame pointers are tried"),
        ] {
            assert_eq!(RuleDisplay(&rule, machine).to_string(), text);
        }
    }
}
