//! Packs rows into the table that the eBPF program searches. `profiler_common::unwind::table` has its layout.
//!
//! Rows come in the order of their first offset in the file. Where rows overlap, the one that starts first
//! wins, for as long as it is; of rows that start together, the first one given. Code without a row is
//! [unknown](Rules::UNKNOWN). A row with the rule of the row before it is merged into that.

use std::ops::Range;

use profiler_common::unwind::{
    rule::{Cfa, Rule},
    table::{self, CHUNK_WORDS, INDEX, PAGE_BITS},
};

use crate::Rules;

const PAGE: u64 = 1 << PAGE_BITS;
const CHUNK: usize = CHUNK_WORDS as usize;

/// The most bytes from the first code of a file to its last: each 4 KiB page takes eight bytes of the table.
/// The largest programs have a third of that.
pub const MAX_CODE_BYTES: u64 = 1 << 30;
/// The most words of a table: 64 MiB. The largest programs need some 12 MiB.
pub const MAX_WORDS: usize = 1 << 24;
/// The most rules that one file may add to the shared ones. Real programs add some hundreds.
pub const MAX_NEW_RULES: usize = 1 << 12;

/// What became of the rows that were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Rows given.
    pub given: u64,
    /// Rows in the table; each page of code starts with one.
    pub rows: u64,
    /// Rows of the page that has the most.
    pub max_rows_in_page: u32,
    /// Rows for which their page had no room; the rest of such a page is unsupported.
    pub beyond_page: u64,
    /// Rows whose rule had no room among the shared ones; they are unsupported.
    pub beyond_rules: u64,
    /// Rows that an earlier row covers, in part or entirely.
    pub overlapping: u64,
    /// Bytes of code by kind of rule: the index is a [`Cfa`].
    pub code_bytes: [u64; KINDS],
}

/// How many kinds of rules there are.
pub const KINDS: usize = Cfa::UNSUPPORTED as usize + 1;

/// The table would be larger than [`MAX_CODE_BYTES`] or [`MAX_WORDS`] allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// A table that is being packed.
#[derive(Debug)]
pub struct Packer<'r> {
    rules: &'r mut Rules,
    max_rules: usize,
    words: Vec<u32>,
    code: Range<u64>,
    /// The offset up to which rows were packed.
    at: u64,
    /// Rows of the page that `at` is in.
    page: Vec<u32>,
    packed: Packed,
}

impl<'r> Packer<'r> {
    /// A table for the code at these offsets in a file. [`TooLarge`] if they span too many bytes.
    pub fn new(code: Range<u64>, rules: &'r mut Rules) -> Result<Self, TooLarge> {
        let first = code.start & !(PAGE - 1);
        let end = code.end.max(code.start).checked_next_multiple_of(PAGE).ok_or(TooLarge)?;
        if end - first > MAX_CODE_BYTES {
            return Err(TooLarge);
        }
        let pages = u32::try_from((end - first) >> PAGE_BITS).map_err(|_| TooLarge)?;
        let first_page = u32::try_from(first >> PAGE_BITS).map_err(|_| TooLarge)?;
        let mut words = vec![first_page, pages];
        words.resize((INDEX + 2 * pages) as usize, 0);
        Ok(Self {
            max_rules: rules.len().saturating_add(MAX_NEW_RULES),
            rules,
            words,
            code: first..end,
            at: first,
            page: Vec::with_capacity(CHUNK),
            packed: Packed::default(),
        })
    }

    /// Takes the next row: the rule for offsets from `start` to before `end`. Rules that are new are added to the
    /// shared ones.
    pub fn push(&mut self, start: u64, end: u64, rule: &Rule) -> Result<(), TooLarge> {
        self.packed.given += 1;
        self.packed.overlapping +=
            u64::from(start < self.at && start < end && self.at > self.code.start);
        let (start, end) = (start.max(self.at), end.min(self.code.end));
        if start >= end {
            return Ok(());
        }
        if self.at < start && !self.pad(start) {
            self.fill(start, Rules::UNKNOWN, Cfa::UNKNOWN)?;
        }
        let number = self.rules.number(rule, self.max_rules);
        self.packed.beyond_rules += u64::from(number.is_none());
        let (number, cfa) =
            number.map_or((Rules::UNSUPPORTED, Cfa::UNSUPPORTED), |number| (number, rule.cfa));
        self.fill(end, number, cfa)
    }

    /// The words of the table, which are whole chunks, and what became of the rows.
    pub fn finish(mut self) -> Result<(Vec<u32>, Packed), TooLarge> {
        self.fill(self.code.end, Rules::UNKNOWN, Cfa::UNKNOWN)?;
        let Self { mut words, packed, .. } = self;
        words.resize(words.len().next_multiple_of(CHUNK), 0);
        words.shrink_to_fit();
        Ok((words, packed))
    }

