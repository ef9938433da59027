//! Any rows become a table in which the search finds what a linear one finds in the rows.
#![no_main]

use profiler_common::unwind::{
    rule::{Cfa, Rule},
    table::{Chunk, Chunks, find},
};
use profiler_unwind::{Rules, packer::Packer};

struct Words(Vec<u32>);

impl Chunks for Words {
    fn chunk(&self, number: u32) -> Option<&Chunk> {
        self.0.as_chunks().0.get(number as usize)
    }
}

libfuzzer_sys::fuzz_target!(|input: (u32, u16, Vec<(u16, u8, u8)>)| {
    let (start, bytes, rows) = input;
    let code = u64::from(start)..u64::from(start) + u64::from(bytes);
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|(at, bytes, rule)| {
            let start = code.start + u64::from(at);
            let rule = Rule { cfa_offset: rule.into(), ..Rule::of(Cfa::SP) };
            (start, start + u64::from(bytes), rule)
        })
        .collect();
    rows.sort_by_key(|row| row.0);

    let mut rules = Rules::new();
    let mut packer = Packer::new(code.clone(), &mut rules).unwrap();
    for (start, end, rule) in &rows {
        packer.push(*start, *end, rule).unwrap();
    }
    let (words, packed) = packer.finish().unwrap();
    let table = Words(words);
    if packed.beyond_page > 0 {
        return;
    }
    let pages = code.start >> 12..code.end.div_ceil(0x1000).max(code.start >> 12);
    let edges = rows.iter().flat_map(|row| [row.0, row.1]).chain([code.start, code.end]);
    for at in edges.flat_map(|edge| [edge.saturating_sub(1), edge]) {
        let expected = pages.contains(&(at >> 12)).then(|| {
            let row = rows.iter().find(|row| row.0 <= at && at < row.1);
            row.map_or(Rule::of(Cfa::UNKNOWN), |row| row.2)
        });
        let found = find(&table, at).map(|number| *rules.get(number).unwrap());
        assert_eq!(found, expected, "{at:#x}");
    }
});
