//! Tables of Go programs that are made up.

use super::{
    header::{MODULE_CODE_AT, NEWEST, OLD_MAGICS, TEXT_AT},
    *,
};
use profiler_common::unwind::rule::Saved;
use proptest::prelude::*;

const TEXT: u64 = 0x40_1000;

/// A table of functions that follow each other: name, bytes of code, steps.
fn table(functions: &[(&str, u32, &[u8])]) -> Vec<u8> {
    table_of(1, functions)
}

/// The same, for a machine with instructions of so many bytes at least.
fn table_of(instruction_bytes: u8, functions: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let (mut names, mut steps, mut table, mut entries) = (vec![], vec![0], vec![], vec![]);
    let mut at = 0_u32;
    let of = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
    let table_bytes = u32::try_from(functions.len()).unwrap() * 8 + 4;
    for (name, bytes, own) in functions {
        table.extend([at, table_bytes + of(&entries)].map(u32::to_le_bytes).concat());
        entries.extend([at, of(&names), 0, 0, of(&steps)].map(u32::to_le_bytes).concat());
        names.extend([name.as_bytes(), &[0]].concat());
        steps.extend([*own, &[0]].concat());
        at += bytes;
    }
    table.extend(at.to_le_bytes());
    let names_at = 72;
    let steps_at = names_at + names.len() as u64;
    let table_at = steps_at + steps.len() as u64;
    let count = functions.len() as u64;
    let header = [count, 0, TEXT, names_at, 0, 0, steps_at, table_at];
    let header = [&NEWEST.to_le_bytes()[..], &[0, 0, instruction_bytes, 8]]
        .concat()
        .into_iter()
        .chain(header.map(u64::to_le_bytes).concat());
    header.chain([names, steps, table, entries].concat()).collect()
}

type Rows = Vec<(u64, u64, Rule)>;

fn read(bytes: &[u8]) -> Option<(Rows, Counts)> {
    let mut table = Pclntab::new(bytes, TEXT)?;
    let (mut functions, mut rows) = (Vec::new(), Vec::new());
    table.functions(&mut |function| functions.push(function));
    for Function { start, end, at } in functions {
        let mut covered = start;
        table.rows(at, &mut |row| {
            assert!(row.start == covered && row.start < row.end && row.end <= end);
            covered = row.end;
            rows.push((row.start, row.end, row.rule));
        });
        assert_eq!(covered, end);
    }
    Some((rows, table.counts()))
}

const ENTRY: Rule = Rule { cfa_offset: 8, ra: Saved::AT_CFA, ra_words: -1, ..Rule::of(Cfa::SP) };
const FRAMED: Rule = Rule { cfa_offset: 24, fp: Saved::AT_CFA, fp_words: -2, ..ENTRY };

#[test]
fn a_function_has_a_row_for_each_change() {
    // From -1 to 0 for 10 bytes, by 16 for 200, and back.
    let steps = [2, 10, 32, 0xc8, 1, 31, 1];
    let bytes = table(&[("main.f", 211, &steps), ("main.g", 5, &[2, 4])]);
    let (rows, counts) = read(&bytes).unwrap();
    assert_eq!(
        rows,
        [
            (TEXT, TEXT + 10, ENTRY),
            (TEXT + 10, TEXT + 210, FRAMED),
            (TEXT + 210, TEXT + 211, ENTRY),
            (TEXT + 211, TEXT + 215, ENTRY),
            // The steps end before the function does.
            (TEXT + 215, TEXT + 216, Rule::of(Cfa::UNKNOWN)),
        ]
    );
    assert_eq!((counts.functions, counts.rows, counts.malformed), (2, 5, 0));
}

#[test]
fn functions_that_leave_their_stack_are_known_by_name() {
    let steps = [2, 4, 32, 12];
    let names = [
        "runtime.goexit",
        "main.before",
        "runtime.sigreturn",
        "runtime.systemstack",
        "runtime.nanotime1",
        "runtime.mcall",
        "runtime.goexits",
    ];
    let bytes = table(&names.map(|name| (name, 16, &steps[..])));
    let (rows, _) = read(&bytes).unwrap();
    let moved = Rule { cfa: Cfa::FP, cfa_offset: 16, ..FRAMED };
    let at = |function: u64| TEXT + function * 16;
    assert_eq!(
        rows,
        [
            (at(0), at(1), Rule::of(Cfa::END)),
            (at(1), at(1) + 4, ENTRY),
            // The last byte before what ends a signal is looked up for what it returns to.
            (at(1) + 4, at(2) - 1, FRAMED),
            (at(2) - 1, at(3), Rule::of(Cfa::SIGNAL)),
            (at(3), at(4), Rule::of(Cfa::UNSUPPORTED)),
            (at(4), at(4) + 4, ENTRY),
            (at(4) + 4, at(5), moved),
            (at(5), at(5) + 4, ENTRY),
            (at(5) + 4, at(6), Rule::of(Cfa::END)),
            (at(6), at(6) + 4, ENTRY),
            (at(6) + 4, at(7), FRAMED),
        ]
    );
}

