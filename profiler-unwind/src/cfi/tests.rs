//! Call frame information that is made up, and its rows.

use super::*;
use gimli::{DebugFrame, EhFrame, Vendor};
use profiler_common::unwind::{aarch64::Aarch64, rule::Saved, x86_64::X86_64};
use proptest::prelude::*;

// Instructions, as in DWARF 5, 7.24.
const REMEMBER: u8 = 0x0a;
const RESTORE: u8 = 0x0b;
const NEGATE_RA_STATE: u8 = 0x2d;

pub(crate) fn advance(bytes: u8) -> u8 {
    0x40 | bytes
}

fn entry(id: u32, content: &[u8]) -> Vec<u8> {
    let mut content = [&id.to_le_bytes(), content].concat();
    content.resize(content.len().next_multiple_of(8) + 4, 0);
    [&u32::try_from(content.len()).unwrap().to_le_bytes()[..], &content].concat()
}

/// Factors 1 and -8, the return address in column `ra`.
pub(crate) fn cie(augmentation: &str, ra: u8, instructions: &[u8]) -> Vec<u8> {
    let mut content = vec![1];
    content.extend(augmentation.as_bytes());
    content.extend([0, 1, 0x78, ra]);
    if augmentation.starts_with('z') {
        content.push(0);
    }
    content.extend(instructions);
    entry(0, &content)
}

/// A function of the CIE that is so many bytes before.
pub(crate) fn fde(before: usize, start: u64, len: u64, instructions: &[u8]) -> Vec<u8> {
    let content = [&start.to_le_bytes(), &len.to_le_bytes(), instructions].concat();
    entry(u32::try_from(before + 4).unwrap(), &content)
}

fn x86_64(instructions: &[u8]) -> Vec<u8> {
    // CFA = rsp + 8, rip at CFA - 8
    let cie = cie("", 16, &[0x0c, 7, 8, 0x90, 1]);
    [&cie[..], &fde(cie.len(), 0x1000, 0x100, instructions)].concat()
}

fn read<A: Arch>(bytes: &[u8]) -> (Vec<(u64, u64, Rule)>, Counts) {
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_vendor(Vendor::AArch64);
    let bases = BaseAddresses::default().set_eh_frame(0x2000);
    let mut frames = Frames::<_, A>::new(section, bytes, bases, false);
    let (mut functions, mut rows) = (Vec::new(), Vec::new());
    frames.functions(|function| functions.push(function));
    for function in functions {
        frames.rows(function.at, |row| rows.push((row.start, row.end, row.rule)));
    }
    (rows, frames.counts())
}

/// The rule for all of a function, and why it is unsupported.
fn only<A: Arch>(bytes: &[u8]) -> (Rule, Option<Unsupported>) {
    let (rows, counts) = read::<A>(bytes);
    let [(0x1000, 0x1100, rule)] = rows[..] else { panic!("{rows:?}") };
    let mut why = counts.unsupported.iter().zip(Unsupported::ALL);
    (rule, why.find(|it| *it.0 > 0).map(|it| it.1.0))
}

const ENTRY: Rule = Rule { ra: Saved::AT_CFA, cfa_offset: 8, ra_words: -1, ..Rule::of(Cfa::SP) };
const BEHIND_PUSH: Rule = Rule { fp: Saved::AT_CFA, cfa_offset: 16, fp_words: -2, ..ENTRY };

#[test]
fn a_function_with_a_frame_pointer() {
    // push rbp; mov rbp, rsp; …; leave
    let bytes = x86_64(&[
        advance(1),
        0x0e,
        16,
        0x86,
        2,
        advance(3),
        0x0d,
        6,
        advance(60),
        REMEMBER,
        0x0c,
        7,
        8,
        0xc6,
        advance(1),
        RESTORE,
    ]);
    let framed = Rule { cfa: Cfa::FP, ..BEHIND_PUSH };
    let rows = [
        (0x1000, 0x1001, ENTRY),
        (0x1001, 0x1004, BEHIND_PUSH),
        (0x1004, 0x1040, framed),
        (0x1040, 0x1041, ENTRY),
        (0x1041, 0x1100, framed),
    ];
    let (found, counts) = read::<X86_64>(&bytes);
    assert_eq!(found, rows);
    assert_eq!((counts.functions, counts.malformed, counts.rows), (1, 0, 5));
}

