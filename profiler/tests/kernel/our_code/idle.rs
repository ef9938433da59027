//! What a CPU does while it sleeps.

use std::{collections::BTreeMap, fs};

use profiler::stderr;
use serde_json::Value;

use crate::{
    every_kernel::ledger::assert_identity,
    support::{Program, Run, parse_json},
};

/// For how long each CPU has been idle, in ticks of 10 ms, which are about periods at 99 Hz.
fn idle_ticks() -> BTreeMap<u64, u64> {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let cpu = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split(' ');
        let cpu = fields.next()?.parse().ok()?;
        // Idle, and waiting for a disk.
        let ticks = fields.skip(3).take(2).map(|it| it.parse::<u64>().unwrap()).sum();
        Some((cpu, ticks))
    };
    stat.lines().filter_map(cpu).collect()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_a_sleeping_cpu_does_not_sample_is_not_missed() {
    if std::env::var_os("PROFILER_TEST_EMULATED").is_some() {
        return stderr::say("skipped: an emulated machine's timers and idle times do not agree");
    }
    // Its samples tell the time; other CPUs may sleep.
    let _load = Program::start("chain.c");
    for arguments in
        [&["-e", "cpu-clock", "--idle"][..], &["-e", "task-clock"], &["-e", "task-clock", "--idle"]]
    {
        let mut run = Run::start(&[&["-f", "json", "-F", "99"], arguments].concat());
        let mut samples = vec![run.sample(|_| true)];
        let time = |sample: &Value| sample["time_ns"].as_u64().unwrap();
        let until = time(&samples[0]) + 2_000_000_000;
        let before = idle_ticks();
        while samples.last().is_none_or(|it| time(it) < until) {
            samples.push(run.sample(|_| true));
        }
        let after = idle_ticks();
        let (rest, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
        samples.extend(rest);
        assert_identity(&summary);
        for account in summary["per_cpu"].as_array().unwrap() {
            let cpu = account["cpu"].as_u64().unwrap();
            let slept = after[&cpu] - before[&cpu];
            // Where the event fires on a sleeping CPU, it finds the idle task.
            let delivered = samples.iter().filter(|it| it["cpu"] == cpu && it["tid"] == 0).count();
            let filtered = |why: &str| account["filtered"][why].as_u64().unwrap();
            let known = filtered("asleep") + filtered("idle") + delivered as u64;
            // The kernel counts a tick as idle by what it finds at its end.
            assert!(known + 5 >= slept * 8 / 10, "{arguments:?}: {slept} ticks of {account}");
        }
    }
}
