//! Stacks of Python are those that it tells itself.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::support::{Program, Run, has_tables, is_installed, symbols};

/// The interpreters that are looked for.
const PYTHONS: [&str; 9] = [
    "python3",
    "/usr/bin/python3",
    "python3.8",
    "python3.9",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
];
/// How many samples are compared of each program.
const SAMPLES: usize = 5;

/// A program that stays in a function of which it says how it came there: name, file and line, innermost first.
fn start(python: &str, arguments: &[&str]) -> (Program, Value) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/chain.py");
    let mut command = Command::new(python);
    command.arg(script).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut program = Program(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (program, serde_json::from_str(&line).unwrap())
}

/// What of a stack Python runs. The innermost line changes from sample to sample.
fn chain(sample: &Value) -> Vec<Value> {
    let frames = sample["user"].as_array().unwrap();
    let frames = frames.iter().filter(|it| it["origin"] == "cpython");
    frames.map(|it| serde_json::json!([it["symbol"], it["file"], it["line"]])).collect()
}

/// Whether between these two functions, the inner one first, there are native ones.
fn has_native_between(sample: &Value, inner: &str, outer: &str) -> bool {
    let all = symbols(&sample["user"]);
    let at = |name: &str| all.iter().position(|it| it.ends_with(name)).unwrap();
    let between = &sample["user"].as_array().unwrap()[at(inner) + 1..at(outer)];
    between.iter().any(|it| it["origin"] != "cpython")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn stacks_of_python_are_those_that_it_tells() {
    if !has_tables() || !cfg!(target_arch = "x86_64") {
        return;
    }
    for (number, python) in PYTHONS.into_iter().filter(|it| is_installed(it)).enumerate() {
        // A thread's state is found alike in all.
        let by_thread: &[&str] = &["thread"];
        for arguments in [&[][..], by_thread].into_iter().take(if number == 0 { 2 } else { 1 }) {
            let (program, mut truth) = start(python, arguments);
            let truth = truth.as_array_mut().unwrap();
            let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
            // The first samples may come before the interpreter has been found.
            run.sample(|it| !chain(it).is_empty());
            for _ in 0..SAMPLES {
                let sample = run.sample(|it| !it["user"].as_array().unwrap().is_empty());
                let mut chain = chain(&sample);
                assert_eq!(chain.len(), truth.len(), "{python} {sample:#}");
                assert_eq!(chain[0][0], "leaf");
                chain[0] = truth[0].clone();
                assert_eq!(chain, *truth, "{python}");
                assert!(has_native_between(&sample, "matched", "key"), "{sample:#}");
                assert!(has_native_between(&sample, "key", "handle"), "{sample:#}");
                let all = symbols(&sample["user"]);
                assert!(!all.contains(&"_PyEval_EvalFrameDefault"), "{python} {all:?}");
            }
            assert_eq!(run.end_by(libc::SIGINT).code, Some(0));
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn python_that_is_deeper_than_a_walk_goes_is_cut_where_it_runs() {
    if !has_tables() || !cfg!(target_arch = "x86_64") || !is_installed("python3") {
        return;
    }
    let (program, _) = start("python3", &["deep"]);
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    let sample = run.sample(|it| !chain(it).is_empty());
    let frames = sample["user"].as_array().unwrap();
    // As of 3.11, one call of the evaluator runs them all; before, each has its own.
    assert_ne!(frames.last().unwrap()["origin"], "cpython", "{sample:#}");
    assert_eq!(sample["user_end"], "depth", "{sample:#}");
    let handles =
        frames.iter().filter(|it| it["symbol"].as_str().is_some_and(|it| it.ends_with("handle")));
    assert!(handles.count() > 100, "{sample:#}");
    assert_eq!(run.end_by(libc::SIGINT).code, Some(0));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn stacks_of_python_are_shown_as_asked_for() {
    if !has_tables() || !cfg!(target_arch = "x86_64") || !is_installed("python3") {
        return;
    }
    let (program, truth) = start("python3", &[]);
    let pid = program.pid();
    let mut run = Run::start(&["-f", "json", "-p", &pid, "--python", "only"]);
    let sample = run.sample(|it| !chain(it).is_empty());
    let all = sample["user"].as_array().unwrap();
    assert_eq!(all.len(), truth.as_array().unwrap().len(), "{sample:#}");
    assert_eq!(run.end_by(libc::SIGINT).code, Some(0));

    // Each of several sources walks by itself.
    let events = ["-e", "cpu-clock", "-e", "task-clock"];
    let mut run = Run::start(&[&["-f", "json", "-p", &pid][..], &events].concat());
    for event in ["cpu-clock", "task-clock"] {
        run.sample(|it| it["event"] == event && !chain(it).is_empty());
    }
    assert_eq!(run.end_by(libc::SIGINT).code, Some(0));

    let mut run = Run::start(&["-f", "json", "-p", &pid, "--python", "native"]);
    for _ in 0..SAMPLES {
        let sample = run.sample(|it| it["user_end"] == "complete");
        assert!(chain(&sample).is_empty(), "{sample:#}");
    }
    let is_evaluator = |it: &Value| symbols(&it["user"]).contains(&"_PyEval_EvalFrameDefault");
    run.sample(is_evaluator);
    assert_eq!(run.end_by(libc::SIGINT).code, Some(0));
}
