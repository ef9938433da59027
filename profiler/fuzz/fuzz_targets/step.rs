//! Any rule, on any registers and memory, gives a caller above, or a reason why not.
#![no_main]

use profiler_common::unwind::{
    aarch64::Aarch64,
    rule::{Cfa, Rule, Saved},
    step::{Arch, Caller, Memory, Registers, UNSURE, step},
    x86_64::X86_64,
};

struct Words<'a>(&'a [u8]);

impl Memory for Words<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let at = usize::try_from(address).ok().filter(|at| at % 8 == 0)?;
        Some(u64::from_le_bytes(*self.0.get(at..)?.first_chunk()?))
    }

    fn register(&self, number: u8) -> Option<u64> {
        (number < 31).then_some(u64::from(number) * 8)
    }
}

libfuzzer_sys::fuzz_target!(|input: ([u8; 4], i32, [i16; 3], [u64; 4], &[u8])| {
    let ([cfa, fp, ra, register], cfa_offset, [cfa_addend, fp_words, ra_words], frame, stack) =
        input;
    let rule = Rule {
        cfa: cfa % (Cfa::UNSUPPORTED + 2),
        fp: fp % 7,
        ra: ra % 7,
        register,
        cfa_offset,
        cfa_addend,
        fp_words,
        ra_words,
        reserved: 0,
    };
    // Addresses in the stack that there is are the ones that lead somewhere.
    let bytes = stack.len().max(1) as u64;
    let near = |address: u64| if address & 1 == 0 { address % bytes } else { address };
    let [pc, sp, fp, lr] = frame;
    let frame = Registers { pc, sp: near(sp), fp: near(fp), lr };
    check::<X86_64>(&rule, frame, stack);
    check::<Aarch64>(&rule, frame, stack);
});

fn check<A: Arch>(rule: &Rule, before: Registers, stack: &[u8]) {
    let mut frame = before;
    match step::<A>(rule, &mut frame, &mut Words(stack)) {
        Ok(Caller::Called) => {
            let may_be_empty = !A::CALL_PUSHES || rule.ra == Saved::REGISTER;
            let sure = |sp: u64| if A::CALL_PUSHES { sp } else { sp & !UNSURE };
            let (above, below) = (sure(frame.sp), sure(before.sp));
            assert!(above > below || (may_be_empty && above == below));
            assert!(frame.pc != 0);
        }
        Ok(Caller::Interrupted) => assert_eq!(rule.cfa, Cfa::SIGNAL),
        Err(_) => {}
    }
}
