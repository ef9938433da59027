//! A test: whatever rules, registers and stack there are, a walk ends within its limit, with a reason that
//! is one of a walk, and has nothing but addresses of code.

use std::ops::RangeInclusive;

use profiler_common::{
    sample::{COPY_BELOW, COPY_REGISTERS},
    unwind::rule::Saved,
};
use proptest::prelude::*;

use super::*;
use crate::procfs::maps::Mapping;

const STACK: u64 = 0x7fff_0000;
/// Code with rules, and behind it code that is made at run time.
const CODE: u64 = 0x1000;
const CODE_BYTES: u64 = 0x1000;
const END: u64 = CODE + 2 * CODE_BYTES;
/// Bytes of code for which one rule holds.
const ROW_BYTES: u64 = 0x100;
const MAX_FRAMES: u32 = 512;

/// A rule as of compilers, or any other.
fn rule() -> impl Strategy<Value = Rule> {
    let cfa = prop_oneof![9 => Just(Cfa::SP), 1 => Just(Cfa::FP)];
    let usual = (cfa, Saved::SAME..=Saved::AT_CFA, 1..4_i16, 0..4_i16);
    let usual = usual.prop_map(|(cfa, fp, cfa_words, below)| Rule {
        fp,
        ra: Saved::AT_CFA,
        cfa_offset: i32::from(cfa_words) * 8,
        fp_words: -1 - below % cfa_words,
        ra_words: -1,
        ..Rule::of(cfa)
    });
    let kinds = (0..=Cfa::UNSUPPORTED + 1, 0..=Saved::LOST + 1, 0..=Saved::LOST + 1, any::<u8>());
    let other = (kinds, any::<i32>(), any::<[i16; 3]>()).prop_map(
        |((cfa, fp, ra, register), cfa_offset, [cfa_addend, fp_words, ra_words])| Rule {
            cfa,
            fp,
            ra,
            register,
            cfa_offset,
            cfa_addend,
            fp_words,
            ra_words,
            reserved: 0,
        },
    );
    prop_oneof![20 => usual, 1 => other, 1 => Just(Rule::of(Cfa::SIGNAL))]
}

/// What a register or a word of the stack holds.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        60 => CODE..CODE + CODE_BYTES,
        3 => CODE + CODE_BYTES..END + 16,
        3 => prop_oneof![0_u64..80, 0_u64..2000].prop_map(|words| STACK + words * 8),
        5 => any::<u64>(),
    ]
}

fn described(rules: &[Rule]) -> Rc<Standalone> {
    let rows = (0..).zip(rules).map(|(at, rule)| (at * ROW_BYTES..(at + 1) * ROW_BYTES, *rule));
    let mut numbers = Rules::new();
    let table = Table::of_rows(&rows.collect::<Vec<_>>(), &mut numbers).unwrap();
    Rc::new(Standalone::new(table, &numbers))
}

fn space() -> Space {
    let mapping = |start, backing| {
        let end = start + CODE_BYTES;
        Mapping { start, end, file_offset: 0, backing, name: "".into() }
    };
    let behind = mapping(CODE + CODE_BYTES, Backing::Anonymous);
    Space::new(vec![mapping(CODE, Backing::Vdso), behind], 0)
}

/// The addresses, and how it ended.
type Found = Option<(Vec<u64>, UserEnd)>;

fn walk(walker: &mut Walker, copy: &StackCopy<'_>, pc: u64) -> Found {
    let so_far = pc.to_ne_bytes();
    let so_far = (Addresses::new(&so_far), UserEnd::NotLoaded);
    let Walked { addresses, end } =
        walker.walk(&mut Parser::not_started(), copy, &space(), 1, so_far, std::iter::empty())?;
    Some((Addresses::new(&addresses).iter().collect(), end))
}

const ENDS: [UserEnd; 5] = [
    UserEnd::Depth,
    UserEnd::Complete,
    UserEnd::NoUnwindInfo,
    UserEnd::Unreadable,
    UserEnd::Unsupported,
];

