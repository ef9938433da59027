//! With `--children`, what the processes asked for have started is sampled with them.

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    every_kernel::ledger::assert_sound,
    support::{Program, Run, fixture, parse_json, run, symbols},
};

fn calls(sample: &Value, function: &str) -> bool {
    symbols(&sample["user"]).contains(&function)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn children_and_theirs_are_sampled_until_all_have_ended() {
    let mut command = Command::new(fixture("family.c"));
    let mut program = Program(command.stdin(Stdio::piped()).spawn().unwrap());
    // The child ends with it.
    let input = program.0.stdin.take();
    let _other = Program::start("chain.c");
    let pid = program.pid();
    let mut run = Run::start(&["-f", "json", "-F", "999", "-p", &pid, "--children"]);

    let (mut samples, mut grandchildren) = (Vec::new(), BTreeSet::new());
    while grandchildren.len() < 100 {
        let sample = run.sample(|_| true);
        if calls(&sample, "in_grandchild") {
            grandchildren.insert(sample["pid"].as_u64());
        }
        samples.push(sample);
    }
    drop(program);
    run.wait_for_notice(&format!("process {pid} has ended"));
    // The one that was there before the run, and forks others still.
    samples.clear();
    samples.push(run.sample(|it| calls(it, "in_child")));
    samples.push(run.sample(|it| calls(it, "in_grandchild")));
    drop(input);
    let ended = run.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains(" of its children are left, and sampled"), "{}", ended.stderr);
    let line = format!("\nprocess {pid} and ");
    assert!(ended.stderr.contains(&line) && ended.stderr.contains(" descendants: "));
    let (_, summary) = parse_json(&ended.stdout);
    assert!(summary["children"]["followed"].as_u64().unwrap() > 100, "{summary}");
    assert_eq!(summary["children"]["not_followed"], 0, "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn others_than_children_are_left_out_and_accounted_for() {
    let mut command = Command::new(fixture("family.c"));
    let mut program = Program(command.stdin(Stdio::piped()).spawn().unwrap());
    let _input = program.0.stdin.take();
    let other = Program::start("chain.c");
    let mut run = Run::start(&["-f", "json", "-F", "999", "-p", &program.pid(), "--children"]);
    let mut samples: Vec<Value> = (0..200).map(|_| run.sample(|_| true)).collect();
    other.wait_for_ticks(10);
    let (rest, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    samples.extend(rest);
    assert!(samples.iter().all(|sample| sample["comm"] == "family-c"), "{samples:?}");
    assert!(summary["filtered"]["pid"].as_u64().unwrap() > 0, "{summary}");
    assert_sound(&samples, &summary);

    // Without it, there is nothing: the process asked for sleeps.
    let run = Run::start(&["-f", "json", "-F", "999", "-p", &program.pid()]);
    run.wait_until_it_samples();
    other.wait_for_ticks(10);
    let ended = run.end_by(libc::SIGINT);
    let (samples, summary) = parse_json(&ended.stdout);
    assert_eq!((samples.len(), &summary["children"]), (0, &Value::Null), "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_is_sampled_by_its_name() {
    let one = Program::start("chain.c");
    let _other = Program::start("nofp.c");
    let output = run(&["-p", "chain-c", "-d", "1", "-f", "json", "-F", "499"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (samples, _) = parse_json(&String::from_utf8(output.stdout).unwrap());
    assert!(!samples.is_empty() && samples.iter().all(|it| it["pid"] == one.0.id()));
    // Of two nobody knows which is meant.
    let two = Program::start("chain.c");
    let output = run(&["-p", "chain-c", "-d", "1"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("2 processes are called that"), "{said}");
    for program in [&one, &two] {
        let line = format!("{:>9}  {}", program.0.id(), fixture("chain.c").display());
        assert!(said.lines().any(|it| it.starts_with(&line)), "{line}: {said}");
    }
}
