//! The threads that must be in time have priority.

use std::fs;

use crate::support::{Program, Run, has_tables, parse_json, run, wait_until};

/// Policy and nice value of each thread of a process, by its name.
fn priorities(pid: u32) -> Vec<(String, i64, i64)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let priority = |stat: String| {
        let (name, fields) = stat.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        // `proc_pid_stat(5)` counts from 1, and two are before these.
        Some((name.to_owned(), fields.get(38)?.parse().ok()?, fields.get(16)?.parse().ok()?))
    };
    threads.filter_map(|it| priority(fs::read_to_string(it.path().join("stat")).ok()?)).collect()
}

/// The parser processes that a process has started.
fn parsers(pid: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|it| it.file_name().to_str()?.parse().ok());
    let is_parser = |parser: &u32| {
        let stat = fs::read_to_string(format!("/proc/{parser}/stat")).unwrap_or_default();
        let (before, rest) = stat.rsplit_once(')').unwrap_or_default();
        let parent = rest.split_whitespace().nth(1).and_then(|it| it.parse().ok());
        before.ends_with("(profiler-parser") && parent == Some(pid)
    };
    pids.filter(is_parser).collect()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn threads_that_must_be_in_time_have_priority() {
    let program = Program::start("nofp.c");
    let realtime = i64::from(libc::SCHED_RR);
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    run.sample(|_| true);
    let pid = run.child.id();
    for name in ["profiler", "tracker", "unwind", "unwind-tables", "symbolize"] {
        // One that has used up its budget has the nice value left.
        wait_until(&format!("{name} has priority"), || {
            priorities(pid).iter().any(|it| it.0 == name && it.2 < 0)
        });
    }
    wait_until("one is ahead of ordinary threads", || {
        priorities(pid).iter().any(|it| it.1 == realtime)
    });
    if has_tables() {
        let of_parsers = || parsers(pid).into_iter().flat_map(priorities);
        // Lent when it is first asked. What there is to do at the start is less than its budget.
        wait_until("a parser process is, too", || {
            of_parsers().any(|it| it.1 == realtime && it.2 < 0)
        });
    }
    drop(run);

    let mut run = Run::start(&["-f", "json", "--no-realtime", "-p", &program.pid()]);
    run.sample(|_| true);
    let pid = run.child.id();
    let all = parsers(pid).into_iter().chain([pid]).flat_map(priorities);
    let priorities: Vec<_> = all.collect();
    assert!(priorities.len() >= 5, "{priorities:?}");
    assert!(priorities.iter().all(|it| (it.1, it.2) == (0, 0)), "{priorities:?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_runs_at_the_start_has_its_tables_by_then() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nofp.c", &[]);
    let mut run = Run::start(&["-f", "json", "-F", "999", "-p", &program.pid()]);
    let first = run.sample(|_| true);
    // The agent has not had to walk it.
    assert_eq!(first["user_from_snapshot"], false, "{first}");
    assert_eq!(first["user_end"], "complete", "{first}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_fast_run_ends_in_time_and_is_accounted_for() {
    let _load = [Program::start("nofp.c"), Program::start("nofp.c")];
    let asked = ["-e", "cpu-clock", "-F", "100000", "-d", "1", "-f", "json"];
    let output = run(&asked);
    let (_, summary) = parse_json(&String::from_utf8(output.stdout).unwrap());
    // What the events have counted is what they were enabled for: a second each, not until the reader had
    // time. At a lower rate the same time has fewer samples.
    let cpus = summary["per_cpu"].as_array().unwrap().len() as u64;
    let expected = summary["expected"].as_u64().unwrap();
    assert!(expected < cpus * 150_000, "{summary}");
    assert!(summary["duration_ns"].as_u64().unwrap() < 1_500_000_000, "{summary}");
    crate::every_kernel::ledger::assert_identity(&summary);
    // A machine that carries it has nothing to say.
    let stderr = String::from_utf8(output.stderr).unwrap();
    let lowered = &summary["lowered"];
    assert_eq!(stderr.contains("the rate is lowered to"), lowered.is_object(), "{stderr}");
    if let Some(hz) = lowered["frequency"].as_u64() {
        assert!(hz < 100_000 && stderr.contains(&format!("finally to {hz} Hz")), "{stderr}");
    }
}
