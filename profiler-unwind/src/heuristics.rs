//! Rules for code without unwind information, where its instructions give them away.

mod exits;
mod musl;
pub(crate) mod vdso;

use std::{iter, ops::Range};

use object::read::ReadRef;
use profiler_common::unwind::{
    rule::{Cfa, Rule, Saved},
    step::Arch,
};

use crate::{
    source::{Code, Stubs},
    table::Placed,
};

/// The smallest gap between two functions that is searched; smaller ones are padding.
const MIN_BYTES: u64 = 32;
/// The most bytes and gaps that are searched. In a file without unwind information, all code is one gap.
const MAX_BYTES: u64 = 32 << 20;
const MAX_GAPS: usize = 1 << 12;

/// Such rules, in the order of their offsets in the file. `functions` are those with unwind information, in the
/// same order.
pub(crate) fn rules<'d, A: Arch>(
    data: impl ReadRef<'d>,
    code: &Code,
    stubs: &[Stubs],
    functions: &[Placed],
) -> Vec<(Range<u64>, Rule)> {
    let mut rules: Vec<_> =
        stubs.iter().flat_map(|it| of_stubs::<A>(it, code, functions)).collect();
    if A::CALL_PUSHES {
        rules.extend(of_code(data, code, functions));
    }
    rules.sort_by_key(|(offsets, _)| offsets.start);
    rules
}

fn of_code<'d>(
    data: impl ReadRef<'d>,
    code: &Code,
    functions: &[Placed],
) -> Vec<(Range<u64>, Rule)> {
    let gaps = gaps(code, functions);
    if gaps.is_empty() {
        return Vec::new();
    }
    let exits = exits::exits(data, code);
    let rules = gaps.into_iter().filter_map(|gap| {
        let bytes = data.read_bytes_at(gap.start, gap.end - gap.start).ok()?;
        Some(musl::rules(bytes, gap.start, &exits))
    });
    rules.flatten().take(musl::MAX_PLACES).collect()
}

/// The code that no function covers, by offsets in the file.
fn gaps(code: &Code, functions: &[Placed]) -> Vec<Range<u64>> {
    let (mut gaps, mut left) = (Vec::new(), MAX_BYTES);
    for segment in code.in_file() {
        let first = functions.partition_point(|it| it.offset < segment.start);
        let inside = functions.get(first..).unwrap_or_default().iter();
        let inside = inside.take_while(|it| it.offset < segment.end);
        let inside = inside.map(|it| it.offset..it.offset.saturating_add(it.bytes.into()));
        let mut at = segment.start;
        for function in inside.chain(iter::once(segment.end..segment.end)) {
            let gap = at..function.start;
            let bytes = gap.end.saturating_sub(gap.start);
            if bytes >= MIN_BYTES && bytes <= left && gaps.len() < MAX_GAPS {
                left -= bytes;
                gaps.push(gap);
            }
            at = at.max(function.end);
        }
    }
    gaps
}

