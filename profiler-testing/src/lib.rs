//! What the tests of several crates share. Only tests depend on this crate.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)]

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
};

pub mod elf;

/// A script that strips a program as Fedora does, with the names of its functions in `.gnu_debugdata`.
pub const MINIDEBUGINFO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/minidebuginfo.sh");

/// Says that a test could not check all it should, and why: `cargo xtask test` counts such lines.
pub fn skipped(why: &str) {
    // Not by `eprintln`, which the test harness keeps to itself.
    let _ = writeln!(io::stderr(), "skipped: {why}");
}

/// The vDSO, a small ELF file that the kernel maps into every process; `None` where there is none.
#[must_use]
pub fn vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let [start, end] = [start, end].map(|it| u64::from_str_radix(it, 16).unwrap());
    let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
    let memory = File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut bytes, start).unwrap();
    Some(bytes)
}
