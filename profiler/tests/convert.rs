//! `convert`, as a user runs it: no privileges, no kernel.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod binary;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use binary::run as profiler;

const STACKS: &str = "db;main;scan 60\nweb;main;serve 10\nweb;main;serve;parse;read_[k] 30\n";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.folded"), STACKS).unwrap();
    folder
}

fn convert(folder: &Path, arguments: &[&str]) {
    let output = profiler(folder, &[&["convert"], arguments].concat(), b"");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with(&format!("profiler: wrote {}, for ", arguments[1])), "{said}");
}

#[test]
fn each_extension_is_a_format() {
    let folder = folder();
    let path = folder.path();
    convert(path, &["a.folded", "a.pb.gz"]);
    for (file, part) in [
        ("b.folded", STACKS),
        ("b.svg", "<title>main (40 samples, 40.00%)</title>"),
        ("b.html", "\"duration_ns\":null"),
        ("b.speedscope.json", "\"weights\":[60,10,30]"),
        ("b.perf.txt", "[unknown] 0/0 [000] 0.000000: 60 samples: \n"),
        ("b.jsonl", "\"count\":60"),
        ("b.compact.jsonl", "\"count\":60"),
        ("b.txt", "COMM: [unknown] (pid=0 tid=0) x 60\n"),
    ] {
        convert(path, &["a.pb.gz", file]);
        let text = fs::read_to_string(path.join(file)).unwrap();
        assert!(text.contains(part), "{file}: {text}");
        assert_eq!(path.join(file).metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    convert(path, &["a.pb.gz", "again.pb.gz"]);
    let bytes = |file: &str| fs::read(path.join(file)).unwrap();
    assert_eq!(bytes("again.pb.gz"), bytes("a.pb.gz"));
}

#[test]
fn standard_input_and_output_are_dashes() {
    let folder = folder();
    let output = profiler(folder.path(), &["convert", "-", "-", "-f", "folded"], STACKS.as_bytes());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), STACKS);
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn a_filter_leaves_stacks_out() {
    let folder = folder();
    for (filter, left) in [
        (&["--focus", "^serve$"][..], "web;main;serve 10\nweb;main;serve;parse;read_[k] 30\n"),
        (&["--ignore", "web"], "db;main;scan 60\n"),
        (&["--focus", "main", "--ignore", "parse|db"], "web;main;serve 10\n"),
        (&["--focus", "nothing"], ""),
    ] {
        convert(folder.path(), &[&["a.folded", "b.folded"], filter].concat());
        assert_eq!(fs::read_to_string(folder.path().join("b.folded")).unwrap(), left);
    }
}

#[test]
fn what_can_not_be_converted_is_refused_and_costs_nothing() {
    let folder = folder();
    fs::write(folder.path().join("old.svg"), "old").unwrap();
    fs::write(folder.path().join("bad.folded"), "a;b\n").unwrap();
    for (arguments, code, part) in [
        (&["a.folded"][..], 2, "OUT"),
        (&["none.folded", "old.svg"], 1, "cannot read none.folded"),
        (&["bad.folded", "old.svg"], 1, "cannot read bad.folded: line 1"),
        (&["a.folded", "old.png"], 2, "old.png: no format has this extension"),
        (&["a.folded", "-"], 2, "add --format"),
        (&["a.folded", "a.json.gz"], 2, "when each sample was taken"),
        (&["a.folded", "none/a.svg"], 1, "cannot write none/a.svg"),
    ] {
        let output = profiler(folder.path(), &[&["convert"], arguments].concat(), b"");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    assert_eq!(fs::read_to_string(folder.path().join("old.svg")).unwrap(), "old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn counts_beyond_all_bounds_are_cut_and_nothing_breaks() {
    let folder = folder();
    let path = folder.path();
    let most = format!("db;main;scan {}\ndb;main;find {0}\ndb;main {0}\n", i64::MAX);
    fs::write(path.join("most.folded"), most).unwrap();
    for file in ["c.folded", "c.svg", "c.html", "c.pb.gz", "c.speedscope.json", "c.jsonl", "c.txt"]
    {
        convert(path, &["most.folded", file]);
    }
    let report = profiler(path, &["report", "most.folded"], b"");
    assert_eq!(report.status.code(), Some(0), "{report:?}");
}