    /// Packs the rule with this number from where we are to `end`.
    fn fill(&mut self, end: u64, number: u16, cfa: u8) -> Result<(), TooLarge> {
        if let Some(bytes) = self.packed.code_bytes.get_mut(usize::from(cfa)) {
            *bytes += end - self.at;
        }
        while self.at < end {
            self.add(number);
            let page_end = (self.at | (PAGE - 1)) + 1;
            self.at = end.min(page_end);
            if self.at == page_end {
                self.end_page()?;
            }
        }
        Ok(())
    }

    /// Makes the gap before the next row padding of the last one, if it is small: rows that say "unknown" between two
    /// functions would be an eighth of all.
    fn pad(&mut self, start: u64) -> bool {
        let Some(last) = self.page.last_mut() else { return false };
        let gap = start - self.at;
        let Some(padding) = u32::try_from(gap).ok().filter(|&gap| gap <= table::PADDING) else {
            return false;
        };
        // A row of this page has to follow.
        if start >> PAGE_BITS != self.at >> PAGE_BITS {
            return false;
        }
        *last = table::padded(*last, padding);
        if let Some(bytes) = self.packed.code_bytes.get_mut(usize::from(Cfa::UNKNOWN)) {
            *bytes += gap;
        }
        self.at = start;
        true
    }

    fn add(&mut self, number: u16) {
        let is_same = |&row: &u32| table::rule_of(row) == number && table::padding_of(row) == 0;
        if self.page.last().is_some_and(is_same) {
            return;
        }
        #[allow(clippy::cast_possible_truncation)] // a page has 4096 bytes
        let low = (self.at & (PAGE - 1)) as u32;
        match CHUNK - self.page.len() {
            0 => self.packed.beyond_page += 1,
            1 => {
                self.packed.beyond_page += 1;
                self.page.push(table::row(low, Rules::UNSUPPORTED));
            }
            _ => self.page.push(table::row(low, number)),
        }
    }

