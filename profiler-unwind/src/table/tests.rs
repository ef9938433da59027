//! Tables of real files, damaged ones and such as have none.

use super::{build::placed, *};
use crate::{
    cfi::tests::{cie, fde},
    section::Section,
    source::Place,
};
use gimli::BaseAddresses;
use object::{Object as _, ObjectSection as _};
use profiler_common::unwind::rule::Cfa;
use profiler_testing::{skipped, vdso};
use proptest::prelude::*;
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

fn of(bytes: &[u8]) -> Result<Table, NoTable> {
    Table::of_vdso(bytes, &mut Rules::new())
}

#[test]
fn what_linkers_have_dropped_describes_nothing() {
    let cie = cie("", 16, &[0x0c, 7, 8, 0x90, 1]);
    let mut bytes = cie;
    for start in [0, 0x1000] {
        bytes.extend(fde(bytes.len(), start, 0x100, &[]));
    }
    let (bases, bytes) = (BaseAddresses::default(), bytes.into());
    let section = Section { place: Place::EhFrame, bytes, bases };
    let mut described = vec![section.read::<X86_64>(Vendor::Default).unwrap()];
    let placed = placed(&mut described, &Code::of(0..0x2000, 0)).unwrap();
    assert_eq!(
        placed.iter().map(|it| (it.offset, it.bytes)).collect::<Vec<_>>(),
        [(0x1000, 0x100)]
    );
}

/// Our vDSO with other bytes at some places of its header.
fn changed(changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vdso().unwrap_or_else(|| vec![0; 64]);
    for (at, change) in changes {
        bytes[*at..][..change.len()].copy_from_slice(change);
    }
    bytes
}

#[test]
fn without_section_headers_it_is_the_same() {
    let Some(bytes) = vdso() else { return skipped("there is no vDSO") };
    // e_shoff; e_shentsize, e_shnum, e_shstrndx
    let without = changed(&[(40, &[0; 8]), (58, &[0; 6])]);
    let (table, same) = (of(&bytes).unwrap(), of(&without).unwrap());
    if table.facts().places.is_empty() {
        return skipped("the vDSO says nothing of its frames");
    }
    assert_eq!(same.facts().places[0].0, Place::EhFrameHdr);
    assert_eq!(table.chunks(), same.chunks());
}

#[test]
fn the_stubs_of_this_program_have_rules() {
    let file = File::open("/proc/self/exe").unwrap();
    let bytes = std::fs::read("/proc/self/exe").unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let Some(plt) = elf.section_by_name(".plt") else {
        return skipped("it has no stubs");
    };
    let mut rules = Rules::new();
    let table = Table::of_file(&file, &mut rules).unwrap();
    let (start, bytes) = plt.file_range().unwrap();
    for offset in start..start + bytes {
        let rule = rules.get(table.find(offset).unwrap()).unwrap();
        assert!([Cfa::SP, Cfa::PLT].contains(&rule.cfa), "{offset:#x}: {rule:?}");
    }
}

/// A program of which only debuggers are told, with that compressed in a way.
fn for_debuggers(dir: &Path, compression: &str) -> Option<File> {
    let (plain, program) = (dir.join("plain"), dir.join(compression));
    if !plain.exists() {
        let source = dir.join("source.c");
        fs::write(&source, "int f(int x) { return x * 3; } int main(void) { return f(1); }")
            .unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-g", "-O0", "-fomit-frame-pointer", "-fno-asynchronous-unwind-tables"]);
        gcc.arg("-gz=none").arg("-o").arg(&plain).arg(source);
        assert!(gcc.status().unwrap().success());
    }
    let mut objcopy = Command::new("objcopy");
    objcopy.arg(format!("--compress-debug-sections={compression}")).arg(&plain).arg(&program);
    let is_known = objcopy.stderr(Stdio::null()).status().unwrap().success();
    is_known.then(|| File::open(program).unwrap())
}

#[test]
fn what_debuggers_are_told_may_be_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let of = |compression| {
        let file = for_debuggers(dir.path(), compression);
        if file.is_none() {
            skipped(&format!("objcopy does not know {compression}"));
        }
        Table::of_file(&file?, &mut Rules::new()).ok()
    };
    let plain = of("none").unwrap();
    let places: Vec<_> = plain.facts().places.iter().map(|it| it.0).collect();
    assert_eq!(places, [Place::EhFrame, Place::DebugFrame]);
    for table in ["zlib", "zlib-gnu", "zstd"].into_iter().filter_map(of) {
        assert_eq!(table.facts().places, plain.facts().places);
        // Where its code is in the file is the same, too.
        assert_eq!(table.chunks(), plain.chunks());
    }
}

#[test]
fn what_has_no_table_has_a_reason() {
    if vdso().is_none() {
        return skipped("there is no vDSO");
    }
    let other = if Machine::NATIVE == Machine::X86_64 { 183 } else { 62 };
    for (changes, why) in [
        (&[(0, &b"elf"[..])][..], NoTable::NotElf),
        (&[(4, &[1])], NoTable::Bits32),
        (&[(5, &[2])], NoTable::Machine),
        (&[(16, &[1, 0])], NoTable::NotLinked), // e_type
        (&[(18, &[8, 0])], NoTable::Machine),
        (&[(18, &[other, 0])], NoTable::Machine),
        (&[(32, &[0xff; 7])], NoTable::Unreadable), // e_phoff
        (&[(56, &[0, 0])], NoTable::NoInfo),        // e_phnum
    ] {
        assert_eq!(of(&changed(changes)).unwrap_err(), why, "{changes:?}");
    }
    assert_eq!(of(&[]).unwrap_err(), NoTable::NotElf);
    assert_eq!(of(b"\x7fELF").unwrap_err(), NoTable::Unreadable);
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_no_harm() {
    let Some(bytes) = vdso() else { return skipped("there is no vDSO") };
    for len in 0..bytes.len() {
        let _ = of(&bytes[..len]);
    }
}

proptest! {
    #[test]
    fn a_damaged_file_is_no_harm(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        in_header in any::<bool>(),
    ) {
        let mut bytes = changed(&[]);
        let len = if in_header { 64 + 56 * 4 } else { bytes.len() }.min(bytes.len());
        for (at, byte) in damage {
            bytes[at.index(len)] = byte;
        }
        let _ = of(&bytes);
    }
}
