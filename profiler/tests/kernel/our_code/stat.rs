//! Counts are those of `perf stat`.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{
    every_kernel::stat::{ASKS, Tracefs, count, counted},
    support::{is_installed, run},
};

/// Events that both count, and how often the fixture does each thing: for some seconds in all.
const EVENTS: &str = "page-faults:u,page-faults,minor-faults,task-clock";

/// Runs a command below `perf stat -x,` and that below ours: what ours has counted, and perf's rows.
fn counts(events: &str, command: &[&str]) -> (Vec<Value>, Vec<Vec<String>>) {
    let dir = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|it| dir.path().join(it).display().to_string());
    let perf = ["perf", "stat", "-x,", "-o", &theirs, "-e", events, "--"];
    let ours_first = ["stat", "--json", "-o", &ours, "-e", events, "--"];
    let output = run(&[&ours_first[..], &perf, command].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(ours).unwrap();
    let objects = text.lines().map(|it| serde_json::from_str::<Value>(it).unwrap());
    let theirs = std::fs::read_to_string(theirs).unwrap();
    let rows = theirs.lines().filter(|it| !it.is_empty() && !it.starts_with('#'));
    let rows = rows.map(|it| it.split(',').map(str::to_owned).collect());
    (objects.filter(|it| it["type"] == "event").collect(), rows.collect())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn counts_are_those_of_perf() {
    if !is_installed("perf") {
        return;
    }
    // perf itself, which ours counts with it, takes little beside.
    let (ours, theirs) = counts(EVENTS, &[&counted(), "faults", "200000", "1"]);
    assert_eq!((ours.len(), theirs.len()), (4, 4), "{theirs:?}");
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let (mine, perfs) = (ours["value"].as_f64().unwrap(), theirs[0].parse::<f64>().unwrap());
        assert_eq!(ours["event"], *theirs[2]);
        let off = (mine - perfs) / perfs;
        assert!((0.0..0.02).contains(&off), "{ours}: {theirs:?}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_only_the_command_does_is_the_same_to_the_last() {
    let Some(_tracefs) = Tracefs::mount() else { return };
    if !is_installed("perf") {
        return;
    }
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x,", "-e", ASKS, "--", &counted(), "asks", "1000", "2"]);
    let output = perf.stdin(Stdio::null()).output().unwrap();
    let theirs = String::from_utf8(output.stderr).unwrap();
    let ours =
        run(&["stat", "--json", "-o", "-", "-e", ASKS, "--", &counted(), "asks", "1000", "2"]);
    let first = String::from_utf8(ours.stdout).unwrap();
    let ours: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!(theirs.split(',').next().unwrap().parse(), Ok(count(&ours)), "{theirs}");
    assert_eq!(count(&ours), 9000);
}
