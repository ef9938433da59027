//! `list`, as a user runs it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::process::{Command, Output};

use serde_json::Value;

fn list(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_profiler")).arg("list").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_owned()).unwrap()
}

#[test]
fn events_are_listed_by_kind() {
    let output = list(&[]);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{table}");
    let (_, software) = table.split_once("software:\n").unwrap();
    let page_faults = software.lines().find(|line| line.starts_with("  page-faults ")).unwrap();
    assert!(page_faults.ends_with("  page faults"), "{page_faults:?}");
    assert!(software.contains("  dummy ") && table.contains("\nbreakpoint:\n"), "{table}");
}

#[test]
fn json_has_an_object_a_line_of_those_that_match() {
    let output = list(&["--json", "*faults"]);
    let lines = text(&output.stdout);
    let names: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["kind"] == "software")
        .map(|event| event["name"].clone())
        .collect();
    let expected =
        ["alignment-faults", "emulation-faults", "major-faults", "minor-faults", "page-faults"];
    assert_eq!(names, expected);
}

#[test]
fn nothing_that_matches_is_said() {
    let output = list(&["no-such-event"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let said = text(&output.stderr);
    assert!(said.contains("no event of this machine matches `no-such-event`"), "{said}");
}
