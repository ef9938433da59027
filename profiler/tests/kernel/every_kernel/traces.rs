//! Tracepoints and probes: each hit is a sample.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use profiler::stderr;
use serde_json::Value;

use super::ledger::assert_sound;
use crate::{
    support::{Ended, Program, Run, fixture, left_in_kernel, parse_json, run, symbols},
    tracefs::Tracefs,
};

/// What the fixture hits.
const RENAME: &str = "task:task_rename";

/// Whether the kernel has a PMU; if not, says so.
fn has_pmu(name: &str) -> bool {
    let is_there = Path::new("/sys/bus/event_source/devices").join(name).exists();
    if !is_there {
        stderr::say(&format!("skipped: this kernel has no {name} events"));
    }
    is_there
}

/// The program that takes another name a hundred times when it is told to.
struct Renames {
    program: Program,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl Renames {
    fn start() -> Self {
        let mut command = Command::new(fixture("renames.c"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Program(command.spawn().unwrap());
        let (stdin, stdout) = (program.0.stdin.take().unwrap(), program.0.stdout.take().unwrap());
        let mut renames = Self { program, stdin, stdout };
        renames.wait();
        renames
    }

    fn pid(&self) -> String {
        self.program.pid()
    }

    fn wait(&mut self) {
        self.stdout.read_exact(&mut [0]).unwrap();
    }

    /// Has it do all of it, and waits until that is done.
    fn rename(&mut self) {
        self.stdin.write_all(b"x").unwrap();
        self.wait();
    }

    /// What a run records of it.
    fn recorded(&mut self, arguments: &[&str]) -> (Vec<Value>, Value, Ended) {
        let pid = self.pid();
        let run = Run::start(&[&["-f", "json", "-p", &pid], arguments].concat());
        run.wait_until_it_samples();
        self.rename();
        let ended = run.end_by(libc::SIGINT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let (samples, summary) = parse_json(&ended.stdout);
        assert_sound(&samples, &summary);
        (samples, summary, ended)
    }
}

/// A place in the fixture.
fn in_fixture(kind: &str, place: &str) -> String {
    format!("{kind}:{}:{place}", fixture("renames.c").display())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn each_hit_of_a_tracepoint_is_a_sample() {
    let Some(_tracefs) = Tracefs::with(RENAME) else { return };
    let mut program = Renames::start();
    let (samples, summary, _) = program.recorded(&["-e", RENAME]);
    assert_eq!(samples.len(), 100, "{summary}");
    for sample in &samples {
        assert_eq!((&sample["period"], &sample["event"]), (&1.into(), &RENAME.into()));
        let user = symbols(&sample["user"]);
        let at = user.iter().position(|it| *it == "renamed").unwrap_or_else(|| panic!("{sample}"));
        assert_eq!(user[at..at + 3], ["renamed", "caller", "main"], "{sample}");
        assert!(!sample["kernel"].as_array().unwrap().is_empty(), "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn each_call_of_a_kernel_function_is_a_sample() {
    if !has_pmu("kprobe") {
        return;
    }
    let mut program = Renames::start();
    for event in ["kprobe:__set_task_comm", "kretprobe:__set_task_comm"] {
        let (samples, summary, _) = program.recorded(&["-e", event]);
        assert_eq!(samples.len(), 100, "{summary}");
        for sample in &samples {
            assert_eq!((&sample["period"], &sample["event"]), (&1.into(), &event.into()));
            let user = symbols(&sample["user"]);
            assert!(user.windows(2).any(|it| it == ["renamed", "caller"]), "{sample}");
            if event.starts_with("kprobe") {
                assert_eq!(symbols(&sample["kernel"])[0], "__set_task_comm", "{sample}");
            }
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn each_call_of_a_function_is_a_sample() {
    if !has_pmu("uprobe") {
        return;
    }
    let mut program = Renames::start();
    for (kind, chain) in [
        ("uprobe", &["renamed", "caller", "main"][..]),
        // When it has returned.
        ("uretprobe", &["caller", "main"]),
    ] {
        let event = in_fixture(kind, "renamed");
        let (samples, summary, _) = program.recorded(&["-e", &event]);
        assert_eq!(samples.len(), 100, "{summary}");
        for sample in &samples {
            assert_eq!((&sample["period"], &sample["event"]), (&1.into(), &event.clone().into()));
            assert_eq!(symbols(&sample["user"])[..chain.len()], *chain, "{sample}");
            assert!(sample["kernel"].as_array().unwrap().is_empty(), "{sample}");
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn with_a_period_a_sample_stands_for_as_many_hits() {
    if !has_pmu("uprobe") {
        return;
    }
    let mut program = Renames::start();
    let event = in_fixture("uprobe", "renamed");
    let with_term = event.clone() + "/period=10/";
    for arguments in [&["-e", &event, "-c", "10"][..], &["-e", &with_term, "-c", "7"]] {
        let (samples, summary, _) = program.recorded(arguments);
        // It stays on one CPU, and nothing else calls the function.
        assert_eq!(samples.len(), 10, "{summary}");
        assert!(samples.iter().all(|it| it["period"] == 10), "{summary}");
        assert_eq!(summary["period"], 10, "{summary}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn only_hits_whose_fields_are_as_wanted_are_samples() {
    let Some(_tracefs) = Tracefs::with(RENAME) else { return };
    let mut program = Renames::start();
    let pid = program.pid();
    let own = format!("common_pid == {pid} && newcomm ~ '*o?h*' && !(newcomm == fourth)");
    let others = format!("common_pid != {pid} || newcomm == four");
    for (filter, count) in [
        ("newcomm == fourth", 25),
        ("newcomm != \"fourth\" && oom_score_adj <= 1000", 75),
        (own.as_str(), 75),
        ("oldcomm ~ f*h || comm == another && cpu >= 0", 100),
        (others.as_str(), 0),
        ("oom_score_adj > 1000", 0),
    ] {
        let arguments = ["-e", RENAME, "--filter", filter];
        let (samples, summary, _) = program.recorded(&arguments);
        // After the first run, the name before is one of the two, too.
        assert_eq!(samples.len(), count, "{filter}: {summary}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_a_pattern_matches_is_one_source_beside_others() {
    let Some(_tracefs) = Tracefs::with(RENAME) else { return };
    let mut program = Renames::start();
    let arguments = ["-e", "task:task_*", "-e", "cpu-clock", "-F", "99"];
    let (samples, summary, ended) = program.recorded(&arguments);
    let hits = samples.iter().filter(|it| it["event"] == "task:task_*").count();
    assert_eq!(hits, 100, "{summary}");
    let sources = summary["sources"].as_array().unwrap();
    assert_eq!((&sources[0]["period"], &sources[1]["frequency"]), (&1.into(), &99.into()));
    assert!(ended.stderr.contains("\ntask:task_* every 1:\n"), "{}", ended.stderr);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn hits_on_other_cpus_than_those_named_are_none() {
    let Some(_tracefs) = Tracefs::with(RENAME) else { return };
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let last = online.trim().rsplit(['-', ',']).next().unwrap();
    if last == "0" {
        stderr::say("skipped: there is one CPU");
        return;
    }
    let mut program = Renames::start();
    for (cpu, count) in [("0", 0), (last, 100)] {
        let (samples, summary, _) = program.recorded(&["-e", RENAME, "-C", cpu]);
        assert_eq!(samples.len(), count, "{summary}");
        assert_eq!(summary["per_cpu"].as_array().unwrap().len(), 1, "{summary}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_cant_be_traced_is_said_in_a_line_or_two() {
    let Some(_tracefs) = Tracefs::with(RENAME) else { return };
    let text = tempfile::NamedTempFile::new().unwrap();
    fs::write(text.path(), "#!/bin/sh\n").unwrap();
    let of_text = format!("uprobe:{}:main", text.path().display());
    let [near, far, beyond] =
        ["renamd", "0xfffffff", "renamed+0x100000"].map(|place| in_fixture("uprobe", place));
    let (usage, refused) = (Some(2), Some(1));
    let mut all = vec![
        (vec!["-e", "task:task_renam"], usage, "did you mean task:task_rename"),
        (vec!["-e", RENAME, "--filter", "newcom == x"], usage, "did you mean newcomm"),
        (vec!["-e", RENAME, "--filter", "newcomm == 5"], usage, "`newcomm` is text"),
        (vec!["-e", RENAME, "--filter", "newcomm ="], usage, "column 9"),
        (vec!["-e", "faults", "--filter", "a == 5"], usage, "only hits of tracepoints have fields"),
        (vec!["-e", "task:task_rename:u"], usage, "leave them out"),
        (vec!["-e", RENAME, "-F", "99"], usage, "have no frequency"),
    ];
    if has_pmu("uprobe") {
        all.extend([
            (vec!["-e", &near], usage, "has no function `renamd`; did you mean renamed"),
            (vec!["-e", &far], usage, "there is no code at 0xfffffff"),
            (vec!["-e", &beyond], usage, "`renamed` has only 0x"),
            (vec!["-e", &of_text], usage, "no ELF file"),
            (vec!["-e", "uprobe:/nowhere:main"], usage, "cannot open /nowhere"),
        ]);
    }
    if has_pmu("kprobe") {
        all.extend([
            (vec!["-e", "kprobe:no_function_is_called_that"], refused, "no function of that name"),
            (vec!["-e", "kprobe:get_kprobe"], refused, "no probe can be put there"),
        ]);
    }
    for (arguments, code, part) in all {
        let output = run(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), code, "{arguments:?}: {said}");
        assert!(said.starts_with("profiler: ") && said.contains(part), "{arguments:?}: {said}");
        assert!(said.lines().count() <= 2 && output.stdout.is_empty(), "{said}");
    }
    assert_eq!(left_in_kernel(), [""; 0]);
}
