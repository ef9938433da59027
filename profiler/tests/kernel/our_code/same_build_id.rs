//! Files with the same build id and different content have their own names and their own tables.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use object::{Object as _, ObjectSymbol as _};
use profiler::stderr;
use serde_json::Value;

use crate::{
    every_kernel::unwinding::{CHAIN, is_by_tables, up_to},
    support::{Program, Run, fixture, has_tables, is_installed, symbols},
};

/// Whole stacks of each program that have to be right.
const SAMPLES: usize = 100;

fn copy(from: &str, to: &Path) -> PathBuf {
    fs::copy(fixture(from), to).unwrap();
    to.to_owned()
}

fn ready(path: &Path) -> Program {
    let mut command = Command::new(path);
    let mut program = Program(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    program.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    program
}

fn build_id(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    object::File::parse(&*bytes).unwrap().build_id().unwrap().unwrap().to_vec()
}

/// Samples the programs together: first a whole stack of each by its table, then each stack of all has to be
/// an end of its own chain.
fn assert_own_names(programs: &[(&Program, [&str; 4])]) {
    let pids: Vec<String> = programs.iter().map(|(program, _)| program.pid()).collect();
    let pids = pids.iter().flat_map(|pid| ["-p", pid]);
    let arguments = ["-f", "json", "-F", "997", "--user-only"];
    let mut run = Run::start(&arguments.into_iter().chain(pids).collect::<Vec<_>>());
    let is_of = |it: &Value, program: &Program| it["pid"] == program.0.id();
    for (program, chain) in programs {
        run.sample(|it| {
            is_of(it, program) && is_by_tables(it) && symbols(&it["user"]).starts_with(chain)
        });
    }
    let mut seen = vec![0; programs.len()];
    while seen.iter().any(|&count| count < SAMPLES) {
        let sample = run.sample(|_| true);
        let at = programs.iter().position(|(program, _)| is_of(&sample, program)).unwrap();
        assert_eq!(sample["user_end"], "complete", "{sample}");
        let names = up_to(&sample, "main");
        let chain = programs[at].1;
        assert!(chain.ends_with(&names.iter().map(String::as_str).collect::<Vec<_>>()), "{sample}");
        seen[at] += 1;
    }
}

/// The names of the stripped one are those of the other: its code is the same.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stripped_program_beside_the_one_with_symbols() {
    if !has_tables() || !is_installed("strip") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let whole = copy("nofp.c", &dir.path().join("whole"));
    let stripped = dir.path().join("stripped");
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(&whole).status();
    assert!(strip.unwrap().success());
    assert_eq!(build_id(&whole), build_id(&stripped));
    // The one without names is there first.
    let (stripped, whole) = (ready(&stripped), ready(&whole));
    assert_own_names(&[(&stripped, CHAIN), (&whole, CHAIN)]);
}

/// As `patchelf` and other tools do, which leave the build id alone.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_whose_code_was_moved_beside_the_original() {
    if cfg!(not(target_arch = "x86_64")) {
        return stderr::say("skipped: the file's headers are in one segment with its code here");
    }
    if !has_tables() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let original = copy("nofp.c", &dir.path().join("original"));
    let moved = dir.path().join("moved");
    fs::write(&moved, with_code_moved(&fs::read(&original).unwrap())).unwrap();
    fs::set_permissions(&moved, fs::metadata(&original).unwrap().permissions()).unwrap();
    assert_eq!(build_id(&original), build_id(&moved));
    let (original, moved) = (ready(&original), ready(&moved));
    assert_own_names(&[(&original, CHAIN), (&moved, CHAIN)]);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn two_programs_that_were_given_one_build_id() {
    if !has_tables() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let one = copy("nofp.c", &dir.path().join("one"));
    let other = copy("nofp_swapped.c", &dir.path().join("other"));
    // As a linker does with `--build-id=0x…`.
    let (id, theirs) = (build_id(&one), build_id(&other));
    let mut bytes = fs::read(&other).unwrap();
    let at = bytes.windows(theirs.len()).position(|it| it == theirs).unwrap();
    bytes[at..at + id.len()].copy_from_slice(&id);
    fs::write(&other, bytes).unwrap();
    assert_eq!(build_id(&other), id);
    let functions = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let inner = file.symbols().find(|it| it.name() == Ok("inner")).unwrap();
        inner.address()
    };
    assert_ne!(functions(&one), functions(&other), "their functions are at different places");
    let (one, other) = (ready(&one), ready(&other));
    assert_own_names(&[(&one, CHAIN), (&other, ["middle", "inner", "outer", "main"])]);
}

/// The same program with more room in the file before its code, and all that refers to it corrected.
fn with_code_moved(elf: &[u8]) -> Vec<u8> {
    const ROOM: u64 = 64 << 10;
    const SEGMENT_BYTES: usize = 56;
    const SECTION_BYTES: usize = 64;
    let u16_at = |at: usize| usize::from(u16::from_le_bytes(elf[at..at + 2].try_into().unwrap()));
    let u64_at = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap());
    let (segments, sections) = (u64_at(32), u64_at(40));
    let tables =
        [(segments, SEGMENT_BYTES, u16_at(56), 8), (sections, SECTION_BYTES, u16_at(60), 24)];
    let is_code = |at: usize| elf[at] == 1 && elf[at + 4] & 1 != 0;
    let first_segment = usize::try_from(segments).unwrap();
    let mut headers = (0..u16_at(56)).map(|number| first_segment + number * SEGMENT_BYTES);
    let code = u64_at(headers.find(|&at| is_code(at)).unwrap() + 8);
    let moved_to = |offset: u64| if offset < code { offset } else { offset + ROOM };
    let mut moved = elf.to_vec();
    moved[40..48].copy_from_slice(&moved_to(sections).to_le_bytes());
    for (start, bytes, count, field) in tables {
        for number in 0..count {
            let at = usize::try_from(start).unwrap() + number * bytes + field;
            moved[at..at + 8].copy_from_slice(&moved_to(u64_at(at)).to_le_bytes());
        }
    }
    let code = usize::try_from(code).unwrap();
    let room = vec![0; usize::try_from(ROOM).unwrap()];
    moved.splice(code..code, room);
    moved
}
