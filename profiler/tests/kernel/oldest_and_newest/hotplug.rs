//! CPUs that go offline and come back while they are sampled.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::Stdio,
    thread,
};

use profiler::{
    bpf::load,
    cli::SamplingArgs,
    config::{Config, Machine},
    perf::{config::CountedEvent, event::Event, set::EventSet},
    stderr,
};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::{
    every_kernel::ledger::assert_sound,
    support::{Cpu1, Program, Run, now_ns, parse_json, profiler},
};

/// A profiler that is running with JSON in a pipe, of which all is kept, and with standard error in
/// a file, so that one can be read without the other.
struct Watched {
    run: Run,
    samples: Vec<Value>,
    stderr: Stderr,
}

/// The file of standard error, which is shown when the test fails.
struct Stderr(NamedTempFile);

impl Stderr {
    fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        if thread::panicking() {
            stderr::write(&fs::read_to_string(&self.0).unwrap_or_default());
        }
    }
}

impl Watched {
    fn start(more: &[&str]) -> Self {
        let stderr = NamedTempFile::new().unwrap();
        // It ends by itself when all else fails.
        let child = profiler()
            .args(["-d", "10m", "-f", "json", "--idle", "-F", "99"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr.reopen().unwrap())
            .spawn()
            .unwrap();
        Self { run: Run::of(child), samples: Vec::new(), stderr: Stderr(stderr) }
    }

    /// Reads until so many samples are there that were taken on this CPU from now on.
    fn wait_for_samples(&mut self, cpu: u32, count: usize) {
        let now_ns = now_ns();
        let mut seen = 0;
        while seen < count {
            let sample = self.read_sample();
            if sample["cpu"] == cpu && sample["time_ns"].as_u64().unwrap() > now_ns {
                seen += 1;
            }
        }
    }

    /// Reads until it says this.
    fn wait_until_said(&mut self, text: &str) {
        while !self.stderr.text().contains(text) {
            self.read_sample();
        }
    }

    fn read_sample(&mut self) -> &Value {
        let sample = self.run.sample(|_| true);
        self.samples.push(sample);
        self.samples.last().unwrap()
    }

    /// Interrupts it; the summary and what it has said. All that holds of every run is checked.
    fn end(mut self) -> (Value, String) {
        let ended = self.run.end_by(libc::SIGINT);
        let said = self.stderr.text();
        assert_eq!(ended.code, Some(0), "{said}");
        let (rest, summary) = parse_json(&ended.stdout);
        self.samples.extend(rest);
        assert_sound(&self.samples, &summary);
        (summary, said)
    }
}

/// Enough to run on both CPUs, whichever of them the scheduler likes: on some virtual machines a
/// sleeping CPU has no samples.
fn load() -> [Program; 3] {
    std::array::from_fn(|_| Program::start("chain.c"))
}

fn not_sampled_ns(summary: &Value, cpu: u32) -> u64 {
    let accounts = summary["per_cpu"].as_array().unwrap();
    let account = accounts.iter().find(|account| account["cpu"] == cpu);
    account.unwrap()["not_sampled_ns"].as_u64().unwrap()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_cpu_taken_offline_and_back_is_sampled_again() {
    let Some(cpu) = Cpu1::take() else { return };
    let _load = load();
    let mut watched = Watched::start(&[]);
    watched.wait_for_samples(1, 1);

    cpu.set_online(false);
    watched.wait_until_said("CPU 1 went offline");
    watched.wait_for_samples(0, 50);
    cpu.set_online(true);
    watched.wait_for_samples(1, 1);

    let (summary, said) = watched.end();
    assert!(said.contains("CPU 1 came online"), "{said}");
    let is_offline = |line: &str| {
        line.starts_with("CPU 1 was not sampled for ") && line.ends_with(" s: offline")
    };
    assert!(said.lines().any(is_offline), "{said}");
    assert!(not_sampled_ns(&summary, 1) > 0, "{summary}");
    assert_eq!(not_sampled_ns(&summary, 0), 0, "{summary}");
    assert_eq!(summary["not_sampled_ns"], not_sampled_ns(&summary, 1));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_cpu_that_never_comes_back_stays_in_the_ledger() {
    let Some(cpu) = Cpu1::take() else { return };
    let _load = load();
    let mut watched = Watched::start(&[]);
    watched.wait_for_samples(1, 1);
    cpu.set_online(false);
    watched.wait_until_said("CPU 1 went offline");
    let (summary, _) = watched.end();
    assert!(not_sampled_ns(&summary, 1) > 0, "{summary}");
    assert!(summary["per_cpu"][1]["delivered"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_cpu_that_is_away_for_a_moment_is_sampled_again() {
    let Some(cpu) = Cpu1::take() else { return };
    let _load = load();
    let mut watched = Watched::start(&[]);
    watched.wait_for_samples(1, 1);
    cpu.set_online(false);
    cpu.set_online(true);
    // Whether the list of CPUs was read in between or not.
    watched.wait_for_samples(1, 1);
    let (summary, said) = watched.end();
    let again = ["CPU 1 was offline for a moment", "CPU 1 came online"];
    assert!(again.iter().any(|text| said.contains(text)), "{said}");
    assert!(not_sampled_ns(&summary, 1) > 0, "{summary}");
    assert_eq!(not_sampled_ns(&summary, 0), 0, "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_cpu_that_was_not_asked_for_may_go_and_come() {
    let Some(cpu) = Cpu1::take() else { return };
    let _load = load();
    let mut watched = Watched::start(&["-C", "0"]);
    watched.wait_for_samples(0, 1);
    for online in [false, true] {
        cpu.set_online(online);
        // At 99 Hz these take longer than several looks.
        watched.wait_for_samples(0, 100);
    }
    let (summary, said) = watched.end();
    assert_eq!(summary["per_cpu"].as_array().unwrap().len(), 1, "{summary}");
    assert_eq!(not_sampled_ns(&summary, 0), 0, "{summary}");
    assert!(!said.contains("CPU 1") && !said.contains("offline"), "{said}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_cpu_that_comes_back_is_counted_again() {
    let Some(cpu) = Cpu1::take() else { return };
    let stderr = Stderr(NamedTempFile::new().unwrap());
    // The kernel takes the group apart when the CPU goes.
    let events = "{cpu-clock,page-faults,context-switches}";
    let mut command = profiler();
    command.args(["stat", "--json", "-C", "1", "-d", "10m", "-I", "100", "-e", events]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr.0.reopen().unwrap());
    let mut counting = Program(command.spawn().unwrap());
    let mut lines = BufReader::new(counting.0.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let mut wait_for = |event: &str, state: &str| {
        while let it = next()
            && (it["event"] != event || it["state"] != state)
        {}
    };
    for event in ["cpu-clock", "page-faults"] {
        wait_for(event, "counted");
    }
    cpu.set_online(false);
    wait_for("cpu-clock", "not_counted");
    assert!(stderr.text().contains("CPU 1 went offline: not counted"), "{}", stderr.text());
    cpu.set_online(true);
    wait_for("cpu-clock", "counted");
    assert!(stderr.text().contains("CPU 1 came online: counted"), "{}", stderr.text());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_dead_event_is_replaced() {
    let config =
        Config::resolve(&SamplingArgs::default(), Vec::new(), 0, &Machine::probe().unwrap())
            .unwrap();
    let settings = [load::SlotSettings::default()];
    let slot = load::Program::load(&config.program, &settings).unwrap().slots.remove(0);
    let clock = CountedEvent::Named(Event::cpu_clock());
    let first = config.perf.cpus.iter().take(1).collect();
    let mut set = EventSet::open(&clock, config.perf.rate, &first, true).unwrap();
    set.attach(slot.program).unwrap();
    set.enable().unwrap();
    let unchanged = set.look(&[]);
    assert_eq!(unchanged.notices("sampled").count(), 0, "{unchanged:?}");

    // An event that is disabled is as good as one whose CPU was offline.
    set.disable().unwrap();
    // Some time has passed for it since the last look, and none since this one.
    set.look(&[]);
    let changes = set.look(&[]);
    assert_eq!(changes.revived, first.iter().collect::<Vec<_>>(), "{changes:?}");
    let before = set.account().0[0].count;
    let unchanged = set.look(&[]);
    assert_eq!(unchanged.notices("sampled").count(), 0, "{unchanged:?}");

    let (events, failed) = set.account();
    assert!(failed.is_none() && events.len() == 1, "{failed:?} {events:?}");
    let event = &events[0];
    assert!(event.events == 2 && !event.whole, "{event:?}");
    assert!(event.count.enabled_ns > before.enabled_ns && before.enabled_ns > 0, "{event:?}");
}