/// The rules of stubs that the file does not describe, by offsets in it.
fn of_stubs<A: Arch>(stubs: &Stubs, code: &Code, functions: &[Placed]) -> Vec<(Range<u64>, Rule)> {
    let Some((start, bytes @ 1..)) = code.offsets(&stubs.addresses) else { return Vec::new() };
    let end = start + bytes;
    let next = functions.partition_point(|function| function.offset < start);
    if functions.get(next).is_some_and(|function| function.offset < end) {
        return Vec::new();
    }
    // A stub leaves the stack as the call has left it, but for what finds the function: on x86-64
    // from byte 11 on it has pushed a word, or from byte 9 on where it begins with a mark.
    let by_sp = |cfa_offset| Rule {
        cfa_offset,
        ra: if A::CALL_PUSHES || cfa_offset > 0 { Saved::AT_CFA } else { Saved::SAME },
        ra_words: if A::CALL_PUSHES || cfa_offset > 0 { -1 } else { 0 },
        ..Rule::of(Cfa::SP)
    };
    let entry = Rule { register: if stubs.is_marked { 9 } else { 11 }, cfa: Cfa::PLT, ..by_sp(0) };
    let behind_push = if stubs.is_marked { 8 } else { 4 };
    let rows = match (stubs.is_lazy, A::CALL_PUSHES) {
        (false, true) => vec![(0, by_sp(8))],
        (false, false) => vec![(0, by_sp(0))],
        // The shared part is entered with one word pushed, and pushes another.
        (true, true) => vec![(0, by_sp(16)), (6, by_sp(24)), (16, entry)],
        // The shared part pushes two words with its first instruction, but for the mark, and is as long as
        // two stubs.
        (true, false) => vec![(0, by_sp(0)), (behind_push, by_sp(16)), (32, by_sp(0))],
    };
    let ends = rows.iter().skip(1).map(|(from, _)| start + from).chain([end]);
    let rows = rows.iter().zip(ends);
    let rows = rows.map(|(&(from, rule), until)| (start + from..until.min(end), rule));
    rows.filter(|(offsets, _)| !offsets.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rule_display::RuleDisplay, source::Machine};
    use profiler_common::unwind::{aarch64::Aarch64, x86_64::X86_64};

    #[test]
    fn stubs_of_which_the_linker_says_nothing_have_rules() {
        let code = Code::of(0x1000..0x2000, 0x400);
        let stubs = |is_lazy| Stubs { addresses: 0x1100..0x1150, is_lazy, is_marked: false };
        let rows = |rows: Vec<(Range<u64>, Rule)>, machine| {
            let line = |(offsets, rule): &(Range<u64>, Rule)| {
                format!("{:x} {}", offsets.start, RuleDisplay(rule, machine))
            };
            assert!(rows.windows(2).all(|pair| pair[0].0.end == pair[1].0.start), "{rows:x?}");
            assert_eq!(rows.last().unwrap().0.end, 0x550);
            rows.iter().map(line).collect::<Vec<_>>()
        };
        let x86 = |lazy| rows(of_stubs::<X86_64>(&stubs(lazy), &code, &[]), Machine::X86_64);
        assert_eq!(x86(false), ["500 CFA = sp + 8, fp unchanged, return address at CFA - 8"]);
        assert_eq!(
            x86(true),
            [
                "500 CFA = sp + 16, fp unchanged, return address at CFA - 8",
                "506 CFA = sp + 24, fp unchanged, return address at CFA - 8",
                "510 CFA = sp + 8, + 16 from byte 11 of 16 on, fp unchanged, return address at CFA - 8"
            ]
        );
        let marked = Stubs { is_marked: true, ..stubs(true) };
        assert_eq!(
            rows(of_stubs::<X86_64>(&marked, &code, &[]), Machine::X86_64)[2],
            "510 CFA = sp + 8, + 16 from byte 9 of 16 on, fp unchanged, return address at CFA - 8"
        );
        let arm = |lazy| rows(of_stubs::<Aarch64>(&stubs(lazy), &code, &[]), Machine::Aarch64);
        let leaf = "CFA = sp, fp unchanged, return address in the link register";
        assert_eq!(arm(false), [format!("500 {leaf}")]);
        assert_eq!(
            arm(true),
            [
                format!("500 {leaf}"),
                "504 CFA = sp + 16, fp unchanged, return address at CFA - 8".to_owned(),
                format!("520 {leaf}")
            ]
        );
        let marked = rows(of_stubs::<Aarch64>(&marked, &code, &[]), Machine::Aarch64);
        assert_eq!(marked[1], "508 CFA = sp + 16, fp unchanged, return address at CFA - 8");
        // Where the linker says something, that holds.
        let described = [Placed::of(0x500..0x501)];
        assert_eq!(of_stubs::<X86_64>(&stubs(true), &code, &described), []);
        let elsewhere = [Placed::of(0x4ff..0x500), Placed::of(0x550..0x560)];
        assert_eq!(of_stubs::<X86_64>(&stubs(true), &code, &elsewhere).len(), 3);
    }

    #[test]
    fn what_lies_between_functions_is_looked_into() {
        let code = Code::of(0x1000..0x2000, 0x400);
        let gaps = |functions: &[(u64, u64)]| {
            let functions: Vec<_> = functions.iter().map(|it| Placed::of(it.0..it.1)).collect();
            gaps(&code, &functions).into_iter().map(|it| (it.start, it.end)).collect::<Vec<_>>()
        };
        assert_eq!(gaps(&[]), [(0x400, 0x1400)]);
        assert_eq!(gaps(&[(0x400, 0x1400)]), []);
        // Padding is left out, and what a function covers that another one lies in.
        let functions =
            [(0x410, 0x500), (0x51f, 0x600), (0x520, 0x540), (0x700, 0x800), (0x820, 0x13ff)];
        assert_eq!(gaps(&functions), [(0x600, 0x700), (0x800, 0x820)]);
        // One of another segment.
        assert_eq!(gaps(&[(0x10, 0x30), (0x1400, 0x1500)]), [(0x400, 0x1400)]);
    }

    #[test]
    fn a_file_that_describes_nothing_has_the_rules_of_its_code() {
        let code = Code::of(0x1000..0x1040, 0x10);
        let mut file = vec![0x90; 0x50];
        file[0x20..0x29].copy_from_slice(&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05]);
        let found = rules::<X86_64>(&*file, &code, &[], &[]);
        assert_eq!(found, [(0x1f..0x2a, Rule::of(Cfa::SIGNAL))]);
        assert_eq!(rules::<Aarch64>(&*file, &code, &[], &[]), []);
        // What describes it holds.
        assert_eq!(rules::<X86_64>(&*file, &code, &[], &[Placed::of(0x10..0x50)]), []);
    }
}
