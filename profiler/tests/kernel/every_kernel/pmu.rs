//! Events that the processor counts, where it has a PMU: of what is emulated, ARM's machines have one.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use profiler::stderr;
use serde_json::Value;

use super::ledger::assert_sound;
use crate::support::{Program, Run, parse_json, profiler, run, sum};

/// Samples that are looked at.
const SAMPLES: usize = 40;
/// Not so many cycles that an emulated CPU takes long for them.
const PERIOD: u64 = 5_000_011;

/// Whether anything counts cycles; if not, says so.
fn has_pmu() -> bool {
    let output = run(&["doctor", "--json"]);
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = diagnosis["checks"].as_array().unwrap().iter();
    let has = checks.clone().any(|it| it["name"] == "PMU" && it["verdict"] == "ok");
    if !has {
        stderr::say("skipped: nothing counts cycles");
    }
    has
}

/// Samples of this program, and what follows of its summary.
fn sampled(program: &Program, arguments: &[&str]) -> (Vec<Value>, Value) {
    let pid = program.pid();
    let mut run = Run::start(&[&["-f", "json", "-p", &pid], arguments].concat());
    let mut samples: Vec<Value> = (0..SAMPLES).map(|_| run.sample(|_| true)).collect();
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (rest, summary) = parse_json(&ended.stdout);
    samples.extend(rest);
    assert_sound(&samples, &summary);
    (samples, summary)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn cycles_are_sampled_by_period_and_by_frequency() {
    if !has_pmu() {
        return;
    }
    let program = Program::start("chain.c");
    let period = PERIOD.to_string();
    let term = format!("cycles/period={PERIOD}/");
    for arguments in [&["-e", "cycles", "-c", &period][..], &["-e", &term]] {
        let (samples, summary) = sampled(&program, arguments);
        assert!(samples.iter().all(|it| it["period"] == PERIOD), "{arguments:?}");
        let (of, frequency) = (&summary["period"], &summary["frequency"]);
        assert_eq!((of, frequency), (&PERIOD.into(), &Value::Null), "{summary}");
    }
    for arguments in [&["-e", "cycles", "-F", "199"][..], &["-e", "cycles/freq=199/"]] {
        let (samples, summary) = sampled(&program, arguments);
        // The kernel begins with one cycle and finds the period by itself.
        let periods = samples.iter().map(|it| it["period"].as_u64().unwrap());
        assert!(periods.clone().all(|it| it > 0) && periods.max() > Some(1000), "{arguments:?}");
        assert_eq!((&summary["frequency"], &summary["dithered"]), (&199.into(), &false.into()));
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn modifiers_choose_the_side_that_is_counted() {
    if !has_pmu() {
        return;
    }
    // An emulated PMU interrupts late, so what is counted has to go on for a while where it is.
    let (user, kernel) = (Program::start("chain.c"), Program::start("syscalls.c"));
    let period = PERIOD.to_string();
    let raw = cfg!(target_arch = "aarch64").then_some(("r11:k", true));
    for (event, is_in_kernel) in [("cycles:u", false), ("cycles:k", true)].into_iter().chain(raw) {
        let program = if is_in_kernel { &kernel } else { &user };
        let (samples, summary) = sampled(program, &["-e", event, "-c", &period]);
        let is_right = |it: &&Value| it["kernel"].as_array().unwrap().is_empty() != is_in_kernel;
        let right = samples.iter().filter(is_right).count();
        // The interrupt may come when the CPU has just gone over to the other side.
        assert!(right * 4 > samples.len() * 3, "{event}: {right} of {}", samples.len());
        assert_eq!(summary["event"], event);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn cycles_of_tasks_are_theirs_alone() {
    if !has_pmu() {
        return;
    }
    let program = Program::ready("threads.c", &[]);
    let _other = Program::start("chain.c");
    let period = PERIOD.to_string();
    let (samples, summary) = sampled(&program, &["--per-task", "-e", "cycles", "-c", &period]);
    assert!(samples.iter().all(|it| it["comm"] == "threads-c"), "{samples:?}");
    assert_eq!(sum(&summary["filtered"]), 0, "{summary}");
    assert!(summary["expected"].as_u64() >= summary["fired"].as_u64(), "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_pinned_event_without_a_counter_is_refused() {
    if !has_pmu() {
        return;
    }
    // More than any PMU has.
    let pinned = ["cycles:D"; 40].join(",");
    let mut command = profiler();
    command.args(["stat", "--json", "-d", "10m", "-I", "50", "-e", &pinned]);
    let mut others = Program(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(others.0.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("cycles:D"));
    let refused = run(&["-d", "1", "-e", "cycles:D"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("has no counter left for it") && said.contains("leave `D` out"),
        "{said}"
    );
    drop(lines);
    drop(others);
    let sampled = run(&["-d", "1", "-e", "cycles:D"]);
    assert_eq!(sampled.status.code(), Some(0), "{sampled:?}");
}
