//! Any bytes are call frame information, of either kind and machine, whose rows are in order, within
//! what their function covers, and not more than there are bytes to say them.
#![no_main]

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian, UnwindSection};
use profiler_common::unwind::{aarch64::Aarch64, step::Arch, x86_64::X86_64};
use profiler_unwind::cfi::{Bytes, Frames};

libfuzzer_sys::fuzz_target!(|input: (bool, bool, &[u8])| {
    let (is_debug, is_arm, bytes) = input;
    let (eh, debug) = (EhFrame::new(bytes, LittleEndian), DebugFrame::new(bytes, LittleEndian));
    match (is_debug, is_arm) {
        (false, false) => read::<_, X86_64>(eh, bytes),
        (false, true) => read::<_, Aarch64>(eh, bytes),
        (true, false) => read::<_, X86_64>(debug, bytes),
        (true, true) => read::<_, Aarch64>(debug, bytes),
    }
});

fn read<'a, S: UnwindSection<Bytes<'a>>, A: Arch>(section: S, bytes: &'a [u8]) {
    let bases = BaseAddresses::default().set_eh_frame(0x1000).set_text(0x10).set_got(0x20);
    let mut frames = Frames::<_, A>::new(section, bytes, bases, false);
    let mut functions = Vec::new();
    frames.functions(|function| functions.push(function));
    assert_eq!(frames.counts().functions, functions.len() as u64);
    assert!(functions.len() <= bytes.len() / 8);
    for function in functions {
        let mut at = function.start;
        frames.rows(function.at, |row| {
            assert!(row.start == at && row.start < row.end && row.end <= function.end);
            at = row.end;
        });
        assert_eq!(at, function.end.max(function.start));
    }
    assert!(frames.counts().rows <= bytes.len() as u64);
}
