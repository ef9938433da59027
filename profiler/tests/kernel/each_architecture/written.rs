//! Code in files that are written to while they are mapped.

use std::{fs, os::unix::fs::FileExt as _, process::Command};

use serde_json::Value;

use crate::{
    every_kernel::unwinding::{SAMPLES, is_by_tables, start, up_to},
    support::{Program, Run, fixture, has_tables, parse_json, symbols},
};

/// Each stack goes on through the code in the file, and none is copied for it after the first ones.
fn assert_is_crossed(arguments: &[&str], reason: &str) {
    if !has_tables() {
        return;
    }
    let program = Program::ready("jitframes_file.c", arguments);
    let mut run = start(&program, &["--user-only"]);
    let is_wanted = |it: &Value| it["user"][0]["symbol"] == "called_back";
    run.sample(|it| is_wanted(it) && is_by_tables(it));
    for _ in 0..SAMPLES {
        let sample = run.sample(is_wanted);
        assert!(is_by_tables(&sample), "{sample}");
        assert_eq!(up_to(&sample, "main"), ["called_back", "?", "runs", "main"], "{sample}");
    }
    let ended = run.end_by(libc::SIGINT);
    let (_, summary) = parse_json(&ended.stdout);
    let without_table = &summary["unwinding"]["without_table"];
    assert_eq!(without_table[reason], 1, "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn code_in_a_file_in_memory_is_crossed_by_its_frame_pointers() {
    assert_is_crossed(&[], "code made at run time, in a file in memory");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn code_in_a_file_that_is_written_to_is_crossed_by_its_frame_pointers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("code");
    assert_is_crossed(&[path.to_str().unwrap()], "written to since it was mapped");
}

/// What is mapped after the file was written to has the names and the table of what it holds by then.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_library_that_is_written_over_has_its_new_names_when_it_is_mapped_again() {
    let dir = tempfile::tempdir().unwrap();
    let [loader, library] = ["loader", "plugin-c"].map(|name| dir.path().join(name));
    fs::copy(fixture("loader.c"), &loader).unwrap();
    let mut bytes = fs::read(fixture("plugin_inner.c")).unwrap();
    fs::write(&library, &bytes).unwrap();
    let program = Program(Command::new(&loader).spawn().unwrap());
    let mut run = Run::start(&["-f", "json", "-F", "499", "-p", &program.pid()]);
    let has_names =
        |it: &Value, name: &str| symbols(&it["user"]).starts_with(&[name, "plugin_work"]);
    run.sample(|it| has_names(it, "in_plugin"));
    let (old, new) = (b"\0in_plugin\0", b"\0in_second\0");
    while let Some(at) = bytes.windows(old.len()).position(|it| it == old) {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
    // In place, and without cutting it short.
    fs::File::options().write(true).open(&library).unwrap().write_all_at(&bytes, 0).unwrap();
    run.sample(|it| has_names(it, "in_second"));
    for _ in 0..SAMPLES / 4 {
        run.sample(|it| {
            assert!(!has_names(it, "in_plugin"), "{it}");
            has_names(it, "in_second")
        });
    }
}
