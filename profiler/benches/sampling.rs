//! `cargo xtask bench`: what a sample costs, on the machine it runs on. `docs/benchmarks.md` says
//! what is measured and why; nothing here fails for being slow.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a benchmark prints its table")]

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::Duration,
};

use aya::sys::{Stats, enable_stats};
use profiler::perf::cpus::CpuList;
use serde::Serialize;
use serde_json::Value;

#[path = "sampling/agent.rs"]
mod agent;
#[path = "sampling/fixed_record.rs"]
mod fixed_record;
#[path = "sampling/load.rs"]
mod load;
#[path = "sampling/names.rs"]
mod names;

use agent::{Agent, run_stats};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The rate of all that is not measured at several.
const HZ: u64 = 999;
/// From when a program runs until it is measured.
const SETTLE: Duration = Duration::from_millis(300);
/// How long a program's time is measured in a round.
const PROGRAM_TIME: Duration = Duration::from_secs(3);
const PROGRAM_ROUNDS: usize = 3;
/// How long an agent runs whose time, memory or losses are measured.
const AGENT_SECONDS: u64 = 5;
/// The rates at which losses are counted. At the last some are no surprise.
const LOSS_HZ: [u64; 4] = [99, 999, 4999, 9999];
const SLOWDOWN_HZ: [u64; 2] = [99, 999];
const SLOWDOWN_PAIRS: usize = 7;
/// Work to find out how fast the machine is.
const TRIAL_UNITS: u32 = 200;
/// How long the work of a slowdown measurement should take.
const WORK_SECONDS: f64 = 2.0;

/// What the kernel counts of a program's runs.
#[derive(Clone, Copy)]
struct RunStats {
    time: Duration,
    count: u64,
}

impl RunStats {
    fn since(self, before: Self) -> Self {
        Self {
            time: self.time.saturating_sub(before.time),
            count: self.count.saturating_sub(before.count),
        }
    }

    fn ns_per_run(self) -> f64 {
        self.time.as_nanos() as f64 / self.count as f64
    }
}

#[derive(Serialize)]
struct Report {
    machine: Machine,
    program: ProgramCost,
    agent: Vec<AgentCost>,
    losses: Vec<Losses>,
    slowdown: Vec<Slowdown>,
    names: names::Names,
}

#[derive(Serialize)]
struct Machine {
    cpus: usize,
    model: String,
    kernel: String,
    virtualized: bool,
    pmu: bool,
    /// Of the last minute, before anything was measured: what else the machine was doing.
    load_average: String,
}

/// The eBPF programs' time for a sample.
#[derive(Serialize)]
struct ProgramCost {
    hz: u64,
    user_frames: usize,
    fixed_record_user_frames: Option<usize>,
    ns: Vec<f64>,
    /// With `--kernel-only`: what there is beside the kernel's walk of the user stack.
    no_walk_ns: Vec<f64>,
    fixed_record_ns: Vec<f64>,
    median_ns: f64,
    no_walk_median_ns: f64,
    fixed_record_median_ns: f64,
    percent_of_fixed_record: f64,
}

/// The agent's time and memory.
#[derive(Serialize)]
struct AgentCost {
    arguments: &'static str,
    delivered: u64,
    user_ms: f64,
    system_ms: f64,
    cpu_ms_per_1000_samples: f64,
    peak_mib: f64,
}

/// What became of the samples at one rate.
#[derive(Serialize)]
struct Losses {
    hz: u64,
    expected: u64,
    delivered: u64,
    /// Not fired by the kernel.
    missed: u64,
    /// All other reasons: what ring and agent have lost.
    lost: u64,
    throttled: u64,
    reasons: Value,
}

/// How much longer the same work takes while the agent samples.
#[derive(Serialize)]
struct Slowdown {
    hz: u64,
    median_percent: f64,
    percents: Vec<f64>,
}