#[test]
fn shapes_of_frames() {
    let with = |change: fn(&mut Rule)| {
        let mut rule = ENTRY;
        change(&mut rule);
        (rule, None)
    };
    // gcc's realignment: CFA = *(rbp - 8), rbp at rbp
    let realigned = x86_64(&[0x0f, 3, 0x76, 0x78, 6, 0x10, 6, 2, 0x76, 0]);
    let rule = Rule { cfa: Cfa::AT_FP, fp: Saved::AT_FP, cfa_offset: -8, ..ENTRY };
    assert_eq!(only::<X86_64>(&realigned), (rule, None));
    // OpenSSL's: CFA = *(rsp + 16) + 8
    let openssl = x86_64(&[0x0f, 5, 0x77, 16, 6, 0x23, 8]);
    let rule = Rule { cfa: Cfa::AT_SP, cfa_offset: 16, cfa_addend: 8, ..ENTRY };
    assert_eq!(only::<X86_64>(&openssl), (rule, None));
    // A large frame, its registers at the far end: rbp at CFA - 256 KiB
    let far = x86_64(&[0x86, 0x80, 0x80, 2]);
    let rule = Rule { fp: Saved::AT_CFA, fp_words: i16::MIN, ..ENTRY };
    assert_eq!(only::<X86_64>(&far), (rule, None));
    let plt = x86_64(&[0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3a, 0x2a, 0x33, 0x24, 0x22]);
    let rule = Rule { cfa: Cfa::PLT, register: 10, cfa_offset: 0, ..ENTRY };
    assert_eq!(only::<X86_64>(&plt), (rule, None));
    // glibc's vfork: the return address in rdi
    let vfork = x86_64(&[9, 16, 5]);
    let rule = Rule { ra: Saved::REGISTER, register: 5, ra_words: 0, ..ENTRY };
    assert_eq!(only::<X86_64>(&vfork), (rule, None));

    assert_eq!(only::<X86_64>(&x86_64(&[7, 16])), (Rule::of(Cfa::END), None));
    assert_eq!(only::<X86_64>(&x86_64(&[7, 6])), with(|it| it.fp = Saved::LOST));
    assert_eq!(only::<X86_64>(&x86_64(&[9, 6, 3])), with(|it| it.fp = Saved::LOST));
    assert_eq!(only::<X86_64>(&x86_64(&[0x14, 6, 2])), with(|it| it.fp = Saved::LOST));
    assert_eq!(only::<X86_64>(&x86_64(&[8, 6])), with(|_| {}));
    assert_eq!(
        only::<X86_64>(&x86_64(&[0x0d, 10])),
        with(|it| (it.cfa, it.register) = (Cfa::REGISTER, 10))
    );
}

#[test]
fn what_can_not_be_applied_has_a_reason() {
    for (instructions, why) in [
        (&[0x0f, 2, 0x73, 0, 0x0f, 1, 0x30][..], Unsupported::CfaExpression),
        (&[0x0d, 17], Unsupported::CfaRegister),
        (&[8, 16], Unsupported::ReturnAddress),
        (&[0x0e, 0xff, 0xff, 0xff, 0xff, 0x0f], Unsupported::Offset),
        (&[0x86, 0x81, 0x80, 2], Unsupported::Offset),
        (&[0x0d, 10, 9, 16, 5], Unsupported::Registers),
        (&[0x3f], Unsupported::Instructions),
        (&[RESTORE], Unsupported::Instructions),
        (&[REMEMBER; 17], Unsupported::Instructions),
    ] {
        let found = only::<X86_64>(&x86_64(instructions));
        assert_eq!(found, (Rule::of(Cfa::UNSUPPORTED), Some(why)), "{instructions:x?}");
    }
}

