//! Stacks of programs by other compilers and with other C libraries are whole.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use profiler::stderr;
use serde_json::{Value, json};

use crate::{
    each_architecture::crossings::{
        assert_threads_end_where_they_were_started, is_between_registers,
    },
    every_kernel::unwinding::{
        CHAIN, Chain as _, Functions, SAMPLES, assert_chain, assert_chain_of, start, up_to,
        wait_for_tables,
    },
    support::{Program, Run, fixture, has_fixture, has_tables, is_installed, profiler, symbols},
};

/// Where musl has its dynamic linker, which programs that are not static need.
const MUSL_LOADER: &str = "/lib/ld-musl-x86_64.so.1";

fn has_musl(fixture: &str) -> bool {
    if !has_tables() || !has_fixture(fixture, "musl-gcc") {
        return false;
    }
    let has_loader = Path::new(MUSL_LOADER).exists();
    if !has_loader {
        stderr::say("skipped: musl is not installed");
    }
    has_loader
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_of_musl_is_complete() {
    for fixture in ["nofp_musl.c", "nofp_musl_static.c"] {
        if has_musl(fixture) {
            assert_chain(fixture, &[], &CHAIN);
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_thread_of_musl_ends_where_it_was_started() {
    if has_musl("threads_musl.c") {
        assert_threads_end_where_they_were_started("threads_musl.c");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn below_a_handler_of_musl_is_what_the_signal_interrupted() {
    if !has_musl("signals_musl.c") {
        return;
    }
    // The library has no symbol for what ends the signal.
    let chain = ["in_handler", "handler", "?", "interrupted", "main"];
    let program = Program::ready("signals_musl.c", &["timer"]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    assert_chain_of(&mut run, &chain, |sample| {
        if is_between_registers(sample) {
            return None;
        }
        let mut names = up_to(sample, "main");
        let innermost = &sample["user"][0];
        let is_own = innermost["module"].as_str().unwrap().ends_with("/signals_musl-c");
        if sample["kernel"] != json!([]) && !is_own {
            // The program counter is behind the system call, where another function begins.
            assert_eq!(innermost["offset"], 0, "{sample}");
            names[0] = "?".to_owned();
        }
        Some(names)
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_described_for_debuggers_only_is_complete() {
    assert_chain("nofp_debug.c", &[], &CHAIN);
}

/// The chains of a goroutine and of the main one, without what each function calls to work.
const GOROUTINES: [&[&str]; 2] = [
    &["main.inner", "main.middle", "main.outer", "main.runs", "runtime.goexit"],
    &[
        "main.inner",
        "main.middle",
        "main.outer",
        "main.inMain",
        "main.main",
        "runtime.main",
        "runtime.goexit",
    ],
];

/// Each stack that is innermost in a function of the program's own is complete and one of the chains.
fn assert_goroutines(run: &mut Run, names_of: impl Fn(&Value) -> Vec<String>) {
    wait_for_tables(run);
    let mut times: HashMap<Vec<String>, usize> = HashMap::new();
    let mut count = 0;
    // Each of the functions calls the one that works: the deepest of both chains have come, too.
    let deepest = |times: &HashMap<Vec<String>, usize>| {
        GOROUTINES.iter().all(|chain| times.keys().any(|names| chain.iter().eq(names)))
    };
    while count < SAMPLES || !deepest(&times) {
        let sample = run.sample(|_| true);
        let mut names = names_of(&sample);
        // The runtime has threads of its own, and interrupts goroutines.
        if !names[0].starts_with("main.") {
            continue;
        }
        assert_eq!(sample["user_end"], "complete", "{names:?} {sample}");
        if names[0] == "main.work" {
            names.remove(0);
        }
        let is_known = GOROUTINES.iter().any(|chain| chain.ends_with_names(&names));
        assert!(is_known && names.len() > 1, "{names:?} {sample}");
        *times.entry(names).or_default() += 1;
        count += 1;
    }
}

/// Of a program, and of one that is loaded anywhere.
const GO_PROGRAMS: [&str; 2] = ["chain.go", "chain_pie.go"];

#[test]
#[ignore = "needs root: cargo xtask test"]
fn goroutines_are_complete() {
    for fixture in GO_PROGRAMS {
        if !has_tables() || !has_fixture(fixture, "go") {
            return;
        }
        let program = Program::ready(fixture, &[]);
        let mut run = start(&program, &["--user-only"]);
        assert_goroutines(&mut run, |sample| {
            let names = symbols(&sample["user"]).into_iter();
            names.map(|it| it.trim_end_matches(".abi0").to_owned()).collect()
        });
    }
}

/// A copy of a program that is left with nothing but what it needs to run; `None`, and said, where it
/// can't be made.
fn stripped(fixture_name: &str, dir: &Path) -> Option<PathBuf> {
    let stripped = dir.join("stripped-go");
    let mut strip = Command::new("strip");
    strip.arg("--strip-all").arg("-o").arg(&stripped).arg(fixture(fixture_name));
    match strip.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => {
            stderr::say("skipped: strip is not installed");
            return None;
        }
    }
    Some(stripped)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn goroutines_of_a_stripped_program_are_the_same() {
    for name in GO_PROGRAMS {
        if !has_tables() || !has_fixture(name, "go") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let Some(stripped) = stripped(name, dir.path()) else { return };
        let functions = Functions::of(name);
        let mut command = Command::new(&stripped);
        let mut program = Program(command.stdout(Stdio::piped()).spawn().unwrap());
        std::io::Read::read_exact(program.0.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let mut run = start(&program, &["--user-only"]);
        assert_goroutines(&mut run, |sample| {
            let frames = sample["user"].as_array().unwrap().iter().enumerate();
            let names = frames.map(|(depth, frame)| {
                let offset = frame["offset"].as_u64().unwrap();
                functions.at(if depth == 0 { offset } else { offset - 1 })
            });
            names.map(|it| it.trim_end_matches(".abi0").to_owned()).collect()
        });
    }
}

/// What is said of a table that a Go to come has made. Its runtime would not run with another's, so it is
/// put into a program of C.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_go_that_is_not_known_is_said_once() {
    if !has_tables() || !is_installed("objcopy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (table, path) = (dir.path().join("table"), dir.path().join("newer-go"));
    let smallest = if cfg!(target_arch = "aarch64") { 4 } else { 1 };
    fs::write(&table, [&[0xf2, 0xff, 0xff, 0xff, 0, 0, smallest, 8][..], &[0; 64]].concat())
        .unwrap();
    let mut copy = Command::new("objcopy");
    copy.arg("--add-section").arg(format!(".gopclntab={}", table.display()));
    assert!(copy.arg(fixture("nofp.c")).arg(&path).status().unwrap().success());
    let other = dir.path().join("another-newer-go");
    fs::copy(&path, &other).unwrap();

    let shown = profiler().arg("unwind-info").arg(&path).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("not read    .gopclntab"), "{shown}");

    let programs = [&path, &other].map(|path| {
        let mut command = Command::new(path);
        Program(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    });
    let mut run = Run::start(&["-f", "json", "--user-only"]);
    for program in &programs {
        let pid = program.0.id();
        run.sample(|it| it["pid"] == pid && it["user_end"] == "complete");
    }
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.stderr.matches("(.gopclntab)").count(), 1, "{}", ended.stderr);
}
