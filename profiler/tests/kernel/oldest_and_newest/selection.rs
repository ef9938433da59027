//! Whose samples are delivered.

use serde_json::Value;

use crate::{
    every_kernel::ledger::assert_sound,
    support::{Program, Run, cpu_ticks, parse_json},
};

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_profiler_itself_is_there_when_asked_for_only() {
    let mut run = Run::start(&["-f", "json", "-F", "999", "--include-self"]);
    let own = run.child.id();
    // Reading and writing samples takes it time.
    run.sample(|sample| sample["pid"] == own);
    let (_, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    assert_eq!(summary["filtered"]["self"], 0, "{summary}");

    let mut run = Run::start(&["-f", "json", "-F", "999"]);
    let own = run.child.id();
    let start = cpu_ticks(own);
    let mut samples = Vec::new();
    while cpu_ticks(own) < start + 20 {
        samples.push(run.sample(|_| true));
    }
    let (rest, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    samples.extend(rest);
    assert!(samples.iter().all(|sample| sample["pid"] != own));
    assert!(summary["filtered"]["self"].as_u64().unwrap() > 0, "{summary}");
    assert_sound(&samples, &summary);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_run_ends_with_the_processes_asked_for() {
    let programs = [Program::start("chain.c"), Program::start("chain.c")];
    let [first, second] = [0, 1].map(|at: usize| programs[at].pid());
    let mut run = Run::start(&["-f", "json", "-p", &first, "-p", &second]);
    run.sample(|_| true);
    let [one, other] = programs;
    drop(one);
    run.wait_for_notice(&format!("process {first} has ended"));
    // The other one is still sampled.
    other.wait_for_ticks(5);
    drop(other);
    let ended = run.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let notice = format!("process {second} has ended");
    assert!(ended.stderr.contains(&notice), "{}", ended.stderr);
    let line = format!("\nprocesses {first}, {second} have ");
    assert!(ended.stderr.contains(&line), "{}", ended.stderr);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn only_the_process_asked_for_is_delivered() {
    let program = Program::start("chain.c");
    let other = Program::start("chain.c");
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    let pid: u64 = program.pid().parse().unwrap();
    let mut samples: Vec<Value> = (0..50).map(|_| run.sample(|_| true)).collect();
    other.wait_for_ticks(10);
    let (rest, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    samples.extend(rest);
    assert!(samples.iter().all(|sample| sample["pid"] == pid));
    assert!(summary["filtered"]["pid"].as_u64().unwrap() > 0, "{summary}");
    assert_sound(&samples, &summary);
}