/// gcc says of a register that was just taken off the stack that it is still there.
#[test]
fn the_begin_of_a_red_zone_is_read() {
    if COPY_BELOW == 0 {
        return;
    }
    let saved = Rule {
        fp: Saved::AT_CFA,
        ra: Saved::AT_CFA,
        cfa_offset: 8,
        fp_words: -2,
        ra_words: -1,
        ..Rule::of(Cfa::SP)
    };
    let by_fp = Rule { cfa: Cfa::FP, cfa_offset: 16, ..saved };
    let mut walker = Walker::new(MAX_FRAMES, false);
    let rules = [saved, by_fp, Rule::of(Cfa::END)];
    walker.tables.insert(Key::Vdso, Some(described(&rules)));
    let mut registers = [0; COPY_REGISTERS];
    registers[usize::from(Native::SP)] = STACK;
    let mut below = [0; COPY_BELOW / 8];
    *below.last_mut().unwrap() = STACK + 16;
    let (middle, outer) = (CODE + ROW_BYTES + 8, CODE + 2 * ROW_BYTES + 8);
    let stack = [middle, 0, 0, outer];
    let words = registers.iter().chain(&below).chain(&stack).map(|word| word.to_ne_bytes());
    let words: Vec<_> = words.collect();
    let found = walk(&mut walker, &StackCopy::new(words.as_flattened()).unwrap(), CODE);
    assert_eq!(found, Some((vec![CODE, middle, outer], UserEnd::Complete)));
}

proptest! {
    // Most walks are short.
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn is_walked_to_an_end(
        rules in prop::collection::vec(rule(), (CODE_BYTES / ROW_BYTES) as usize),
        pc in prop_oneof![4 => CODE..CODE + CODE_BYTES, 1 => CODE..END],
        registers in prop::collection::vec(word(), COPY_REGISTERS),
        sp in prop_oneof![9 => Just(STACK), 1 => word()],
        fp in prop_oneof![(0_u64..80).prop_map(|words| STACK + words * 8), word()],
        below in prop::collection::vec(word(), COPY_BELOW / 8),
        words in prop::collection::vec(word(), 0..80),
        // Some stacks go on above what was copied.
        repeats in prop_oneof![Just(1), Just(20)],
        limit in 1..12_u32,
        or_frame_pointers in prop::bool::weighted(0.8),
    ) {
        let mut registers = registers;
        registers[usize::from(Native::SP)] = sp;
        registers[usize::from(Native::FP)] = fp;
        let stack = words.repeat(repeats);
        let words = registers.iter().chain(&below).chain(&stack).map(|word| word.to_ne_bytes());
        let words: Vec<_> = words.collect();
        let bytes = words.as_flattened();
        let copy = StackCopy::new(bytes).unwrap();
        let described = described(&rules);
        let walk = |limit| {
            let mut walker = Walker::new(limit, or_frame_pointers);
            walker.tables.insert(Key::Vdso, Some(Rc::clone(&described)));
            walk(&mut walker, &copy, pc)
        };
        let (whole, limited) = (walk(MAX_FRAMES), walk(limit));

        for (found, limit) in [(&whole, MAX_FRAMES), (&limited, limit)] {
            // Something that it went to is mapped nowhere.
            let Some((addresses, end)) = found else { continue };
            prop_assert!(addresses.len() <= limit as usize);
            prop_assert_eq!(addresses[0], pc);
            let code: RangeInclusive<u64> = CODE..=END;
            prop_assert!(addresses.iter().all(|it| code.contains(&(it & !INTERRUPTED))));
            prop_assert!(ENDS.contains(end) || (*end == UserEnd::NotLoaded && copy.is_cut()));
            prop_assert!(*end != UserEnd::Depth || addresses.len() == limit as usize);
        }
        // A limit leaves out what is beyond it, and nothing else.
        let expected = whole.map(|(mut addresses, end)| {
            let is_cut = addresses.len() > limit as usize;
            addresses.truncate(limit as usize);
            (addresses, if is_cut { UserEnd::Depth } else { end })
        });
        let is_same = limited == expected;
        let is_beyond = expected.is_none() && matches!(&limited, Some((_, UserEnd::Depth)));
        prop_assert!(is_same || is_beyond, "{limited:x?} of {expected:x?}");
    }
}
