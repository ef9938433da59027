//! A test: what a step by our rules finds is what DWARF says, for the programs and libraries of this
//! machine.
//!
//! DWARF is asked by gimli's `UnwindTable`, which our rows are not made with, and evaluated here, all
//! expressions included. Memory is made up: a word depends on its address, so that reading another
//! one is seen.
#![allow(clippy::print_stdout)] // shown with --nocapture

use std::{fs::File, path::Path};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, Encoding, EndianSlice, EvaluationResult, Expression,
    LittleEndian, Location, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection,
    UnwindTableRow, Value, Vendor,
};
use object::{Endianness, Object as _, ObjectSection as _, read::elf::ElfFile64};
use profiler_common::unwind::{
    aarch64::Aarch64,
    rule::{Cfa, Saved},
    step::{Arch, Caller, Memory, Registers, Stop, step},
    x86_64::X86_64,
};
use profiler_testing::{skipped, vdso};

use crate::{
    Rules, Table,
    cfi::expression::{Shape, shape},
    source::Machine,
};

const FILES: [&str; 12] = [
    "/proc/self/exe",
    "/usr/bin/python3",
    "/usr/bin/node",
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/lib/aarch64-linux-gnu/libc.so.6",
    "/lib/aarch64-linux-gnu/libcrypto.so.3",
    "/lib/aarch64-linux-gnu/libstdc++.so.6",
    "/usr/aarch64-linux-gnu/lib/libc.so.6",
    "/usr/aarch64-linux-gnu/lib/libgcc_s.so.1",
    "/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1",
];

/// Made-up registers and memory.
#[derive(Clone, Copy)]
struct Process {
    seed: u64,
    stack: u64,
}

impl Process {
    fn mix(self, of: u64) -> u64 {
        let mixed = (of ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
    }

    /// An address above the stack pointer, so that it can be a CFA.
    fn above(self, of: u64) -> u64 {
        self.stack + 0x1_0000 + (self.mix(of) & 0xf_fff8)
    }

    fn of_register<A: Arch>(self, number: u16, pc: u64) -> u64 {
        match number {
            _ if number == A::SP => self.stack,
            // x86-64 has the program counter in this column.
            _ if number == A::RA && A::CALL_PUSHES => pc,
            _ => self.above(number.into()),
        }
    }
}

impl Memory for Process {
    fn word(&mut self, address: u64) -> Option<u64> {
        address.is_multiple_of(8).then(|| self.above(address))
    }

    fn register(&self, number: u8) -> Option<u64> {
        Some(self.above(number.into()))
    }
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// What DWARF says of a frame, evaluated.
struct Dwarf<'s, 'a, A> {
    section: &'s EhFrame<Bytes<'a>>,
    encoding: Encoding,
    process: Process,
    pc: u64,
    arch: std::marker::PhantomData<A>,
}

/// The caller's registers, as far as they are known; its return address is undefined in the outermost
/// frame.
#[derive(Debug, PartialEq)]
struct Evaluated {
    cfa: Option<u64>,
    pc: Option<u64>,
    fp: Option<u64>,
    outermost: bool,
}

impl<A: Arch> Dwarf<'_, '_, A> {
    fn caller(&self, row: &UnwindTableRow<usize>, ra: Register) -> Evaluated {
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                Some(self.register(*register).wrapping_add_signed(*offset))
            }
            CfaRule::Expression(expression) => self.expression(expression, None),
        };
        let saved = |register| {
            let cfa = cfa?;
            match row.register(register) {
                None | Some(RegisterRule::SameValue) => Some(self.register(register)),
                Some(RegisterRule::Offset(offset)) => self.word(cfa.wrapping_add_signed(offset)),
                Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(offset)),
                Some(RegisterRule::Register(register)) => Some(self.register(register)),
                Some(RegisterRule::Expression(expression)) => {
                    self.word(self.expression(&expression, Some(cfa))?)
                }
                Some(RegisterRule::ValExpression(expression)) => {
                    self.expression(&expression, Some(cfa))
                }
                _ => None,
            }
        };
        Evaluated {
            cfa,
            pc: saved(ra).map(A::code_address),
            fp: saved(Register(A::FP)),
            outermost: row.register(ra) == Some(RegisterRule::Undefined),
        }
    }

    /// Whether the frame pointer is what it was, or saved where a rule can say.
    fn tells_fp(&self, row: &UnwindTableRow<usize>) -> bool {
        match row.register(Register(A::FP)) {
            None | Some(RegisterRule::SameValue | RegisterRule::Offset(_)) => true,
            Some(RegisterRule::Expression(it)) => {
                let shape = it.get(self.section).ok().and_then(|it| shape(it, self.encoding));
                matches!(shape, Some(Shape::Register { register, .. })
                    if [A::SP, A::FP].contains(&register))
            }
            _ => false,
        }
    }

    fn register(&self, register: Register) -> u64 {
        self.process.of_register::<A>(register.0, self.pc)
    }

    fn word(&self, address: u64) -> Option<u64> {
        { self.process }.word(address)
    }

    fn expression(&self, expression: &UnwindExpression<usize>, cfa: Option<u64>) -> Option<u64> {
        let expression: Expression<Bytes<'_>> = expression.get(self.section).ok()?;
        let mut evaluation = expression.evaluation(self.encoding);
        if let Some(cfa) = cfa {
            evaluation.set_initial_value(cfa);
        }
        let mut result = evaluation.evaluate().ok()?;
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = Value::Generic(self.register(register));
                    evaluation.resume_with_register(value).ok()?
                }
                EvaluationResult::RequiresMemory { address, .. } => {
                    let value = Value::Generic(self.word(address)?);
                    evaluation.resume_with_memory(value).ok()?
                }
                _ => return None,
            };
        }
        match evaluation.result()[..] {
            [gimli::Piece { location: Location::Address { address }, .. }] => Some(address),
            _ => None,
        }
    }
}