#[test]
fn a_signal_is_known_by_where_its_return_address_is() {
    let with = |augmentation, instructions: &[u8]| {
        let cie = cie(augmentation, 16, &[0x0c, 7, 8, 0x90, 1]);
        let instructions = [&[0][..], instructions].concat();
        [&cie[..], &fde(cie.len(), 0x1000, 0x100, &instructions)].concat()
    };
    // glibc's: CFA = *(rsp + 160), rip at rsp + 168
    let libc = [0x0f, 4, 0x77, 0xa0, 1, 6, 0x10, 16, 3, 0x77, 0xa8, 1];
    assert_eq!(only::<X86_64>(&with("zS", &libc)), (Rule::of(Cfa::SIGNAL), None));
    // OCaml marks frames of its own.
    assert_eq!(only::<X86_64>(&with("zS", &[])), (ENTRY, None));
    // At no other place.
    let other = [0x10, 16, 3, 0x77, 0xa0, 1];
    let why = Some(Unsupported::ReturnAddress);
    assert_eq!(only::<X86_64>(&with("zS", &other)), (Rule::of(Cfa::UNSUPPORTED), why));
}

#[test]
fn aarch64_has_a_link_register() {
    let cie = cie("", 30, &[0x0c, 31, 0]);
    // paciasp; stp x29, x30, [sp, #-32]!
    let instructions = [advance(4), NEGATE_RA_STATE, advance(4), 0x0e, 32, 0x9d, 4, 0x9e, 3];
    let bytes = [&cie[..], &fde(cie.len(), 0x1000, 0x100, &instructions)].concat();
    let leaf = Rule::of(Cfa::SP);
    let called = Rule {
        fp: Saved::AT_CFA,
        ra: Saved::AT_CFA,
        cfa_offset: 32,
        fp_words: -4,
        ra_words: -3,
        ..leaf
    };
    let rows = [(0x1000, 0x1004, leaf), (0x1004, 0x1008, leaf), (0x1008, 0x1100, called)];
    assert_eq!(read::<Aarch64>(&bytes).0, rows);
}

#[test]
fn rows_end_with_their_function() {
    let bytes = x86_64(&[advance(63), 0x04, 0xff, 0xff, 0xff, 0x7f, 0x0e, 16]);
    let rows = [(0x1000, 0x103f, ENTRY), (0x103f, 0x1100, ENTRY)];
    assert_eq!(read::<X86_64>(&bytes).0, rows);
}

#[test]
fn a_malformed_entry_costs_itself_only() {
    let unknown = cie("?", 16, &[]);
    let one = fde(unknown.len(), 0x5000, 0x10, &[]);
    // Its CIE is itself.
    let cyclic = entry(4, &[0; 16]);
    let good = x86_64(&[]);
    let wraps = fde(good.len(), u64::MAX, 2, &[]);
    let empty = fde(good.len() + wraps.len(), 0x3000, 0, &[]);
    let truncated = [0xff, 0, 0, 0, 1];
    let bytes = [&unknown[..], &one, &cyclic, &[0; 4], &good, &wraps, &empty, &truncated];
    let (rows, counts) = read::<X86_64>(&bytes.concat());
    assert_eq!(rows, [(0x1000, 0x1100, ENTRY)]);
    assert_eq!((counts.functions, counts.malformed), (2, 4));
}

#[test]
fn many_cies_have_a_limit() {
    let pairs = MAX_CIES + 5;
    let bytes = x86_64(&[]).repeat(pairs);
    let (rows, counts) = read::<X86_64>(&bytes);
    assert_eq!((rows.len(), counts.malformed), (MAX_CIES, 5));
}

fn any_rows<'a, S: UnwindSection<Bytes<'a>>, A: Arch>(section: S, bytes: &'a [u8]) {
    let bases = BaseAddresses::default();
    let mut frames = Frames::<_, A>::new(section, bytes, bases, false);
    let mut functions = Vec::new();
    frames.functions(|function| functions.push(function));
    for function in functions {
        let mut at = function.start;
        frames.rows(function.at, |row| {
            assert!(row.start == at && at < row.end && row.end <= function.end);
            at = row.end;
        });
        assert_eq!(at, function.end);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        any_rows::<_, X86_64>(EhFrame::new(&bytes, LittleEndian), &bytes);
        any_rows::<_, Aarch64>(DebugFrame::new(&bytes, LittleEndian), &bytes);
    }

    #[test]
    fn any_instructions_are_no_harm(
        instructions in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let bytes = x86_64(&instructions);
        any_rows::<_, X86_64>(EhFrame::new(&bytes, LittleEndian), &bytes);
        any_rows::<_, Aarch64>(EhFrame::new(&bytes, LittleEndian), &bytes);
    }
}
