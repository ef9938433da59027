//! What the profiler takes of memory while thousands of processes come and go.

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    oldest_and_newest::limits::MemoryCgroup,
    support::{Program, Run, fixture, parse_json},
};

/// What all caches may take together by default.
const CACHES_BYTES: u64 = 80 << 20;
/// What the agent and its parser processes may take without the files that they map.
const ANON_BYTES: u64 = 96 << 20;

/// A shell that starts so many short processes once it may, and says when that is done.
fn storm(processes: u32) -> Program {
    let script = "read go; i=0; while [ $i -lt \"$1\" ]; do \"$0\" 0 child; i=$((i + 1)); done; \
                  echo done; read end";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(fixture("brief.c")).arg(processes.to_string());
    Program(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
}

/// Each cache holds what it may at most; returns what all may hold.
fn assert_within_limits(memory: &Value) -> u64 {
    let mut limits = 0;
    for cache in memory["caches"].as_array().unwrap() {
        let number = |name: &str| cache[name].as_u64();
        let (entries, bytes) = (number("entries").unwrap(), number("bytes").unwrap());
        if let Some(limit) = number("limit_bytes") {
            // The files of one stack stay, however large they are.
            let is_in_use = cache["name"] == "symbols of files" && entries <= 16;
            assert!(bytes <= limit || is_in_use, "{memory}");
            limits += limit;
        }
        assert!(number("limit_entries").is_none_or(|limit| entries <= limit), "{memory}");
    }
    limits
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_storm_of_processes_leaves_the_caches_within_their_limits() {
    let is_emulated = std::env::var_os("PROFILER_TEST_EMULATED").is_some();
    let mut storm = storm(if is_emulated { 300 } else { 5000 });
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("samples");
    // Other programs of the machine are not counted, however large they are.
    let arguments = ["-v", "-F", "499", "-f", "json", "--children", "-p", &storm.pid(), "-o"];
    let run = Run::start(&[&arguments[..], &[output.to_str().unwrap()]].concat());
    run.wait_until_it_samples();
    storm.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    storm.0.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);

    let (samples, summary) = parse_json(&std::fs::read_to_string(&output).unwrap());
    assert!(!samples.is_empty(), "{summary}");
    let memory = &summary["memory"];
    assert!(assert_within_limits(memory) <= CACHES_BYTES, "{memory}");
    let anon = |of: &str| memory[of]["anon_bytes"].as_u64().unwrap();
    assert!(anon("agent") > 0 && anon("agent") + anon("parsers") < ANON_BYTES, "{memory}");
    assert_eq!(memory["parser_processes"], 2, "{memory}");
    let cache = |name: &str| {
        let caches = memory["caches"].as_array().unwrap();
        caches.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name}: {memory}"))
    };
    // Kernel names are asked for one by one where the kernel tells them.
    for name in ["symbols of files", "named stacks", "names of addresses"] {
        assert!(cache(name)["bytes"].as_u64().unwrap() > 0, "{name}: {memory}");
    }
    // Those that have ended are forgotten.
    assert!(cache("processes")["entries"].as_u64().unwrap() > 0, "{memory}");
    assert_eq!(summary["evicted_processes"], 0, "{summary}");
    let rows = ["resident memory: agent ", "\nsymbols of files ", "\nnamed stacks "];
    assert!(rows.iter().all(|row| ended.stderr.contains(row)), "{}", ended.stderr);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_small_memory_cgroup_is_kept_within_while_processes_come_and_go() {
    let Some(cgroup) = MemoryCgroup::new() else { return };
    cgroup.set_limit(64 << 20);
    // The whole machine, with all that runs beside.
    let arguments = ["-v", "-d", "180s", "-f", "json", "-F", "199"];
    let mut run = Run::of(cgroup.profiler(&arguments).spawn().unwrap());
    run.wait_until_it_samples();
    let is_emulated = std::env::var_os("PROFILER_TEST_EMULATED").is_some();
    let processes = if is_emulated { "100" } else { "3000" };
    let script = "i=0; while [ $i -lt \"$1\" ]; do \"$0\" 0 child; i=$((i + 1)); done";
    let mut storm = Command::new("sh");
    storm.args(["-c", script]).arg(fixture("brief.c")).arg(processes);
    let mut storm = Program(storm.stdin(Stdio::null()).spawn().unwrap());
    while storm.0.try_wait().unwrap().is_none() {
        run.sample(|_| true);
    }
    let ended = run.end_by(libc::SIGINT);
    assert_eq!((ended.code, ended.signal), (Some(0), None), "{}", ended.stderr);
    let (_, summary) = parse_json(&ended.stdout);
    let memory = &summary["memory"];
    assert!(assert_within_limits(memory) <= 16 << 20, "{memory}");
    let anon = |of: &str| memory[of]["anon_bytes"].as_u64().unwrap();
    assert!(anon("agent") + anon("parsers") < 64 << 20, "{memory}");
}