/// Whether the frame is where compilers have nearly all: the CFA by the stack or frame pointer, the return
/// address below it, or in the link register.
fn is_plain<A: Arch>(row: &UnwindTableRow<usize>, ra: Register) -> bool {
    let CfaRule::RegisterAndOffset { register, .. } = row.cfa() else { return false };
    [A::SP, A::FP].contains(&register.0)
        && match row.register(ra) {
            Some(RegisterRule::Offset(_)) => true,
            None | Some(RegisterRule::SameValue) => !A::CALL_PUSHES,
            _ => false,
        }
}

/// What was compared in a file.
#[derive(Debug, Default)]
struct Compared {
    rows: u64,
    signals: u64,
    ends: u64,
    unsupported: u64,
    lost_fp: u64,
    unreadable: u64,
}

fn compare<A: Arch>(path: &Path, table: &Table, rules: &Rules) -> Compared {
    let bytes = std::fs::read(path).unwrap();
    let elf = ElfFile64::<Endianness, _>::parse(&*bytes).unwrap();
    let section = elf.section_by_name(".eh_frame").unwrap();
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut eh_frame = EhFrame::new(section.data().unwrap(), LittleEndian);
    eh_frame.set_address_size(8);
    eh_frame.set_vendor(if A::CALL_PUSHES { Vendor::Default } else { Vendor::AArch64 });

    let mut compared = Compared::default();
    let mut context = UnwindContext::new();
    let mut entries = eh_frame.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(entry) = entry else { continue };
        let entry = entry.parse(EhFrame::cie_from_offset).unwrap();
        let ra = entry.cie().return_address_register();
        let mut rows = entry.rows(&eh_frame, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            for pc in [row.start_address(), row.end_address().wrapping_sub(1)] {
                // The rows of an empty function, too, have a begin.
                if !row.contains(pc) {
                    continue;
                }
                for seed in [1, pc] {
                    let dwarf = Dwarf::<A> {
                        section: &eh_frame,
                        encoding: entry.cie().encoding(),
                        process: Process { seed, stack: 0x7ffe_0000_0000 },
                        pc,
                        arch: std::marker::PhantomData,
                    };
                    compare_at::<A>(&dwarf, row, ra, (table, rules), &mut compared);
                }
            }
            compared.rows += 1;
        }
    }
    compared
}

fn compare_at<A: Arch>(
    dwarf: &Dwarf<'_, '_, A>,
    row: &UnwindTableRow<usize>,
    ra: Register,
    (table, rules): (&Table, &Rules),
    compared: &mut Compared,
) {
    let Dwarf { mut process, pc, .. } = *dwarf;
    let offset = table.facts().code.offset(pc).unwrap();
    let rule = *rules.get(table.find(offset).unwrap()).unwrap();
    let of = |register| process.of_register::<A>(register, pc);
    let lr = if A::CALL_PUSHES { 0 } else { of(A::RA) };
    let mut frame = Registers { pc, sp: of(A::SP), fp: of(A::FP), lr };
    let expected = dwarf.caller(row, ra);
    let what = || format!("at {pc:#x}: {rule:?} in place of {row:?}, {expected:x?}");

    let result = step::<A>(&rule, &mut frame, &mut process);
    match result {
        _ if rule.cfa == Cfa::UNKNOWN => panic!("{}", what()),
        Ok(came) => {
            compared.signals += u64::from(came == Caller::Interrupted);
            assert_eq!(Some(frame.pc), expected.pc, "{}", what());
            assert_eq!(Some(frame.sp), expected.cfa, "{}", what());
            if rule.fp == Saved::LOST {
                assert!(!dwarf.tells_fp(row), "{}", what());
                compared.lost_fp += 1;
            } else {
                assert_eq!(Some(frame.fp), expected.fp, "{}", what());
            }
        }
        Err(Stop::Complete) => {
            compared.ends += 1;
            assert!(expected.outermost, "{}", what());
        }
        Err(Stop::Unsupported) => {
            assert!(!is_plain::<A>(row, ra), "{}", what());
            compared.unsupported += 1;
        }
        Err(Stop::Unreadable) => {
            compared.unreadable += 1;
            // As glibc's dynamic linker has it in a place: no caller's frame can be there.
            assert!(expected.cfa.is_none_or(|cfa| cfa < process.stack), "{}", what());
        }
    }
}

#[test]
fn our_rules_say_what_dwarf_says() {
    let mut files = 0;
    for path in FILES.map(Path::new) {
        let Ok(file) = File::open(path) else {
            skipped(&format!("{} is not installed", path.display()));
            continue;
        };
        let mut rules = Rules::new();
        let table = Table::of_any_file(&file, None, &mut rules).unwrap();
        let compared = match table.facts().machine {
            Machine::X86_64 => compare::<X86_64>(path, &table, &rules),
            Machine::Aarch64 => compare::<Aarch64>(path, &table, &rules),
        };
        println!("{}: {compared:?}", path.display());
        // OpenSSL's assembly has some; compilers have none.
        assert!(compared.unsupported * 1000 <= compared.rows, "{}", path.display());
        files += 1;
    }
    assert!(files > 0);
}

#[test]
fn the_vdso_has_a_table() {
    let Some(bytes) = vdso() else { return skipped("there is no vDSO") };
    let table = Table::of_vdso(&bytes, &mut Rules::new()).unwrap();
    let facts = table.facts();
    let is_described = facts.counts.functions > 0 || facts.places.is_empty();
    assert!(is_described && facts.packed.rows > 0, "{facts:?}");
    assert_eq!(facts.counts.malformed, 0);
}