    /// Appends the page that ends here, within one chunk.
    fn end_page(&mut self) -> Result<(), TooLarge> {
        let left = self.words.len().next_multiple_of(CHUNK) - self.words.len();
        if left < self.page.len() {
            self.words.resize(self.words.len() + left, 0);
        }
        if self.words.len() + self.page.len() > MAX_WORDS {
            return Err(TooLarge);
        }
        let number = (self.at - 1 - self.code.start) >> PAGE_BITS;
        let index = usize::try_from(number).map_err(|_| TooLarge)? * 2 + INDEX as usize;
        let first = u32::try_from(self.words.len()).map_err(|_| TooLarge)?;
        let rows = u32::try_from(self.page.len()).map_err(|_| TooLarge)?;
        if let Some([at, count]) = self.words.get_mut(index..index + 2) {
            (*at, *count) = (first, rows);
        }
        self.words.append(&mut self.page);
        self.packed.rows += u64::from(rows);
        self.packed.max_rows_in_page = self.packed.max_rows_in_page.max(rows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::unwind::table::{Chunk, Chunks, find};
    use proptest::prelude::*;

    struct Words(Vec<u32>);

    impl Chunks for Words {
        fn chunk(&self, number: u32) -> Option<&Chunk> {
            self.0.as_chunks().0.get(number as usize)
        }
    }

    fn sp(cfa_offset: i32) -> Rule {
        Rule { cfa_offset, ..Rule::of(Cfa::SP) }
    }

    fn packed(code: Range<u64>, rows: &[(u64, u64, Rule)]) -> (Words, Rules, Packed) {
        let mut rules = Rules::new();
        let mut packer = Packer::new(code, &mut rules).unwrap();
        for (start, end, rule) in rows {
            packer.push(*start, *end, rule).unwrap();
        }
        let (words, packed) = packer.finish().unwrap();
        (Words(words), rules, packed)
    }

    fn found(table: &Words, rules: &Rules, at: u64) -> Option<Rule> {
        find(table, at).map(|number| *rules.get(number).unwrap())
    }

    #[test]
    fn finds_what_was_given() {
        let rows = [(0x1010, 0x1020, sp(8)), (0x1020, 0x1030, sp(16)), (0x1040, 0x3001, sp(16))];
        let (table, rules, packed) = packed(0x1010..0x3001, &rows);
        let unknown = Some(Rule::of(Cfa::UNKNOWN));
        for (at, rule) in [
            (0xfff, None),
            (0x1000, unknown),
            (0x100f, unknown),
            (0x1010, Some(sp(8))),
            (0x101f, Some(sp(8))),
            (0x1020, Some(sp(16))),
            (0x1030, unknown),
            (0x1040, Some(sp(16))),
            (0x2fff, Some(sp(16))),
            (0x3000, Some(sp(16))),
            (0x3001, unknown),
            (0x3fff, unknown),
            (0x4000, None),
            (u64::MAX, None),
        ] {
            assert_eq!(found(&table, &rules, at), rule, "{at:#x}");
        }
        assert_eq!(packed.rows, 5 + 1 + 2);
        assert_eq!(packed.code_bytes[usize::from(Cfa::SP)], 0x20 + 0x1fc1);
    }

    #[test]
    fn equal_neighbours_are_one() {
        let rows: Vec<_> = (0..64).map(|it| (it * 16, it * 16 + 16, sp(8))).collect();
        let (_, _, packed) = packed(0..0x400, &rows);
        assert_eq!((packed.given, packed.rows), (64, 2));
    }

    #[test]
    fn padding_takes_no_row() {
        let rows = [(0x1004, 0x1011, sp(8)), (0x1020, 0x1021, sp(8)), (0x1031, 0x1032, sp(8))];
        let (table, rules, packed) = packed(0x1000..0x2000, &rows);
        let unknown = Some(Rule::of(Cfa::UNKNOWN));
        for (at, rule) in [
            (0x1003, unknown),
            (0x1010, Some(sp(8))),
            (0x1011, unknown),
            (0x101f, unknown),
            (0x1020, Some(sp(8))),
            (0x1021, unknown),
            (0x1030, unknown),
            (0x1031, Some(sp(8))),
            (0x1032, unknown),
        ] {
            assert_eq!(found(&table, &rules, at), rule, "{at:#x}");
        }
        // Between the second and the third there are 16 bytes: too many.
        assert_eq!((packed.given, packed.rows), (3, 6));
    }

    #[test]
    fn no_code_has_a_table() {
        let (table, rules, _) = packed(0x1000..0x1000, &[(0x1000, 0x1001, sp(8))]);
        assert_eq!(found(&table, &rules, 0x1000), None);
    }

    #[test]
    fn a_page_stays_in_a_chunk() {
        // 1,025 rows a page: one page a chunk, though two nearly fit.
        let rows: Vec<_> = (0..4u64)
            .flat_map(|page| (0..1025).map(move |row| (page, row)))
            .map(|(page, row)| (page << 12 | row, page << 12 | (row + 1), sp((row % 2) as i32)))
            .collect();
        let (table, rules, packed) = packed(0..0x4000, &rows);
        assert_eq!(table.0.len(), 4 * CHUNK);
        assert_eq!(packed.max_rows_in_page, 1026);
        for (start, _, rule) in rows {
            assert_eq!(found(&table, &rules, start), Some(rule));
        }
    }

    #[test]
    fn a_page_with_too_many_rows_ends_unsupported() {
        let rows: Vec<_> = (0..0x1000u64).map(|it| (it, it + 1, sp((it % 2) as i32))).collect();
        let (table, rules, packed) = packed(0..0x1000, &rows);
        assert_eq!(packed.beyond_page, 0x1000 - (CHUNK as u64 - 1));
        for (start, _, rule) in rows {
            let rule = if start < CHUNK as u64 - 1 { rule } else { Rule::of(Cfa::UNSUPPORTED) };
            assert_eq!(found(&table, &rules, start), Some(rule));
        }
    }

    #[test]
    fn too_many_rules_are_unsupported() {
        let rows: Vec<_> =
            (0..0x1800u64).map(|it| (it * 4, it * 4 + 4, sp(i32::try_from(it).unwrap()))).collect();
        let (table, rules, packed) = packed(0..0x6000, &rows);
        assert_eq!(packed.beyond_rules, 0x1800 - MAX_NEW_RULES as u64);
        assert_eq!(found(&table, &rules, 0x5ffc), Some(Rule::of(Cfa::UNSUPPORTED)));
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let mut rules = Rules::new();
        for code in [0..MAX_CODE_BYTES + 1, 0..u64::MAX, u64::MAX - 1..u64::MAX, 1 << 60..1 << 60] {
            assert!(Packer::new(code.clone(), &mut rules).is_err(), "{code:x?}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_search(
            code in (0u64..0x8000, 0u64..0x8000),
            mut rows in prop::collection::vec(
                (0u64..0x8000, prop_oneof![0u64..0x900, 0u64..0x40], 0i32..5),
                0..900,
            ),
        ) {
            rows.sort_by_key(|row| row.0);
            let rows: Vec<_> =
                rows.into_iter().map(|(start, len, rule)| (start, start + len, sp(rule))).collect();
            let (table, rules, _) = packed(code.0..code.0 + code.1, &rows);
            let edges = rows.iter().flat_map(|row| [row.0, row.1]);
            for at in edges.flat_map(|edge| [edge.wrapping_sub(1), edge]).chain([0, code.0]) {
                let first = code.0 >> 12;
                let known = first..(code.0 + code.1).div_ceil(0x1000).max(first);
                let expected = known.contains(&(at >> 12)).then(|| {
                    let row = rows.iter().find(|row| row.0 <= at && at < row.1);
                    row.map_or(Rule::of(Cfa::UNKNOWN), |row| row.2)
                });
                prop_assert_eq!(found(&table, &rules, at), expected, "{:#x}", at);
            }
        }
    }
}
