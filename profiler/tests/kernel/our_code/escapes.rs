//! Names that would drive the terminal reach no output as they are.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    process::{Command, Output, Stdio},
};

use crate::support::{Program, fixture, left_in_kernel, run, wait_until};

/// Sets the title, clears the screen in seven and eight bits, forges a line, is invisible, runs backwards.
const NAME: &str =
    "a\x1b]0;b\x07\u{9b}2J\x7f\nprofiler: c\u{200b}\u{2028}\u{2066}\u{feff}\u{202e};d";

/// Whether text has anything of the name that must not come through; line feeds are ours.
fn is_raw(text: &str) -> bool {
    let format = ['\u{200b}', '\u{2028}', '\u{2066}', '\u{feff}', '\u{202e}'];
    text.contains(|it: char| (it.is_control() && it != '\n') || format.contains(&it))
        || text.contains("\nprofiler: c")
}

/// A program that runs, with the name in its path, its own name, and its arguments.
fn start(dir: &tempfile::TempDir) -> Program {
    let path = dir.path().join(NAME);
    fs::copy(fixture("chain.c"), &path).unwrap();
    let mut command = Command::new(path);
    command.arg0(NAME).stdin(Stdio::null());
    Program(command.spawn().unwrap())
}

fn texts(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|it| String::from_utf8(it.clone()).unwrap())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn names_are_escaped_in_every_output() {
    let dir = tempfile::tempdir().unwrap();
    let program = start(&dir);
    program.wait_for_ticks(2);
    let pid = program.pid();
    let common = ["-d", "1", "-v", "-p", &pid];
    for format in [&["-f", "text"][..], &["-f", "folded"], &["--top", "9"]] {
        let [stdout, stderr] = texts(&run(&[&common, format].concat()));
        assert!(!is_raw(&stdout), "{format:?}: {stdout:?}");
        assert!(!is_raw(&stderr), "{format:?}: {stderr:?}");
        assert!(stdout.contains("inner"), "{format:?}: {stdout:?}");
        assert!(stderr.contains("a\\x1b]0;b\\x07\\u{9b}2J\\x7f\\"), "{stderr:?}");
    }
    let [stdout, stderr] = texts(&run(&[&common[..], &["-f", "json", "--metadata"]].concat()));
    assert!(!is_raw(&stdout) && !is_raw(&stderr), "{stdout:?} {stderr:?}");
    let first = stdout.lines().next().unwrap();
    let sample: serde_json::Value = serde_json::from_str(first).unwrap();
    // Nothing is lost.
    assert_eq!(sample["process"]["command_line"], NAME, "{sample}");
    let modules = sample["user"].as_array().unwrap().iter();
    let mut modules = modules.filter_map(|it| it["module"].as_str());
    // In /proc/PID/maps the kernel itself escapes line feeds.
    let name = NAME.replace('\n', "\\012");
    assert!(modules.any(|it| it.ends_with(&name)), "{sample}");
    drop(program);
    wait_until("the kernel has freed all of it", || left_in_kernel().is_empty());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_was_typed_is_escaped_when_it_is_refused() {
    let nowhere = format!("/nowhere/{NAME}");
    for arguments in [
        &[NAME][..],
        &["-e", NAME],
        &["-C", NAME],
        &["-d", NAME],
        &["-o", &nowhere],
        &[&format!("--{NAME}")],
        &["unwind-info", &nowhere],
    ] {
        let [stdout, stderr] = texts(&run(arguments));
        assert!(!is_raw(&stdout) && !is_raw(&stderr), "{arguments:?}: {stderr:?}");
        assert!(stderr.starts_with("profiler: ") && stderr.lines().count() == 1, "{stderr:?}");
    }
}