#[test]
fn with_a_link_register_it_is_at_the_bottom_of_the_frame() {
    // Nothing taken for 4 instructions, then 64 bytes for 10, and back.
    let bytes = table_of(4, &[("main.f", 60, &[2, 4, 128, 1, 10, 127, 1])]);
    let entered = Rule { ra: Saved::SAME, ..Rule::of(Cfa::SP) };
    let framed = Rule {
        cfa_offset: 64,
        ra: Saved::AT_CFA,
        ra_words: -8,
        fp: Saved::AT_CFA,
        fp_words: -9,
        ..entered
    };
    let (rows, _) = read(&bytes).unwrap();
    assert_eq!(
        rows,
        [
            (TEXT, TEXT + 16, entered),
            (TEXT + 16, TEXT + 56, framed),
            (TEXT + 56, TEXT + 60, entered),
        ]
    );
    // On the system's stack the frame pointer leads to the same frame: it is below the link.
    let moved = rule_with_link(64, Kind::Moves);
    assert_eq!(moved, Rule { cfa: Cfa::FP, cfa_offset: 72, ..framed });
    assert_eq!(rule_with_link(u32::MAX - 7, Kind::Usual), Rule::of(Cfa::UNSUPPORTED));
}

#[test]
fn what_is_of_another_kind_is_refused() {
    let bytes = table(&[("main.f", 8, &[2, 8])]);
    assert!(read(&bytes).is_some());
    // The magic, the padding, the sizes of an instruction and of a pointer.
    for at in [0, 4, 6, 7] {
        let mut other = bytes.clone();
        other[at] = 9;
        assert!(Pclntab::new(&other, TEXT).is_none(), "{at}");
    }
    for len in 0..bytes.len() {
        let _ = read(&bytes[..len]);
    }
}

#[test]
fn a_table_says_which_go_it_is_of() {
    let mut bytes = table(&[("main.f", 8, &[2, 8])]);
    assert_eq!(Version::of(&bytes), Version::Known { text: Some(TEXT) });
    // Not told since Go 1.26.
    bytes[TEXT_AT..TEXT_AT + 8].fill(0);
    assert_eq!(Version::of(&bytes), Version::Known { text: None });
    let mut of = |magic: u32| {
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        Version::of(&bytes)
    };
    assert_eq!([of(NEWEST + 1), of(NEWEST + 2)], [Version::Newer; 2]);
    assert_eq!(OLD_MAGICS.map(&mut of), [Version::Other; 2]);
    assert_eq!(of(0x464c_457f), Version::Other);
}

#[test]
fn the_module_tells_where_the_code_begins() {
    let module = |code: [u64; 4]| {
        let mut module = vec![0; MODULE_CODE_AT];
        module[..8].copy_from_slice(&0x4b_a848_u64.to_le_bytes());
        [module, code.map(u64::to_le_bytes).concat()].concat()
    };
    let own = module([TEXT, TEXT + 0x80, TEXT, TEXT + 0x90]);
    assert_eq!(text_of_module(&own, 0x4b_a848), Some(TEXT));
    // That of another table, or cut off.
    assert_eq!(text_of_module(&own, 0x4b_a850), None);
    assert_eq!(text_of_module(&own[..own.len() - 1], 0x4b_a848), None);
    // Of another layout, or not relocated yet.
    for code in [[TEXT, TEXT + 0x80, TEXT + 1, TEXT + 0x90], [TEXT, TEXT, TEXT, TEXT], [0; 4]] {
        assert_eq!(text_of_module(&module(code), 0x4b_a848), None, "{code:x?}");
    }
}

proptest! {
    #[test]
    fn damage_is_no_harm(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..10),
        steps in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = table(&[("main.f", 8, &steps), ("main.g", 80, &steps)]);
        prop_assert!(read(&bytes).is_some());
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // Of damaged ones a function may have no end, and so no rows.
        let Some(mut table) = Pclntab::new(&bytes, TEXT) else { return Ok(()) };
        table.functions = table.functions.min(1000);
        let mut functions = Vec::new();
        table.functions(&mut |function| functions.push(function));
        for function in functions {
            table.rows(function.at, &mut |row| assert!(row.start < row.end));
        }
    }
}
