//! A test: files that say more than anyone should read, and one that is truncated while it is read.

use std::{cell::Cell, os::unix::fs::FileExt as _};

use super::*;
use crate::{
    cfi::{self, Function, Row, Unsupported, tests as entries},
    section::Describes,
};
use profiler_common::unwind::rule::Cfa;
use profiler_elf::Pieces;
use profiler_testing::{skipped, vdso};

/// A program for x86-64 with this `.eh_frame`, all of which is code. It has no section headers.
fn program(eh_frame: &[u8]) -> Vec<u8> {
    const HEADER_AT: u64 = 64 + 2 * 56;
    const EH_FRAME_AT: u64 = HEADER_AT + 16;
    let bytes = EH_FRAME_AT + eh_frame.len() as u64 + 4;
    // PT_LOAD and PT_GNU_EH_FRAME
    let segments = [(1, 0, bytes), (0x6474_e550, HEADER_AT, 16)];
    let mut elf = profiler_testing::elf::headers(&segments);
    // Its version; the address of what follows in eight bytes, and no table for searching.
    elf.extend([1, 4, 0xff, 0xff]);
    elf.extend(EH_FRAME_AT.to_le_bytes());
    elf.extend([0; 4]);
    elf.extend(eh_frame);
    elf.extend([0; 4]);
    elf
}

/// The first address of code: there is none at zero.
const START: u64 = 16;

fn file(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn of_file(bytes: &[u8]) -> Result<Table, NoTable> {
    Table::of_any_file(&file(bytes), None, &mut Rules::new())
}

#[test]
fn a_function_with_too_many_rows_ends_unsupported() {
    let most = usize::try_from(cfi::MAX_ROWS).unwrap();
    // CFA = rsp + 8, rip at CFA - 8; and from each byte on the same.
    let cie = entries::cie("", 16, &[0x0c, 7, 8, 0x90, 1]);
    let rows = vec![entries::advance(1); most + 100];
    let fde = entries::fde(cie.len(), START, cfi::MAX_ROWS + 50, &rows);
    let file = file(&program(&[cie, fde].concat()));
    let mut rules = Rules::new();
    let table = Table::of_any_file(&file, None, &mut rules).unwrap();

    let rule_at = |at| rules.get(table.find(START + at).unwrap()).unwrap().cfa;
    assert_eq!(rule_at(0), Cfa::SP);
    assert_eq!(rule_at(cfi::MAX_ROWS - 1), Cfa::SP);
    assert_eq!(rule_at(cfi::MAX_ROWS), Cfa::UNSUPPORTED);
    assert_eq!(rule_at(cfi::MAX_ROWS + 49), Cfa::UNSUPPORTED);
    let counts = table.facts().counts;
    assert_eq!(counts.unsupported[Unsupported::Instructions as usize], 1);
    assert_eq!((counts.functions, counts.rows), (1, cfi::MAX_ROWS + 1));
}

/// So many functions of so many rows each.
struct Many {
    functions: u32,
    rows: u64,
    /// Functions whose rows were told.
    told: u32,
}

const FUNCTION_BYTES: u64 = 16;

fn start(at: u32) -> u64 {
    START + u64::from(at) * FUNCTION_BYTES
}

impl Describes for &mut Many {
    fn functions(&mut self, tell: &mut dyn FnMut(Function)) {
        for at in 0..self.functions {
            let start = start(at);
            tell(Function { start, end: start + FUNCTION_BYTES, at });
        }
    }

    fn rows(&mut self, at: u32, tell: &mut dyn FnMut(Row)) {
        self.told += 1;
        let start = start(at);
        let row = Row { start, end: start + 1, rule: Rule::of(Cfa::SP) };
        for _ in 0..self.rows {
            tell(row);
        }
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }
}

/// The table of these, and how many functions had to tell their rows for it.
fn table_of(functions: u32, rows: u64) -> (Result<u64, NoTable>, u32) {
    let mut many = Many { functions, rows, told: 0 };
    let code = Code::of(0..start(functions), 0);
    let built = build(&mut [Box::new(&mut many)], &code, |_| Vec::new(), &mut Rules::new());
    (built.map(|(_, _, packed)| packed.given), many.told)
}

#[test]
fn a_file_with_too_many_rows_has_no_table() {
    let (each, whole) = (MAX_ROWS / 16, 16);
    assert_eq!(table_of(whole + 100, each), (Err(NoTable::TooLarge), whole + 1));
}

#[test]
fn a_file_with_too_many_functions_has_no_table() {
    let most = u32::try_from(MAX_FUNCTIONS).unwrap();
    assert_eq!(table_of(most + 1, 1), (Err(NoTable::TooLarge), 0));
    // As many as there may be, which say nothing.
    assert_eq!(table_of(most, 0).1, most);
    assert_eq!(table_of(1000, 2), (Ok(2000), 1000));
}

/// A file that is truncated to nothing after so many reads.
#[derive(Clone, Copy)]
struct Shrinking<'a, 'f> {
    data: Pieces<'a>,
    file: &'f File,
    reads_left: &'f Cell<u32>,
}

impl Shrinking<'_, '_> {
    fn shrink(self) {
        let left = self.reads_left.get();
        if left == 0 {
            self.file.set_len(0).unwrap();
        }
        self.reads_left.set(left.saturating_sub(1));
    }
}

impl<'a> ReadRef<'a> for Shrinking<'a, '_> {
    fn len(self) -> Result<u64, ()> {
        self.data.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.shrink();
        self.data.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.shrink();
        self.data.read_bytes_at_until(range, delimiter)
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_has_a_reason() {
    let Some(bytes) = vdso() else { return skipped("there is no vDSO") };
    let whole = of_file(&bytes).unwrap();
    if whole.facts().places.is_empty() {
        return skipped("the vDSO says nothing of its frames");
    }
    let mut reasons = Vec::new();
    for reads in 0.. {
        let (file, reads_left) = (file(&bytes), Cell::new(reads));
        let made = profiler_elf::read_within(&file, MAX_BYTES, |data| {
            let data = Shrinking { data, file: &file, reads_left: &reads_left };
            Table::of_data(data, None, &mut Rules::new())
        });
        match made {
            Ok(table) if file.metadata().unwrap().len() > 0 => {
                assert_eq!(table.chunks(), whole.chunks());
                break;
            }
            // What was read last is not needed.
            Ok(table) => assert_eq!(table.facts().places, whole.facts().places),
            Err(why) => reasons.push(why),
        }
    }
    // First it looks what kind of file it is. What can't be read is not taken for what says nothing.
    assert_eq!(reasons[0], NoTable::NotElf);
    assert!(reasons[1..].iter().all(|why| *why == NoTable::Unreadable), "{reasons:?}");
}
