//! The distinct rules of all tables, numbered.

use std::collections::HashMap;

use profiler_common::unwind::{
    rule::{Cfa, Rule},
    table,
};

/// The rules of all tables, each stored once. A row has the number of its rule only: there are few distinct
/// rules, and the kernel has one array of them.
///
/// Numbers never change: the rules added since a [mark](Rules::len) are those that the kernel lacks.
#[derive(Debug)]
pub struct Rules {
    all: Vec<Rule>,
    // With the standard hasher, since the authors of files choose what is hashed.
    numbers: HashMap<Rule, u16>,
    /// Recently used rules by a cheap hash: most rows find theirs here.
    recent: Box<[(Rule, u16); RECENT]>,
}

const RECENT: usize = 256;

impl Default for Rules {
    fn default() -> Self {
        Self::new()
    }
}

impl Rules {
    /// The number of "nothing is known".
    pub const UNKNOWN: u16 = table::UNKNOWN;
    /// The number of "there is a rule, which can't be applied".
    pub const UNSUPPORTED: u16 = 1;
    /// The number of "the outermost frame".
    pub const END: u16 = 2;

    /// The three rules that are always there.
    #[must_use]
    pub fn new() -> Self {
        let rules = [Cfa::UNKNOWN, Cfa::UNSUPPORTED, Cfa::END].map(Rule::of);
        Self {
            numbers: rules.into_iter().zip(0..).collect(),
            all: rules.to_vec(),
            recent: Box::new([(Rule::of(Cfa::UNKNOWN), Self::UNKNOWN); RECENT]),
        }
    }

    /// How many rules there are; also a mark for [`Rules::since`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is no room for another.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.all.len() >= table::RULES as usize
    }

    /// Always false, since three rules are always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The rule with a number.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<&Rule> {
        self.all.get(usize::from(number))
    }

    /// The rules added since there were `mark` of them; the first has the number `mark`.
    #[must_use]
    pub fn since(&self, mark: usize) -> &[Rule] {
        self.all.get(mark..).unwrap_or_default()
    }

    /// The number of a rule. It is added if it isn't there and there are fewer than `limit` rules; `None` if
    /// there is no room.
    pub fn number(&mut self, rule: &Rule, limit: usize) -> Option<u16> {
        let slot = slot(rule);
        if let Some((_, number)) = self.recent.get(slot).filter(|(it, _)| it == rule) {
            return Some(*number);
        }
        let number = match self.numbers.get(rule) {
            Some(number) => *number,
            None => {
                let number = u16::try_from(self.all.len()).ok()?;
                if self.all.len() >= limit.min(table::RULES as usize) {
                    return None;
                }
                self.all.push(*rule);
                self.numbers.insert(*rule, number);
                number
            }
        };
        if let Some(it) = self.recent.get_mut(slot) {
            *it = (*rule, number);
        }
        Some(number)
    }
}

/// Where among the recent ones a rule would be.
fn slot(rule: &Rule) -> usize {
    let kinds = u32::from_ne_bytes([rule.cfa, rule.fp, rule.ra, rule.register]);
    let offsets =
        rule.cfa_offset.cast_unsigned() ^ (u32::from(rule.fp_words.cast_unsigned()) << 16);
    let mixed = kinds.wrapping_mul(0x9e37_79b9) ^ offsets.wrapping_mul(0x85eb_ca6b);
    (mixed >> 24) as usize % RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_one_number() {
        let mut rules = Rules::new();
        for (cfa, number) in [
            (Cfa::UNKNOWN, Rules::UNKNOWN),
            (Cfa::UNSUPPORTED, Rules::UNSUPPORTED),
            (Cfa::END, Rules::END),
        ] {
            assert_eq!(rules.number(&Rule::of(cfa), usize::MAX), Some(number));
        }
        let mark = rules.len();
        let numbers: Vec<_> = (0..1000)
            .map(|it| rules.number(&Rule { cfa_offset: it % 500, ..Rule::of(Cfa::SP) }, usize::MAX))
            .collect();
        assert_eq!(numbers[..500], numbers[500..]);
        assert_eq!(rules.since(mark).len(), 500);
        for (rule, number) in rules.since(mark).iter().zip(&numbers) {
            assert_eq!(rules.get(number.unwrap()), Some(rule));
        }
    }

    #[test]
    fn a_limit_keeps_what_is_there() {
        let mut rules = Rules::new();
        let rule = |cfa_offset| Rule { cfa_offset, ..Rule::of(Cfa::FP) };
        assert_eq!(rules.number(&rule(1), 4), Some(3));
        assert_eq!(rules.number(&rule(2), 4), None);
        assert_eq!(rules.number(&rule(1), 4), Some(3));
        for offset in 0..1 << 15 {
            let _ = rules.number(&rule(offset), usize::MAX);
        }
        assert_eq!(rules.len(), table::RULES as usize);
    }
}
