//! Every sample is accounted for.

use profiler::perf::cpus::CpuList;
use serde_json::Value;

use crate::support::{Program, Run, parse_json, run, sum};

/// What must hold of an account, whatever the machine did: three parties have counted apart.
fn assert_identity(account: &Value) {
    let count = |name: &str| account[name].as_u64().unwrap();
    let (filtered, lost) = (sum(&account["filtered"]), sum(&account["lost"]));
    assert_eq!(count("expected"), count("delivered") + filtered + lost, "{account}");
    // Without what the kernel has skipped and what is put down as the rest, the program's own count
    // of its runs has to meet what became of them.
    let (asleep, missed) = (&account["filtered"]["asleep"], &account["lost"]["missed"]);
    let skipped = asleep.as_u64().unwrap() + missed.as_u64().unwrap();
    assert_eq!(count("fired"), count("delivered") + filtered + lost - skipped, "{account}");
    assert_eq!(account["lost"]["undelivered"], 0, "{account}");
}

pub(crate) fn assert_sound(samples: &[Value], summary: &Value) {
    assert_identity(summary);
    assert_eq!(summary["delivered"], samples.len());
    for account in summary["per_cpu"].as_array().unwrap() {
        assert_identity(account);
        let on_cpu = samples.iter().filter(|sample| sample["cpu"] == account["cpu"]).count();
        assert_eq!(account["delivered"], on_cpu, "{account}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_account_is_settled_under_load() {
    let _load = [Program::start("chain.c"), Program::start("syscalls.c")];
    let output = run(&["-f", "json", "-F", "4999", "-d", "2"]);
    assert_eq!(output.status.code(), Some(0));
    let (samples, summary) = parse_json(&String::from_utf8(output.stdout).unwrap());
    assert_sound(&samples, &summary);
    assert!(samples.len() > 1000, "{summary}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("expected") && stderr.contains("delivered"), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_full_ring_loses_samples_and_says_so() {
    let program = Program::start("chain.c");
    let mut run = Run::start(&[
        "-f",
        "json",
        "-F",
        "999",
        "--buffer-size",
        "4096",
        "--strict",
        "-p",
        &program.pid(),
    ]);
    let first = run.sample(|_| true);
    // Nobody reads while the program is sampled for at least half a second of its CPU time.
    run.signal(libc::SIGSTOP);
    program.wait_for_ticks(50);
    run.signal(libc::SIGCONT);
    let ended = run.end_by(libc::SIGINT);
    let (mut samples, summary) = parse_json(&ended.stdout);
    samples.push(first);
    assert_sound(&samples, &summary);
    assert!(summary["lost"]["ring_full"].as_u64().unwrap() > 0, "{summary}");
    assert!(ended.stderr.contains("ring full"), "{}", ended.stderr);
    assert_eq!(ended.code, Some(3), "--strict: {}", ended.stderr);
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

#[test]
#[ignore = "needs root: cargo xtask test"]
fn idle_is_there_when_asked_for_only() {
    let mut run = Run::start(&["-f", "json", "--idle"]);
    for _ in 0..10 {
        let sample = run.sample(|sample| sample["pid"] == 0);
        assert!(sample["comm"].as_str().unwrap().starts_with("swapper"), "{sample}");
        assert_eq!(sample["user_end"], "no_user_memory", "{sample}");
    }
    drop(run);

    let output = crate::support::run(&["-f", "json", "-d", "1"]);
    let (samples, summary) = parse_json(&String::from_utf8(output.stdout).unwrap());
    assert!(samples.iter().all(|sample| sample["tid"] != 0));
    assert_sound(&samples, &summary);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_online_cpu_is_sampled() {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online: CpuList = online.parse().unwrap();
    let output = run(&["-f", "json", "-d", "1"]);
    let (_, summary) = parse_json(&String::from_utf8(output.stdout).unwrap());
    let sampled = summary["per_cpu"].as_array().unwrap().iter();
    let sampled: CpuList =
        sampled.map(|account| u32::try_from(account["cpu"].as_u64().unwrap()).unwrap()).collect();
    assert_eq!(sampled, online);

    let output = run(&["-f", "json", "-d", "1", "-C", "0"]);
    let (samples, summary) = parse_json(&String::from_utf8(output.stdout).unwrap());
    assert!(samples.iter().all(|sample| sample["cpu"] == 0));
    assert_eq!(summary["per_cpu"].as_array().unwrap().len(), 1);
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
    let output = run(&["-f", "folded", "-F", "499", "-d", "1", "--max-stacks", "1"]);
    let folded = String::from_utf8(output.stdout).unwrap();
    assert!(folded.contains("[stacks beyond --max-stacks] "), "{folded}");
    assert_eq!(folded.lines().count(), 2);
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
fn the_program_logs_when_asked_to() {
    let program = Program::start("chain.c");
    let arguments = ["-d", "1", "-p", &program.pid(), "-o", "/dev/null"];
    let stderr = |more: &[&str]| {
        let output = run(&[&arguments[..], more].concat());
        String::from_utf8(output.stderr).unwrap()
    };
    let line = format!("sample of tid {}", program.pid());
    assert!(stderr(&["--bpf-log", "-v"]).contains(&line));
    assert!(!stderr(&["-v"]).contains(&line));
}