fn main() -> Result<()> {
    let (Some(agent), Some(fixed_record), Some(fixtures)) =
        (path("PROFILER_AGENT"), path("PROFILER_FIXED_RECORD"), path("PROFILER_TEST_FIXTURES"))
    else {
        println!("run this by `cargo xtask bench`, which builds what is measured");
        return Ok(());
    };
    let cpus: CpuList = fs::read_to_string("/sys/devices/system/cpu/online")?.parse()?;
    let machine = Machine::read(&cpus)?;
    let dir = tempfile::tempdir()?;
    let load = load::Program::compile(dir.path(), &cpus)?;
    let bench = Bench { agent, fixed_record, cpus, dir: dir.path().to_owned(), load };
    let report = Report {
        machine,
        program: bench.program()?,
        agent: bench.agent()?,
        losses: bench.losses()?,
        slowdown: bench.slowdown()?,
        names: names::Names::measure(&bench.agent, &fixtures.join("brief-c"), dir.path())?,
    };
    print!("{}", report.table());
    if let Some(path) = path("PROFILER_BENCH_JSON") {
        fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

fn path(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from)
}

impl Machine {
    fn read(cpus: &CpuList) -> Result<Self> {
        let cpu_info = fs::read_to_string("/proc/cpuinfo")?;
        let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name"));
        let devices = fs::read_dir("/sys/bus/event_source/devices")?;
        let load_average = fs::read_to_string("/proc/loadavg")?;
        Ok(Self {
            cpus: cpus.len(),
            model: model.unwrap_or("unknown").trim_start_matches([' ', '\t', ':']).to_owned(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            virtualized: cpu_info.contains(" hypervisor"),
            // `cpu` on most machines, `cpu_core` and the like on hybrid ones, `armv8_pmuv3` on arm64.
            pmu: devices.flatten().any(|device| {
                let name = device.file_name();
                name == "cpu" || ["cpu_", "armv"].iter().any(|it| starts_with(&name, it))
            }),
            load_average: load_average.split(' ').next().unwrap_or_default().to_owned(),
        })
    }
}

fn starts_with(name: &std::ffi::OsStr, start: &str) -> bool {
    name.as_encoded_bytes().starts_with(start.as_bytes())
}

/// What is measured, and with what.
struct Bench {
    agent: PathBuf,
    fixed_record: PathBuf,
    cpus: CpuList,
    dir: PathBuf,
    load: load::Program,
}

impl Bench {
    fn program(&self) -> Result<ProgramCost> {
        eprintln!("measuring the eBPF programs ...");
        let _load = self.load.run()?;
        let user_frames = self.depth()?;
        // Counting ends when this is dropped.
        let _stats = enable_stats(Stats::RunTime)?;
        let (mut ns, mut no_walk_ns, mut fixed_record_ns) = (Vec::new(), Vec::new(), Vec::new());
        let mut fixed_record_user_frames = None;
        for _ in 0..PROGRAM_ROUNDS {
            ns.push(self.program_ns("")?);
            let (stats, depth) =
                fixed_record::measure(&self.fixed_record, &self.cpus, PROGRAM_TIME)?;
            fixed_record_ns.push(stats.ns_per_run());
            fixed_record_user_frames = depth;
            no_walk_ns.push(self.program_ns("--kernel-only")?);
        }
        let (ours, theirs) = (median(&ns), median(&fixed_record_ns));
        Ok(ProgramCost {
            hz: HZ,
            user_frames,
            fixed_record_user_frames,
            median_ns: ours,
            no_walk_median_ns: median(&no_walk_ns),
            fixed_record_median_ns: theirs,
            ns,
            no_walk_ns,
            fixed_record_ns,
            percent_of_fixed_record: 100.0 * ours / theirs,
        })
    }

    /// What a run of the agent's program takes.
    fn program_ns(&self, arguments: &str) -> Result<f64> {
        let agent =
            Agent::start(&self.agent, &format!("-F {HZ} -d 60 {arguments}"), Stdio::null())?;
        let id = agent.program_id()?;
        thread::sleep(SETTLE);
        let before = run_stats(id)?;
        thread::sleep(PROGRAM_TIME);
        let ns = run_stats(id)?.since(before).ns_per_run();
        agent.interrupt()?;
        agent.wait()?;
        Ok(ns)
    }

    /// The median depth of the load's user stacks.
    fn depth(&self) -> Result<usize> {
        let path = self.dir.join("depth.json");
        let output = File::create(&path)?;
        Agent::start(&self.agent, "-F 99 -f json -d 1", output.into())?.wait()?;
        let mut depths = Vec::new();
        for line in fs::read_to_string(&path)?.lines() {
            let sample: Value = serde_json::from_str(line)?;
            if sample.get("comm").and_then(Value::as_str) == Some(load::NAME) {
                depths.extend(sample.get("user").and_then(Value::as_array).map(Vec::len));
            }
        }
        depths.sort_unstable();
        Ok(depths.get(depths.len() / 2).copied().ok_or("no sample of the load")?)
    }

    fn agent(&self) -> Result<Vec<AgentCost>> {
        eprintln!("measuring the agent's time and memory ...");
        let _load = self.load.run()?;
        let mut costs = Vec::new();
        for arguments in ["-f text", "-f json", "-f folded", "-f text --lines", "-f folded --lines"]
        {
            let all = format!("-F {HZ} -d {AGENT_SECONDS} {arguments}");
            let ended = Agent::start(&self.agent, &all, Stdio::null())?.wait()?;
            let delivered = ended.delivered()?;
            costs.push(AgentCost {
                arguments,
                delivered,
                user_ms: 1e3 * ended.user,
                system_ms: 1e3 * ended.system,
                cpu_ms_per_1000_samples: 1e6 * (ended.user + ended.system) / delivered as f64,
                peak_mib: ended.peak_kib as f64 / 1024.0,
            });
        }
        Ok(costs)
    }

    fn losses(&self) -> Result<Vec<Losses>> {
        eprintln!("counting losses ...");
        let _load = self.load.run()?;
        let path = self.dir.join("losses.json");
        let mut losses = Vec::new();
        for hz in LOSS_HZ {
            let arguments = format!("-F {hz} -d {AGENT_SECONDS} -f json");
            Agent::start(&self.agent, &arguments, File::create(&path)?.into())?.wait()?;
            let summary: Value = serde_json::from_str(&last_line(&path)?)?;
            let number =
                |name: &str| summary.pointer(&format!("/summary/{name}")).and_then(Value::as_u64);
            let reasons = summary.pointer("/summary/lost").and_then(Value::as_object);
            let reasons = reasons.ok_or("the summary says nothing of losses")?;
            let all: u64 = reasons.values().filter_map(Value::as_u64).sum();
            let missed = number("lost/missed").ok_or("no `missed` in the summary")?;
            losses.push(Losses {
                hz,
                expected: number("expected").ok_or("no `expected` in the summary")?,
                delivered: number("delivered").ok_or("no `delivered` in the summary")?,
                missed,
                lost: all - missed,
                throttled: number("throttled").ok_or("no `throttled` in the summary")?,
                reasons: Value::Object(reasons.clone()),
            });
        }
        fs::remove_file(&path)?;
        Ok(losses)
    }

    fn slowdown(&self) -> Result<Vec<Slowdown>> {
        eprintln!("measuring the slowdown of a program ...");
        let trial = self.load.work(TRIAL_UNITS.into())?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some hundreds"
        )]
        let units = (f64::from(TRIAL_UNITS) * WORK_SECONDS / trial) as u64;

        let mut percents = SLOWDOWN_HZ.map(|_| Vec::with_capacity(SLOWDOWN_PAIRS));
        for pair in 0..SLOWDOWN_PAIRS {
            for (hz, percents) in SLOWDOWN_HZ.iter().zip(&mut percents) {
                // Each order half of the time: a drift of the clock's speed then cancels out.
                let off_first = pair % 2 == 0;
                let before = if off_first { Some(self.load.work(units)?) } else { None };
                let on = self.work_sampled(units, *hz)?;
                let off = before.map_or_else(|| self.load.work(units), Ok)?;
                percents.push(100.0 * (on / off - 1.0));
            }
        }
        let slowdown = |(hz, percents): (u64, Vec<f64>)| Slowdown {
            hz,
            median_percent: median(&percents),
            percents,
        };
        Ok(SLOWDOWN_HZ.into_iter().zip(percents).map(slowdown).collect())
    }

    /// How long the work takes while the agent samples.
    fn work_sampled(&self, units: u64, hz: u64) -> Result<f64> {
        let agent = Agent::start(&self.agent, &format!("-F {hz} -d 60"), Stdio::null())?;
        agent.program_id()?;
        // The agent reads the kernel's symbols once, at the first sample that has a stack: that is a
        // cost of its start, not of sampling.
        self.load.work(TRIAL_UNITS.into())?;
        thread::sleep(SETTLE);
        let time = self.load.work(units)?;
        agent.interrupt()?;
        agent.wait()?;
        Ok(time)
    }
}

