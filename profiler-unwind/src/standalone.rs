//! A table that brings its own rules, as the parser process sends it and the agent takes it.

use profiler_common::unwind::{
    rule::{Cfa, Rule, Saved},
    table::{
        CHUNK_WORDS, Chunk, Chunks, INDEX, RULES, find, low_of, padded, padding_of, row, rule_of,
    },
};

use crate::{
    Rules, Table,
    packer::{MAX_NEW_RULES, MAX_WORDS},
};

/// Bytes of a rule in a message.
const RULE_BYTES: usize = size_of::<Rule>();

/// A table whose rows refer to its own rules, until it is [renumbered](Standalone::renumber).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standalone {
    words: Vec<u32>,
    rules: Box<[Rule]>,
    /// Whether there was no room for some of its rules.
    lacks_rules: bool,
    /// Whether Go's table in the file is of a version that is not known.
    is_newer_go: bool,
}

/// The bytes that another process has sent are not a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The most bytes of a table in a message: its rules and words.
pub const MAX_BYTES: usize = MAX_WORDS * 4 + RULES as usize * RULE_BYTES;

impl Standalone {
    /// A table that was the first to be made with these rules.
    #[must_use]
    pub fn new(table: Table, rules: &Rules) -> Self {
        let lacks_rules = table.facts().packed.beyond_rules > 0;
        let is_newer_go = table.facts().is_newer_go;
        Self { words: table.into_words(), rules: rules.since(0).into(), lacks_rules, is_newer_go }
    }

    /// The bytes of its rules and of its words, in little endian, for a message.
    pub fn parts(&self) -> (Vec<u8>, Vec<u8>) {
        let rules = self.rules.iter().flat_map(rule_bytes).collect();
        (rules, self.words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// The table in a message: so many rules, then its words ([`Standalone::parts`]), and what
    /// [`Standalone::lacks_rules`] and [`Standalone::is_newer_go`] are. Every index in it is checked, since another
    /// process has made it from the file of a stranger.
    pub fn from_parts(
        bytes: &[u8],
        rules: usize,
        (lacks_rules, is_newer_go): (bool, bool),
    ) -> Result<Self, Malformed> {
        if rules > RULES as usize {
            return Err(Malformed);
        }
        let (rules, words) = bytes.split_at_checked(rules * RULE_BYTES).ok_or(Malformed)?;
        let rules = rules.as_chunks().0.iter().map(rule).collect::<Result<_, _>>()?;
        let (words, rest) = words.as_chunks();
        let is_whole = rest.is_empty()
            && words.len() <= MAX_WORDS
            && words.len().is_multiple_of(CHUNK_WORDS as usize);
        if !is_whole {
            return Err(Malformed);
        }
        let words = words.iter().map(|it| u32::from_le_bytes(*it)).collect();
        let mut table = Self { words, rules, lacks_rules, is_newer_go };
        let rules = table.rules.len();
        table
            .rows(|row| if usize::from(rule_of(row)) < rules { Ok(row) } else { Err(Malformed) })?;
        Ok(table)
    }

    /// Has its rows refer to the shared rules instead of its own, which are added as far as there is room.
    pub fn renumber(&mut self, all: &mut Rules) {
        // No more than one file may add.
        let limit = all.len().saturating_add(MAX_NEW_RULES);
        let numbers: Vec<Option<u16>> =
            self.rules.iter().map(|rule| all.number(rule, limit)).collect();
        self.lacks_rules |= numbers.contains(&None);
        let number = |own: u16| numbers.get(usize::from(own)).copied().flatten();
        // Nothing here fails: the rows were checked.
        let _ = self.rows(|it| {
            let number = number(rule_of(it)).unwrap_or(Rules::UNSUPPORTED);
            Ok(padded(row(low_of(it), number), padding_of(it)))
        });
        self.rules = Box::default();
    }

    /// Changes each row. [`Malformed`] if the index leads outside of the table, or two pages share a row.
    fn rows(
        &mut self,
        mut change: impl FnMut(u32) -> Result<u32, Malformed>,
    ) -> Result<(), Malformed> {
        let Some([_, pages]) = self.words.first_chunk().copied() else { return Err(Malformed) };
        let index = INDEX as usize;
        let behind = pages as usize * 2 + index;
        let places = self.words.get(index..behind).ok_or(Malformed)?.as_chunks().0.to_vec();
        let mut free = behind;
        for [first, count] in places {
            let (first, count) = (first as usize, count as usize);
            let end = first.checked_add(count).ok_or(Malformed)?;
            let chunk = |at: usize| at / CHUNK_WORDS as usize;
            if first < free || count == 0 || chunk(first) != chunk(end - 1) {
                return Err(Malformed);
            }
            for row in self.words.get_mut(first..end).ok_or(Malformed)? {
                *row = change(*row)?;
            }
            free = end;
        }
        Ok(())
    }

    /// Its chunks, each an element of the kernel's map.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        self.words.as_chunks().0
    }

    /// The number of the rule for an offset in the file, in bytes; `None` outside of its code.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<u16> {
        find(self, offset)
    }

    /// Its own rules; none once it was renumbered.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether Go's table in the file is of a version that is not known.
    #[must_use]
    pub fn is_newer_go(&self) -> bool {
        self.is_newer_go
    }

    /// Whether there was no room for some of its rules.
    #[must_use]
    pub fn lacks_rules(&self) -> bool {
        self.lacks_rules
    }
}

impl Chunks for Standalone {
    fn chunk(&self, number: u32) -> Option<&Chunk> {
        self.chunks().get(usize::try_from(number).ok()?)
    }
}

