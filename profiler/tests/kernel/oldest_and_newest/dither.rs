//! What keeps step with the clock is sampled as it is, and what a process uses of the CPU is what its
//! samples stand for.

use std::{fs, path::Path};

use profiler::stderr;
use serde_json::Value;

use crate::support::{Program, Run, cpu_ticks, now_ns, parse_json, symbols};

/// Whether timers may be late by more than the noise of samples; if so, says it.
fn is_late() -> bool {
    let is_emulated = std::env::var_os("PROFILER_TEST_EMULATED").is_some();
    if is_emulated {
        stderr::say("skipped: timers of emulated machines are late");
    }
    is_emulated
}

/// For how long the two functions of the program that keeps step have run, in ns.
fn used(file: &Path) -> [f64; 2] {
    let bytes = fs::read(file).unwrap();
    let (words, _) = bytes.as_chunks();
    [0, 1].map(|at| u64::from_ne_bytes(words[at]) as f64)
}

/// The share of the first function as the samples have it, and as it is, and how many samples there were.
fn shares(arguments: &[&str], samples: u32) -> (f64, f64, f64) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(16).unwrap();
    let path = file.path().to_str().unwrap();
    let program = Program::ready("lockstep.c", &[path]);
    let mut run = Run::start(&[&["-f", "json", "-p", &program.pid()], arguments].concat());
    let mut sampled = [0.0, 0.0];
    run.sample(|_| true);
    let before = used(file.path());
    for _ in 0..samples {
        let sample = run.sample(|_| true);
        let names = symbols(&sample["user"]);
        let period = sample["period"].as_u64().unwrap() as f64;
        for (at, name) in ["seven", "three"].into_iter().enumerate() {
            if names.contains(&name) {
                sampled[at] += period;
            }
        }
    }
    let after = used(file.path());
    let share = |[first, second]: [f64; 2]| first / (first + second);
    let all = sampled[0] + sampled[1];
    let period = all / f64::from(samples);
    assert!(period > 0.0);
    (share(sampled), share([0, 1].map(|at| after[at] - before[at])), f64::from(samples))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_loop_in_step_with_the_clock_is_sampled_as_it_is() {
    if is_late() {
        return;
    }
    for (rate, samples) in [("100", 400), ("999", 1500)] {
        let (sampled, real, samples) = shares(&["-F", rate, "-e", "cpu-clock"], samples);
        // Four standard deviations of as many independent samples.
        let noise = 4.0 * (real * (1.0 - real) / samples).sqrt();
        let what = format!("{sampled:.3} at {rate} Hz, in truth {real:.3}");
        assert!((sampled - real).abs() < noise, "{what}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_comb_is_there_for_those_who_want_it() {
    let program = Program::start("chain.c");
    let pid = program.pid();
    for arguments in [&["-F", "100", "--no-dither"][..], &["-c", "10000000"]] {
        let arguments = [&["-f", "json", "-e", "cpu-clock", "-p", &pid], arguments].concat();
        let mut run = Run::start(&arguments);
        for _ in 0..20 {
            assert_eq!(run.sample(|_| true)["period"], 10_000_000);
        }
        let (_, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
        assert_eq!(summary["dithered"], false, "{summary}");
    }
}

/// The CPU time of a process, and what its samples stand for.
fn compare(name: &str) {
    let program = if name == "chain.c" { Program::start(name) } else { Program::ready(name, &[]) };
    let arguments = ["-f", "json", "-F", "999", "-e", "cpu-clock", "-p", &program.pid()];
    let mut run = Run::start(&arguments);
    run.sample(|_| true);
    let (start_ns, start_ticks) = (now_ns(), cpu_ticks(program.0.id()));
    program.wait_for_ticks(150);
    let (end_ns, end_ticks) = (now_ns(), cpu_ticks(program.0.id()));
    let ended = run.end_by(libc::SIGINT);
    let (samples, summary) = parse_json(&ended.stdout);
    crate::every_kernel::ledger::assert_identity(&summary);
    assert_eq!(summary["dithered"], true, "{summary}");
    let is_within =
        |sample: &&Value| (start_ns..end_ns).contains(&sample["time_ns"].as_u64().unwrap());
    let periods = samples.iter().filter(is_within).map(|it| it["period"].as_u64().unwrap() as f64);
    let (count, sum) = periods.fold((0.0, 0.0), |(count, sum), it| (count + 1.0, sum + it));
    // SAFETY: no preconditions.
    let tick_ns = 1e9 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let used_ns = (end_ticks - start_ticks) as f64 * tick_ns;
    // Four standard deviations of so many samples, and the steps in which /proc counts.
    let noise_ns = 4.0 * f64::sqrt(count) * sum / count + 2.0 * tick_ns;
    let what = format!("{name}: {:.1} ms sampled, {:.1} ms used", sum / 1e6, used_ns / 1e6);
    assert!((sum - used_ns).abs() < noise_ns, "{what}, {summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn samples_stand_for_the_cpu_time_of_a_process() {
    if is_late() {
        return;
    }
    compare("chain.c");
    compare("threads.c");
}