/// The last line of a file that may be large.
fn last_line(path: &Path) -> Result<String> {
    const TAIL: u64 = 1 << 20;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let tail = String::from_utf8_lossy(&tail);
    Ok(tail.trim_end().lines().next_back().unwrap_or_default().to_owned())
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Report {
    fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let Machine { cpus, model, kernel, virtualized, pmu, load_average } = &self.machine;
        let kind = if *virtualized { "virtual machine" } else { "no virtual machine" };
        let pmu = if *pmu { "PMU" } else { "no PMU" };
        writeln!(text, "{cpus} CPUs ({model}), {kind}, {pmu}, Linux {kernel}")?;
        writeln!(text, "load average before: {load_average}")?;

        let it = &self.program;
        let frames = it.fixed_record_user_frames.unwrap_or_default();
        writeln!(text, "\neBPF program, ns a sample, at {} Hz           median  rounds", it.hz)?;
        for (name, frames, median, ns) in [
            ("profiler", it.user_frames, it.median_ns, &it.ns),
            ("--kernel-only", 0, it.no_walk_median_ns, &it.no_walk_ns),
            ("fixed record", frames, it.fixed_record_median_ns, &it.fixed_record_ns),
        ] {
            let rounds: Vec<String> = ns.iter().map(|ns| format!("{ns:.0}")).collect();
            writeln!(
                text,
                "  {name:<14}{frames:>3} user frames {median:>22.0}  {}",
                rounds.join(" ")
            )?;
        }
        writeln!(text, "  profiler / fixed record {:>20.0} %", it.percent_of_fixed_record)?;

        writeln!(
            text,
            "\nagent at {HZ} Hz for {AGENT_SECONDS} s\n  {:<18}{:>10}{:>9}{:>11}{:>19}{:>10}",
            "", "delivered", "user ms", "system ms", "ms / 1000 samples", "peak MiB"
        )?;
        for it in &self.agent {
            writeln!(
                text,
                "  {:<18}{:>10}{:>9.0}{:>11.0}{:>19.1}{:>10.1}",
                it.arguments,
                it.delivered,
                it.user_ms,
                it.system_ms,
                it.cpu_ms_per_1000_samples,
                it.peak_mib
            )?;
        }

        writeln!(
            text,
            "\nsamples lost, -f json to a file, {AGENT_SECONDS} s\n{:>8}{:>10}{:>10}{:>14}{:>11}  reasons",
            "Hz", "expected", "delivered", "never fired", "lost"
        )?;
        for it in &self.losses {
            let reasons = it.reasons.as_object().into_iter().flatten();
            let reasons: Vec<String> = reasons
                .filter(|(name, count)| *name != "missed" && count.as_u64() > Some(0))
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            writeln!(
                text,
                "{:>8}{:>10}{:>10}{:>14}{:>11}  {}",
                it.hz,
                it.expected,
                it.delivered,
                it.missed,
                it.lost,
                reasons.join(", ")
            )?;
        }

        writeln!(
            text,
            "\nslowdown of a program, {SLOWDOWN_PAIRS} pairs\n      Hz    median  pairs, in %"
        )?;
        for it in &self.slowdown {
            let percents: Vec<String> = it.percents.iter().map(|it| format!("{it:.1}")).collect();
            writeln!(text, "{:>8}{:>8.1} %  {}", it.hz, it.median_percent, percents.join(" "))?;
        }
        self.names.write(text)
    }
}
