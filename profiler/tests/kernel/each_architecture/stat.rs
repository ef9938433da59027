//! Counts are those of `perf stat`.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use profiler::stderr;
use serde_json::Value;

use crate::{
    every_kernel::stat::{ASKS, Waiting, count, counted},
    support::{Program, is_installed, profiler, run, wait_until},
    tracefs::Tracefs,
};

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_only_the_command_does_is_the_same_to_the_last() {
    let Some(_tracefs) = Tracefs::with(ASKS) else { return };
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

/// `perf stat` under the name that it has in emulated machines.
const PERF_STAT: &str = "/bin/perf-stat";

/// Starts a program that counts, and waits until it has so many events open and waits itself.
fn counting(mut command: Command, events: usize) -> Program {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let program = Program(command.spawn().unwrap());
    let proc = format!("/proc/{}", program.0.id());
    wait_until("all events are open, and it waits", || {
        let files = fs::read_dir(format!("{proc}/fd")).unwrap().flatten();
        let links = files.filter_map(|it| fs::read_link(it.path()).ok());
        let open = links.filter(|it| it.to_string_lossy().contains("[perf_event]")).count();
        let stat = fs::read_to_string(format!("{proc}/stat")).unwrap();
        open >= events && stat.rsplit_once(')').unwrap().1.starts_with(" S")
    });
    program
}

/// Both count one process at the same time.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn counts_of_a_process_are_those_that_perf_has_of_it() {
    let mut perf = if Path::new(PERF_STAT).exists() {
        Command::new(PERF_STAT)
    } else if is_installed("perf") {
        let mut perf = Command::new("perf");
        perf.arg("stat");
        perf
    } else {
        return;
    };
    let pmus = fs::read_dir("/sys/bus/event_source/devices").unwrap().flatten();
    let has_pmu = pmus.into_iter().any(|it| it.file_name().to_string_lossy().starts_with("armv8_"));
    let (events, names) = if has_pmu {
        ("page-faults:u,task-clock,cycles:u,cycles", 4)
    } else {
        ("page-faults:u,task-clock", 2)
    };
    let dir = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|it| dir.path().join(it));
    let mut waiting = Waiting::new(&["faults", "50000", "0"]);
    let pid = waiting.0.pid();
    perf.args(["-x,", "-e", events, "-p", &pid, "-o"]).arg(&theirs);
    let mut perf = counting(perf, names);
    let mut profiler = profiler();
    profiler.args(["stat", "--json", "-e", events, "-p", &pid, "-o"]).arg(&ours);
    let mut profiler = counting(profiler, names);
    waiting.go();
    drop(waiting);
    assert!(perf.0.wait().unwrap().success() && profiler.0.wait().unwrap().success());
    let ours = fs::read_to_string(ours).unwrap();
    let ours = ours.lines().map(|it| serde_json::from_str::<Value>(it).unwrap());
    let ours: Vec<Value> = ours.filter(|it| it["type"] == "event").collect();
    let theirs = fs::read_to_string(theirs).unwrap();
    let theirs = theirs.lines().filter(|it| !it.is_empty() && !it.starts_with('#'));
    let theirs: Vec<Vec<&str>> = theirs.map(|it| it.split(',').collect()).collect();
    assert_eq!((ours.len(), theirs.len()), (names, names), "{ours:#?} {theirs:#?}");
    for (ours, theirs) in ours.iter().zip(theirs) {
        let (mine, perfs) = (ours["value"].as_f64().unwrap(), theirs[0].parse::<f64>().unwrap());
        stderr::say(&format!("{}: {mine}, and {perfs} by perf", ours["event"]));
        assert!(perfs > 0.0 && (mine - perfs).abs() / perfs < 0.02, "{ours}: {theirs:?}");
    }
    assert_eq!(count(&ours[0]), 50_000);
}
