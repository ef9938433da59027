//! Events of tasks and of cgroups: nothing else fires, and what a task starts inherits them.

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
};

use profiler::stderr;
use profiler_profile::cpus::CpuList;
use serde_json::Value;

use super::{filters::Cgroup, ledger::assert_sound};
use crate::support::{
    Program, Run, fixture, left_in_kernel, parse_json, run, sum, symbols, wait_until,
};

/// What each of the four tasks of a round touches: PAGES in the fixture.
const PAGES: usize = 100;
/// Each fault is a sample.
const FAULTS: [&str; 6] = ["-f", "json", "-e", "page-faults", "-c", "1"];

/// A program that does a round when it is told to.
fn touches() -> Program {
    let mut command = Command::new(fixture("touches.c"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Program(command.spawn().unwrap());
    wait_for_byte(&mut program);
    program
}

fn wait_for_byte(program: &mut Program) {
    program.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
}

fn do_a_round(program: &mut Program) {
    program.0.stdin.as_mut().unwrap().write_all(b"+").unwrap();
    wait_for_byte(program);
}

fn is_touch(sample: &Value) -> bool {
    symbols(&sample["user"]).first() == Some(&"touch")
}

/// The samples of touched pages in this process and in others, and the summary.
fn ended(run: Run, pid: u32) -> (usize, usize, Value) {
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (samples, summary) = parse_json(&ended.stdout);
    assert_sound(&samples, &summary);
    let touched: Vec<&Value> = samples.iter().filter(|it| is_touch(it)).collect();
    let own = touched.iter().filter(|it| it["pid"] == pid).count();
    (own, touched.len() - own, summary)
}

fn nothing_is_filtered_or_lost(summary: &Value) {
    assert_eq!((sum(&summary["filtered"]), sum(&summary["lost"])), (0, 0), "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn events_of_a_command_follow_its_threads_and_children() {
    let _other = Program::start("faults.c");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.json");
    let program = fixture("touches.c");
    let arguments = [&["record", "--per-task", "-o", path.to_str().unwrap()], &FAULTS[..]].concat();
    let output = run(&[&arguments[..], &["--", program.to_str().unwrap(), "once"]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("these tasks on each CPU:"), "{said}");
    let (samples, summary) = parse_json(&std::fs::read_to_string(&path).unwrap());
    assert_sound(&samples, &summary);
    nothing_is_filtered_or_lost(&summary);
    assert_eq!(samples.iter().filter(|it| is_touch(it)).count(), 4 * PAGES, "{summary}");
    // From exec on: before that, the process is ours.
    assert!(samples.iter().all(|it| it["comm"] == "touches-c"), "{summary}");
    assert_eq!(summary["scope"], "tasks");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn events_of_a_process_follow_its_threads_and_with_children_those() {
    let _other = Program::start("faults.c");
    let mut program = touches();
    let pid = program.pid();
    let run = Run::start(&[&["--per-task", "-p", &pid], &FAULTS[..]].concat());
    run.wait_until_it_samples();
    do_a_round(&mut program);
    let (own, of_children, summary) = ended(run, program.0.id());
    assert_eq!((own, of_children), (2 * PAGES, 0), "{summary}");
    assert_eq!(sum(&summary["lost"]), 0, "{summary}");
    // Before Linux 5.13, the child's fired, too.
    let filtered = sum(&summary["filtered"]);
    assert_eq!(summary["filtered"]["pid"], filtered, "{summary}");
    assert!(filtered == 0 || filtered >= 2 * PAGES as u64, "{summary}");

    let run = Run::start(&[&["--per-task", "-p", &pid, "--children"], &FAULTS[..]].concat());
    run.wait_until_it_samples();
    do_a_round(&mut program);
    do_a_round(&mut program);
    let (own, of_children, summary) = ended(run, program.0.id());
    assert_eq!((own, of_children), (4 * PAGES, 4 * PAGES), "{summary}");
    nothing_is_filtered_or_lost(&summary);

    // Of a thread alone, nothing that it starts.
    let run = Run::start(&[&["--per-task", "-t", &pid], &FAULTS[..]].concat());
    run.wait_until_it_samples();
    do_a_round(&mut program);
    let (own, of_children, summary) = ended(run, program.0.id());
    assert_eq!((own, of_children), (PAGES, 0), "{summary}");
    nothing_is_filtered_or_lost(&summary);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn threads_that_were_there_have_events_of_their_own() {
    let program = Program::ready("threads.c", &[]);
    let _other = Program::start("chain.c");
    let arguments = ["-f", "json", "-e", "cpu-clock", "-F", "499", "--per-task"];
    let mut run = Run::start(&[&arguments[..], &["-p", &program.pid()]].concat());
    let main = program.0.id();
    let mut samples: Vec<Value> = Vec::new();
    let is_of = |samples: &[Value], wanted: &dyn Fn(&Value) -> bool| samples.iter().any(wanted);
    loop {
        samples.push(run.sample(|_| true));
        let Some(first) = samples.iter().find(|it| it["tid"] != main) else { continue };
        let first = first["tid"].clone();
        if is_of(&samples, &|it| it["tid"] != main && it["tid"] != first) {
            break;
        }
    }
    // With the process, the run ends.
    drop(program);
    let ended = run.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("process {main} has ended")), "{}", ended.stderr);
    let (rest, summary) = parse_json(&ended.stdout);
    samples.extend(rest);
    assert_sound(&samples, &summary);
    assert!(samples.iter().all(|it| it["comm"] == "threads-c"), "{samples:?}");
    assert_eq!(sum(&summary["filtered"]), 0, "{summary}");
    assert_eq!(summary["dithered"], false, "{summary}");
    // The kernel frees what the last event of a task held a moment after that.
    wait_until("nothing is left in the kernel", || left_in_kernel().is_empty());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn cpus_and_names_select_among_tasks() {
    let program = Program::ready("threads.c", &[]);
    let arguments = ["-f", "json", "-e", "cpu-clock", "-F", "499", "--per-task"];
    let pid = program.pid();
    let of_first = [&arguments[..], &["-p", &pid, "-C", "0", "--comm", "threads*"]].concat();
    let mut run = Run::start(&of_first);
    let mut samples: Vec<Value> = (0..20).map(|_| run.sample(|_| true)).collect();
    let (rest, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    samples.extend(rest);
    assert_sound(&samples, &summary);
    assert!(samples.iter().all(|it| it["cpu"] == 0), "{samples:?}");
    assert_eq!(summary["per_cpu"].as_array().unwrap().len(), 1, "{summary}");

    let run = Run::start(&[&arguments[..], &["-p", &pid, "--comm", "others"]].concat());
    run.wait_until_it_samples();
    program.wait_for_ticks(20);
    let (samples, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    assert_sound(&samples, &summary);
    assert_eq!((samples.len(), summary["filtered"]["comm"] == 0), (0, false), "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_breakpoint_of_a_task_is_hit_by_it_and_its_threads() {
    if !profiler::steps_over_breakpoints() {
        stderr::say("skipped: a breakpoint would stop the program on this kernel");
        return;
    }
    let mut command = Command::new(fixture("writes.c"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Program(command.spawn().unwrap());
    let mut said = Vec::new();
    let output = program.0.stdout.as_mut().unwrap();
    while said.last() != Some(&b'\n') {
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    let event = format!("mem:{}/8:w", String::from_utf8(said).unwrap().trim());
    let pid = program.pid();
    let arguments = ["--per-task", "-f", "json", "-e", &event, "-c", "1", "-p", &pid];
    let run = Run::start(&arguments);
    run.wait_until_it_samples();
    do_a_round(&mut program);
    let (samples, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    assert_sound(&samples, &summary);
    assert_eq!(samples.len(), 100, "{summary}");
    nothing_is_filtered_or_lost(&summary);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn events_of_a_cgroup_fire_in_it_alone() {
    let Some(cgroup) = Cgroup::new() else { return };
    let _other = Program::start("faults.c");
    let mut program = touches();
    cgroup.take(&program);
    let folder = cgroup.folder.to_str().unwrap();
    // What is below it is not counted twice.
    let below = format!("{folder}/below");
    let cgroups = ["--per-cgroup", "--cgroup", folder, "--cgroup", &below];
    let run = Run::start(&[&cgroups[..], &FAULTS].concat());
    run.wait_until_it_samples();
    do_a_round(&mut program);
    let (own, of_children, summary) = ended(run, program.0.id());
    assert_eq!((own, of_children), (2 * PAGES, 2 * PAGES), "{summary}");
    nothing_is_filtered_or_lost(&summary);
    assert_eq!(summary["scope"], "cgroups", "{summary}");
    drop(program);

    let program = Program::start("chain.c");
    cgroup.take(&program);
    let _other = Program::start("nofp.c");
    let arguments = ["-f", "json", "-e", "cpu-clock", "-F", "499", "--per-cgroup", "--cgroup"];
    let mut run = Run::start(&[&arguments[..], &[folder]].concat());
    let mut samples: Vec<Value> = (0..30).map(|_| run.sample(|_| true)).collect();
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (rest, summary) = parse_json(&ended.stdout);
    samples.extend(rest);
    assert_sound(&samples, &summary);
    assert!(samples.iter().all(|it| it["comm"] == "chain-c"), "{samples:?}");
    assert_eq!(sum(&summary["filtered"]), 0, "{summary}");
    assert!(ended.stderr.contains("these cgroups on each CPU:"), "{}", ended.stderr);
    drop(program);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn tasks_and_cgroups_that_can_not_be_counted_are_refused() {
    let program = Program::ready("threads.c", &[]);
    let Some(_cgroup) = Cgroup::new() else { return };
    let message = |arguments: &[&str]| {
        let output = run(&[arguments, &["-d", "1", "-o", "/dev/null"]].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (arguments, part) in [
        (&["--per-task"][..], "--per-task: whose tasks? Add -p, -t, or a command"),
        (&["--per-task", "--comm", "a"], "--per-task: whose tasks?"),
        (&["--per-task", "-a"], "--per-task"),
        (&["--per-task", "--per-cgroup", "-p", "1"], "--per-cgroup"),
        (&["--per-task", "-p", "4194305"], "no process"),
        (&["--per-cgroup"], "--per-cgroup: which cgroup? Add --cgroup, --container or --unit"),
        (&["--per-cgroup", "--cgroup", "/none/such"], "no such cgroup"),
    ] {
        let (code, said) = message(arguments);
        assert!(code == Some(2) && said.contains(part), "{arguments:?}: {said}");
    }
    // As many files as a run needs without a file for each thread and CPU.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let limit = 56 + 4 * online.parse::<CpuList>().unwrap().len();
    let limited = |of: &str| {
        let path = crate::support::profiler_path();
        let sampling = format!("-d 1 -o /dev/null -e cpu-clock -p {} {of}", program.pid());
        let script = format!("ulimit -n {limit}; exec {} {sampling}", path.display());
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = limited("");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = limited("--per-task");
    let limit = format!("open files are limited to {limit}");
    assert!(code == Some(1) && said.contains(&limit) && said.contains("3 threads on "), "{said}");
    assert!(said.contains("ulimit -n"), "{said}");
    drop(program);
    // The kernel frees what the last event of a task held a moment after that.
    wait_until("nothing is left in the kernel", || left_in_kernel().is_empty());
}
