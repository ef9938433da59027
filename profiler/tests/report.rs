//! `report`, as a user runs it: no privileges, no kernel.

#![allow(clippy::unwrap_used)]

mod binary;

use std::{
    fs,
    process::{Command, Output},
};

const STACKS: &[u8] = b"web;main;serve;parse 30\nweb;main;serve 10\ndb;main;scan 60\n";

fn report(arguments: &[&str], input: &[u8]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.folded"), STACKS).unwrap();
    binary::run(dir.path(), &[&["report"], arguments].concat(), input)
}

fn rows(arguments: &[&str], input: &[u8]) -> Vec<String> {
    let output = report(arguments, input);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_file_and_standard_input_give_the_same() {
    let expected =
        ["samples: 100", "", "SELF % TOTAL % FUNCTION MODULE", "60 60.0% 60 60.0% scan [unknown]"];
    assert_eq!(rows(&["a.folded", "--top", "1"], b"")[..4], expected);
    assert_eq!(rows(&["-", "--top", "1"], STACKS)[..4], expected);
}

#[test]
fn options_choose_what_is_shown() {
    let processes = rows(&["a.folded", "--by", "process"], b"");
    assert_eq!(processes[3..], ["60 60.0% 60 60.0% db", "40 40.0% 40 40.0% web"]);
    let modules = rows(&["a.folded", "--by", "module"], b"");
    assert_eq!(modules[2..], ["SELF % TOTAL % MODULE", "100 100.0% 100 100.0% [unknown]"]);
    let threads = rows(&["a.folded", "--by", "thread"], b"");
    assert_eq!(threads[2], "SELF % TOTAL % THREAD PROCESS");
    let in_kernel = rows(&["-", "--top", "2"], b"web;main 10\nweb;main;read_[k] 30\n");
    assert_eq!(
        in_kernel[2..],
        [
            "SELF % TOTAL % KERNEL FUNCTION MODULE",
            "30 75.0% 30 75.0% 100.0% read [kernel]",
            "10 25.0% 40 100.0% 75.0% main [unknown]",
            "1 more",
        ]
    );
    let tree = rows(&["a.folded", "--tree", "--focus", "^parse$"], b"");
    assert_eq!(tree[0], "samples: 30 of 100 (30.0%)");
    assert_eq!(
        tree[3..],
        ["30 100.0% web", "30 100.0% main", "30 100.0% serve", "30 100.0% parse"]
    );
}

#[test]
fn wrong_usage_points_to_the_help_that_tells_more() {
    for (arguments, part) in [
        (&["report", "--tere"][..], "'--tree' (see profiler report --help)\n"),
        (&["diff", "a"], " (see profiler diff --help)\n"),
        (&["recrod"], "'record' (see profiler --help)\n"),
        (&["record", "-e", "cycels"], "did you mean cycles? (see profiler record --help)\n"),
        // Not what clap refuses.
        (&["record", "-o", "a.png"], "takes any name (see profiler record --help)\n"),
        (&["diff", "/dev/null", "/dev/null", "--fail-if", "x"], "(see profiler diff --help)\n"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_profiler")).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.ends_with(part) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}

#[test]
fn what_can_not_be_read_is_said_with_its_place() {
    for (arguments, input, code, part) in [
        (&["none.folded"][..], &b""[..], 1, "cannot read none.folded: No such file"),
        (&["-"], b"a;b 1\na;b\n", 1, "line 2: no count"),
        (&["-"], b"\x1f\x8b\x08\0", 1, "can't be decompressed"),
        (&["-"], b"\0\0", 1, "cannot read standard input: byte "),
        (&["-", "--focus", "a(b"], STACKS, 2, "column 2: unclosed group"),
        (&["-", "--top", "many"], STACKS, 2, "--top"),
    ] {
        let output = report(arguments, input);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part) && output.stdout.is_empty(), "{arguments:?}: {said}");
    }
}

#[test]
fn what_a_run_can_not_show_is_refused_before_it_begins() {
    for (arguments, part) in [
        (&["--top", "3", "--by", "line"][..], "--by line: add --lines"),
        (&["--by", "thread"], "--top"),
        (&["--top", "3", "--by", "colour"], "container"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        let output = command.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part) && output.stdout.is_empty(), "{arguments:?}: {said}");
    }
}