fn rule_bytes(rule: &Rule) -> [u8; RULE_BYTES] {
    let Rule { cfa, fp, ra, register, cfa_offset, cfa_addend, fp_words, ra_words, reserved } =
        *rule;
    let [o0, o1, o2, o3] = cfa_offset.to_le_bytes();
    let [[a0, a1], [f0, f1], [r0, r1]] = [cfa_addend, fp_words, ra_words].map(i16::to_le_bytes);
    let [z0, z1] = reserved.to_le_bytes();
    [cfa, fp, ra, register, o0, o1, o2, o3, a0, a1, f0, f1, r0, r1, z0, z1]
}

fn rule(bytes: &[u8; RULE_BYTES]) -> Result<Rule, Malformed> {
    let [cfa, fp, ra, register, o0, o1, o2, o3, a0, a1, f0, f1, r0, r1, z0, z1] = *bytes;
    let rule = Rule {
        cfa,
        fp,
        ra,
        register,
        cfa_offset: i32::from_le_bytes([o0, o1, o2, o3]),
        cfa_addend: i16::from_le_bytes([a0, a1]),
        fp_words: i16::from_le_bytes([f0, f1]),
        ra_words: i16::from_le_bytes([r0, r1]),
        reserved: u16::from_le_bytes([z0, z1]),
    };
    let is_known = cfa <= Cfa::UNSUPPORTED && fp.max(ra) <= Saved::LOST && rule.reserved == 0;
    if is_known { Ok(rule) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sp(cfa_offset: i32) -> Rule {
        Rule { cfa_offset, cfa_addend: -2, fp_words: -3, ra_words: 4, ..Rule::of(Cfa::SP) }
    }

    fn rows() -> Vec<(std::ops::Range<u64>, Rule)> {
        (1..2000).map(|it| (it * 12..it * 12 + 9, sp((it % 7) as i32))).collect()
    }

    fn table() -> Standalone {
        let mut rules = Rules::new();
        let table = Table::of_rows(&rows(), &mut rules).unwrap();
        Standalone::new(table, &rules)
    }

    fn sent(table: &Standalone) -> (Vec<u8>, usize) {
        let (rules, words) = table.parts();
        ([rules, words].concat(), table.rules.len())
    }

    #[test]
    fn a_table_arrives_as_it_was_sent() {
        let table = table();
        let (bytes, rules) = sent(&table);
        assert_eq!(Standalone::from_parts(&bytes, rules, (false, false)), Ok(table));
    }

    #[test]
    fn with_the_rules_of_all_it_says_the_same() {
        let mut all = Rules::new();
        // So that its rules have other numbers here.
        for it in 100..200 {
            all.number(&sp(it), usize::MAX).unwrap();
        }
        let own = table();
        let mut renumbered = own.clone();
        renumbered.renumber(&mut all);
        assert!(!renumbered.lacks_rules());
        for offset in 0..30_000 {
            let before = own.find(offset).map(|it| own.rules()[usize::from(it)]);
            let now = renumbered.find(offset).map(|it| *all.get(it).unwrap());
            assert_eq!(before, now, "{offset:#x}");
        }
    }

    #[test]
    fn rules_for_which_there_is_no_room_are_unsupported() {
        let mut all = Rules::new();
        for it in 0..i32::try_from(RULES).unwrap() {
            let _ = all.number(&Rule { cfa_offset: it, ..Rule::of(Cfa::FP) }, usize::MAX);
        }
        let mut renumbered = table();
        renumbered.renumber(&mut all);
        assert!(renumbered.lacks_rules());
        assert_eq!(renumbered.find(12), Some(Rules::UNSUPPORTED));
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        let table = table();
        let (bytes, rules) = sent(&table);
        let at_words = rules * RULE_BYTES;
        let with = |at: usize, value: u32| {
            let mut bytes = bytes.clone();
            bytes[at_words + at * 4..][..4].copy_from_slice(&value.to_le_bytes());
            Standalone::from_parts(&bytes, rules, (false, false))
        };
        let first = table.words[2];
        assert!(with(1, u32::MAX).is_err()); // pages
        assert!(with(2, u32::MAX).is_err()); // rows of the first
        assert!(with(2, 0).is_err());
        assert!(with(3, 0).is_err()); // how many
        assert!(with(3, u32::MAX).is_err());
        assert!(with(first as usize, row(0, u16::MAX)).is_err());
        assert!(Standalone::from_parts(&bytes, rules + 1, (false, false)).is_err());
        assert!(Standalone::from_parts(&bytes, usize::MAX, (false, false)).is_err());
        assert!(Standalone::from_parts(&bytes[..bytes.len() - 4], rules, (false, false)).is_err());
        let mut kind = bytes.clone();
        kind[0] = Cfa::UNSUPPORTED + 1;
        assert!(Standalone::from_parts(&kind, rules, (false, false)).is_err());
    }

    proptest! {
        #[test]
        fn what_is_taken_can_be_used(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
            in_index in any::<bool>(),
        ) {
            let (mut bytes, rules) = sent(&table());
            let len = if in_index { rules * RULE_BYTES + 64 } else { bytes.len() };
            for (at, byte) in damage {
                bytes[at.index(len)] = byte;
            }
            if let Ok(mut table) = Standalone::from_parts(&bytes, rules, (false, false)) {
                let mut all = Rules::new();
                table.renumber(&mut all);
                for offset in 0..30_000 {
                    if let Some(number) = table.find(offset) {
                        prop_assert!(all.get(number).is_some());
                    }
                }
            }
        }
    }
}
