//! Every sample is accounted for.

use std::io::{BufRead as _, BufReader};

use profiler::stderr;
use profiler_profile::cpus::CpuList;
use serde_json::Value;

use crate::support::{Program, Run, parse_json, read_json, run, sum, wait_until};

/// What must hold of an account, whatever the machine did: three parties have counted apart.
pub(crate) fn assert_identity(account: &Value) {
    let count = |name: &str| account[name].as_u64().unwrap();
    let (filtered, lost) = (sum(&account["filtered"]), sum(&account["lost"]));
    assert_eq!(count("expected"), count("delivered") + filtered + lost, "{account}");
    // Without what the kernel has skipped and what is put down as the rest, the program's own count
    // of its runs has to meet what became of them.
    let count_in = |what: &str, why: &str| account[what][why].as_u64().unwrap();
    let not_fired = count_in("filtered", "asleep") + count_in("filtered", "excluded");
    let skipped = not_fired + count_in("lost", "missed") + count_in("lost", "throttled");
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
    // To a file: a reader that competes with all of this may read nothing for longer than is waited for it.
    let output = tempfile::NamedTempFile::new().unwrap();
    let path = output.path().to_str().unwrap();
    let run = Run::start(&["-f", "json", "-F", "4999", "-o", path]);
    let (mut lines, mut written) = (BufReader::new(output.reopen().unwrap()), 0);
    wait_until("a thousand samples are written", || {
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).unwrap() > 0 {
            written += usize::from(line.ends_with(b"\n"));
            line.clear();
        }
        written >= 1000
    });
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (samples, summary) = read_json(output.path());
    assert_sound(&samples, &summary);
    let stderr = ended.stderr;
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
fn a_run_that_may_open_no_more_files_is_accounted_for() {
    let _load = Program::start("chain.c");
    let mut run = Run::start(&["-f", "json"]);
    let mut samples: Vec<Value> = (0..20).map(|_| run.sample(|_| true)).collect();
    run.exhaust_files();
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (rest, summary) = parse_json(&ended.stdout);
    samples.extend(rest);
    assert_sound(&samples, &summary);
    assert!(summary["fired"].as_u64().unwrap() >= 20, "{summary}");
}

/// A rate that the kernel does not allow for long; the limit is as before when this is dropped.
struct Limit(String);

impl Limit {
    const PATH: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

    /// `None`, and said, where the kernel takes no limit since it has none of the time for samples, as on
    /// emulated machines.
    fn lower(rate: &str) -> Option<Self> {
        let before = Self(std::fs::read_to_string(Self::PATH).unwrap());
        match std::fs::write(Self::PATH, rate) {
            Ok(()) => Some(before),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                stderr::say("skipped: kernel.perf_cpu_time_max_percent is 0 or 100");
                None
            }
            Err(error) => panic!("{}: {error}", Self::PATH),
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::PATH, &self.0);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_the_kernel_throttles_is_expected_and_lost() {
    let program = Program::start("chain.c");
    for event in ["cpu-clock", "task-clock"] {
        let mut run =
            Run::start(&["-f", "json", "-e", event, "-c", "100000", "-p", &program.pid()]);
        run.sample(|_| true);
        {
            let Some(_limit) = Limit::lower("1000") else { return };
            program.wait_for_ticks(20);
        }
        let ended = run.end_by(libc::SIGINT);
        let (_, summary) = parse_json(&ended.stdout);
        assert_identity(&summary);
        // As the time has it, which began a little before and ended a little after the count.
        let cpus = summary["per_cpu"].as_array().unwrap().len() as u64;
        let due = summary["duration_ns"].as_u64().unwrap() / 100_000 * cpus;
        let expected = summary["expected"].as_u64().unwrap();
        assert!(expected.abs_diff(due) < due / 10, "{due} periods have passed: {summary}");
        assert!(summary["lost"]["throttled"].as_u64().unwrap() > 100, "{summary}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn kernel_only_leaves_user_mode_out() {
    let programs = [Program::start("syscalls.c"), Program::start("chain.c")];
    let [calls, works] = [0, 1].map(|at: usize| programs[at].pid());
    let mut run = Run::start(&["-f", "json", "-F", "499", "--kernel-only", "-p", &calls]);
    let mut samples: Vec<Value> = (0..100).map(|_| run.sample(|_| true)).collect();
    let (rest, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    samples.extend(rest);
    let has_stack = |it: &Value| !it["kernel"].as_array().unwrap().is_empty();
    assert!(samples.iter().all(has_stack), "{summary}");
    assert_sound(&samples, &summary);

    // It is hardly ever in the kernel, and the end says why there is so little.
    let output = run_for(&programs[1], &["-F", "499", "--kernel-only", "-p", &works]);
    assert!(output.contains("filtered: ") && output.contains(", user mode "), "{output}");
}

/// The ledger of a run that ends after the program has worked.
pub(crate) fn run_for(program: &Program, arguments: &[&str]) -> String {
    let run = Run::start(&[arguments, &["-o", "/dev/null"]].concat());
    run.wait_until_it_samples();
    program.wait_for_ticks(50);
    let stderr = run.end_by(libc::SIGINT).stderr;
    let (_, last) = stderr.rsplit_once(" CPUs\n").unwrap_or_else(|| panic!("{stderr}"));
    last.to_owned()
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
