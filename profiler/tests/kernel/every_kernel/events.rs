//! Events by the names that perf gives them, as the kernel opens them.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

use profiler::stderr;
use serde_json::Value;

use super::ledger::assert_sound;
use crate::support::{Program, Run, fixture, parse_json, run, symbols};

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_breakpoint_samples_every_write() {
    let mut command = Command::new(fixture("writes.c"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Program(command.spawn().unwrap());
    let mut output = BufReader::new(program.0.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let event = format!("mem:{}/8:w", line());
    let arguments = ["-f", "json", "-e", &event, "-c", "1", "-p", &program.pid()];
    if !profiler::steps_over_breakpoints() {
        let refused = run(&arguments);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!((refused.status.code(), said.contains("before Linux 6.6")), (Some(2), true));
        return;
    }
    let run = Run::start(&arguments);
    run.wait_until_it_samples();
    program.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    line();
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (samples, summary) = parse_json(&ended.stdout);
    assert_eq!(samples.len(), 100, "{summary}");
    for sample in &samples {
        assert_eq!(symbols(&sample["user"])[..2], ["count", "main"], "{sample}");
        assert_eq!((&sample["period"], &sample["event"]), (&1.into(), &event.clone().into()));
    }
    assert_sound(&samples, &summary);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_clock_of_user_mode_leaves_the_kernel_out() {
    let _in_kernel = Program::start("syscalls.c");
    let program = Program::start("chain.c");
    let mut run = Run::start(&["-f", "json", "-F", "499", "-e", "cpu-clock:u"]);
    let mut samples: Vec<Value> = (0..100).map(|_| run.sample(|_| true)).collect();
    program.wait_for_ticks(20);
    let (rest, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    samples.extend(rest);
    assert!(samples.iter().all(|it| it["kernel"].as_array().unwrap().is_empty()));
    assert!(samples.iter().any(|it| it["comm"] == "chain-c"));
    assert!(summary["filtered"]["excluded"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(summary["lost"]["missed"], 0, "{summary}");
    assert_sound(&samples, &summary);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_clock_is_as_precise_as_it_is() {
    for (event, is_less) in [("cpu-clock:pp", true), ("cpu-clock:P", false)] {
        let output = run(&["-d", "100ms", "-e", event]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert_eq!(said.contains("sampling with precise_ip 0"), is_less, "{said}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn cycles_are_the_same_by_name_number_and_pmu() {
    let devices = fs::read_dir("/sys/bus/event_source/devices").unwrap().flatten();
    let names = devices.map(|it| it.file_name().to_string_lossy().into_owned());
    let Some(pmu) = names.into_iter().find(|it| it.starts_with("armv8_")) else {
        stderr::say("skipped: no ARM PMU");
        return;
    };
    let program = Program::start("chain.c");
    for event in
        ["cycles:u", "r11:u", &format!("{pmu}/cpu_cycles/u"), &format!("{pmu}/event=0x11/u")]
    {
        let mut run = Run::start(&["-f", "json", "-e", event, "-p", &program.pid()]);
        for _ in 0..20 {
            let sample = run.sample(|_| true);
            assert_eq!((&sample["comm"], &sample["event"]), (&"chain-c".into(), &event.into()));
            assert!(!sample["user"].as_array().unwrap().is_empty(), "{sample}");
        }
        let ended = run.end_by(libc::SIGINT);
        assert_eq!(ended.code, Some(0), "{event}: {}", ended.stderr);
    }
}
