//! What is said of all samples together.

use crate::{
    every_kernel::{ledger::run_for, sources::EVENTS},
    support::{Program, Run, run},
};

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_empty_result_says_why() {
    // One that never runs.
    let sleeper = Program(std::process::Command::new("sleep").arg("300").spawn().unwrap());
    let other = Program::start("chain.c");
    let stderr = run_for(&other, &["-p", &sleeper.pid()]);
    assert!(stderr.contains("nothing was delivered: "), "{stderr}");
    assert!(stderr.contains("other process "), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn losses_are_told_while_it_runs() {
    let program = Program::start("chain.c");
    let pid = program.pid();
    let mut run = Run::start(&["-f", "json", "-F", "999", "--buffer-size", "4096", "-p", &pid]);
    run.sample(|_| true);
    run.signal(libc::SIGSTOP);
    program.wait_for_ticks(50);
    run.signal(libc::SIGCONT);
    run.wait_for_notice(" samples were lost in the last ");
    // The run goes on.
    run.sample(|_| true);
    let ended = run.end_by(libc::SIGINT);
    let notice = ended.stderr.lines().find(|line| line.contains(" samples were lost in the last "));
    assert!(notice.unwrap().contains(": ring full "), "{}", ended.stderr);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn folded_counts_add_up() {
    let program = Program::start("chain.c");
    let output = run(&["-f", "folded", "-F", "499", "-d", "1", "-p", &program.pid()]);
    let folded = String::from_utf8(output.stdout).unwrap();
    let counts =
        folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    let stderr = String::from_utf8(output.stderr).unwrap();
    let total = stderr.lines().find(|line| line.trim_start().starts_with("total")).unwrap();
    let delivered: u64 = total.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert_eq!(counts.sum::<u64>(), delivered, "{stderr}");
    assert!(folded.contains(";main;outer;middle;inner "), "{folded}");
    let mut sorted: Vec<&str> = folded.lines().collect();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), folded.lines().count());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn stacks_beyond_the_limit_are_still_counted() {
    let _load = [Program::start("chain.c"), Program::start("syscalls.c")];
    let output = run(&["-f", "folded", "-F", "499", "-d", "1", "--max-memory", "1"]);
    let folded = String::from_utf8(output.stdout).unwrap();
    let beyond = |line: &str| {
        let (process, count) = line.split_once(";[stacks beyond --max-memory] ")?;
        Some((process.to_owned(), count.parse::<u64>().ok()?))
    };
    let counts: Option<Vec<_>> = folded.lines().map(beyond).collect();
    let counts = counts.unwrap_or_else(|| panic!("{folded}"));
    assert!(counts.iter().any(|(process, _)| process == "chain-c"), "{folded}");
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let total = stderr.lines().find(|line| line.starts_with("total")).unwrap();
    let delivered: u64 = total.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert_eq!(all, delivered, "{stderr}");
    let line = format!("{all} samples were counted by process, without their stacks");
    assert!(stderr.contains(&line), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_hottest_function_is_on_top() {
    let program = Program::start("chain.c");
    let output = run(&["--top", "2", "-d", "1", "-F", "499", "-p", &program.pid()]);
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[1].contains("  inner  "), "{table}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_format_tells_events_apart() {
    let program = Program::start("faults.c");
    let output = |more: &[&str]| {
        let arguments = ["-e", EVENTS[0], "-e", EVENTS[1], "-F", "499", "-d", "2", "-p"];
        let output = run(&[&arguments[..], &[&program.pid()], more].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let text = output(&[]);
    let folded = output(&["-f", "folded"]);
    let top = output(&["--top", "3"]);
    for event in EVENTS {
        let head = |line: &str| line.starts_with("COMM: ") && line.ends_with(&format!("  {event}"));
        assert!(text.lines().any(head), "{text}");
        let line = |line: &str| line.starts_with(&format!("{event};")) && line.contains(";main");
        assert!(folded.lines().any(line), "{folded}");
        assert!(top.lines().any(|line| line == format!("{event}:")), "{top}");
    }
}
