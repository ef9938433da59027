//! A rate that the machine can't carry does not stay.

use std::{fs, thread};

use profiler::stderr;
use serde_json::Value;

use crate::{
    every_kernel::ledger::assert_identity,
    support::{Program, parse_json, run},
};

/// A kernel setting; it is as before when this is dropped.
struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    fn new(path: &'static str, value: &str) -> Self {
        let before = fs::read_to_string(path).unwrap();
        fs::write(path, value).unwrap();
        Self { path, before }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.path, &self.before);
    }
}

/// The summary, and what was said, of so many seconds at 100,000 Hz on busy CPUs of which sampling may take so many
/// percent. Nothing, which is said, where a machine is emulated.
fn at_100_khz(max_percent: &str, seconds: &str) -> Option<(Value, String)> {
    if std::env::var_os("PROFILER_TEST_EMULATED").is_some() {
        stderr::say("skipped: an emulated machine has no time for 100,000 samples a second");
        return None;
    }
    let cpus = thread::available_parallelism().unwrap().get();
    let _load: Vec<Program> = (0..cpus).map(|_| Program::start("nofp.c")).collect();
    let _limit = Setting::new("/proc/sys/kernel/perf_cpu_time_max_percent", max_percent);
    let output = run(&["-e", "cpu-clock", "-F", "100000", "-d", seconds, "-f", "json"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let (_, summary) = parse_json(&String::from_utf8(output.stdout).unwrap());
    assert_identity(&summary);
    Some((summary, stderr))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_rate_that_takes_too_much_of_a_cpu_is_lowered_for_the_rest_of_the_run() {
    // No machine takes 100,000 samples in a hundredth of the time.
    let Some((summary, stderr)) = at_100_khz("1", "5") else { return };
    assert!(stderr.contains("; the rate is lowered to "), "{stderr}");
    let lowered = &summary["lowered"];
    assert!(lowered["times"].as_u64().unwrap() > 0, "{summary}");
    let hz = lowered["frequency"].as_u64().unwrap();
    assert!(hz < 100_000 && stderr.contains(&format!(", finally to {hz} Hz: ")), "{stderr}");
    // The events really were slower, for at least half of the run, and ended in time.
    let cpus = summary["per_cpu"].as_array().unwrap().len() as u64;
    assert!(summary["expected"].as_u64().unwrap() < cpus * 250_000, "{summary}");
    assert!(summary["duration_ns"].as_u64().unwrap() < 6_000_000_000, "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_clock_that_misses_a_quarter_of_its_samples_is_lowered() {
    // What sampling is seen to take of a CPU is no reason now.
    let Some((summary, stderr)) = at_100_khz("99", "3") else { return };
    let [expected, missed] =
        [&summary["expected"], &summary["lost"]["missed"]].map(|it| it.as_u64().unwrap());
    let why = " % of the samples of a busy CPU were missed";
    if missed * 100 > expected * 25 {
        assert!(stderr.contains(why), "{missed} of {expected} missed: {stderr}");
    }
    // A machine that carries the rate has nothing to say.
    assert_eq!(summary["lowered"].is_object(), stderr.contains("; the rate is lowered to "));
}
