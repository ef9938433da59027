//! `cargo xtask bench`: what a sample costs, on the machine it runs on. `docs/benchmarks.md` says
//! what is measured and why; nothing here fails for being slow.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a benchmark prints its table")]

use std::{
    env,
    error::Error,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use profiler_profile::cpus::CpuList;
use serde::Serialize;

#[path = "sampling/agent.rs"]
mod agent;
#[path = "sampling/bpf.rs"]
mod bpf;
#[path = "sampling/brief.rs"]
mod brief;
#[path = "sampling/cost.rs"]
mod cost;
#[path = "sampling/crowd.rs"]
mod crowd;
#[path = "sampling/fixed_record.rs"]
mod fixed_record;
#[path = "../tests/kernel/interrupts.rs"]
mod interrupts;
#[path = "sampling/jit.rs"]
mod jit;
#[path = "sampling/kernel.rs"]
mod kernel;
#[path = "sampling/load.rs"]
mod load;
#[path = "sampling/losses.rs"]
mod losses;
#[path = "sampling/machine.rs"]
mod machine;
#[path = "sampling/names.rs"]
mod names;
#[path = "sampling/overload.rs"]
mod overload;
#[path = "sampling/perf.rs"]
mod perf;
#[path = "sampling/profile_bee.rs"]
mod profile_bee;
#[path = "sampling/programs.rs"]
mod programs;
#[path = "sampling/recording.rs"]
mod recording;
#[path = "sampling/samples.rs"]
mod samples;
#[path = "sampling/short.rs"]
mod short;
#[path = "sampling/slowdown.rs"]
mod slowdown;
#[path = "sampling/soak.rs"]
mod soak;
#[path = "sampling/start.rs"]
mod start;
#[path = "sampling/switches.rs"]
mod switches;
#[path = "sampling/tables.rs"]
mod tables;
#[path = "sampling/top.rs"]
mod top;
#[path = "sampling/whole.rs"]
mod whole;

use load::Build;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The rate of all that is not measured at several.
const HZ: u64 = 999;
/// From when a program runs until it is measured.
const SETTLE: Duration = Duration::from_millis(300);
/// How long an agent runs whose time, memory or losses are measured.
const AGENT_SECONDS: u64 = 5;

/// What is measured, and with what.
struct Bench {
    agent: PathBuf,
    fixed_record: PathBuf,
    profile_bee: Option<PathBuf>,
    /// The fixture that starts short processes.
    brief: PathBuf,
    cpus: CpuList,
    dir: PathBuf,
    with_frame_pointers: load::Program,
    without_frame_pointers: load::Program,
}

impl Bench {
    fn load(&self, build: Build) -> &load::Program {
        match build {
            Build::FramePointers => &self.with_frame_pointers,
            Build::NoFramePointers => &self.without_frame_pointers,
        }
    }
}

/// The report, of the parts in their order.
macro_rules! parts {
    ($($name:ident: $of:ty),* $(,)?) => {
        #[derive(Serialize)]
        struct Report {
            machine: machine::Machine,
            $(#[serde(skip_serializing_if = "Option::is_none")] $name: Option<$of>,)*
        }

        const PARTS: &[&str] = &[$(stringify!($name)),*];

        impl Report {
            /// Measures the parts with these names, or all.
            fn measure(bench: &Bench, parts: &[String]) -> Result<Self> {
                let is_wanted =
                    |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
                Ok(Self {
                    machine: machine::Machine::read(&bench.cpus)?,
                    $($name: is_wanted(stringify!($name))
                        .then(|| <$of>::measure(bench))
                        .transpose()?,)*
                })
            }

            fn write(&self, text: &mut String) -> std::fmt::Result {
                self.machine.write(text)?;
                $(self.$name.as_ref().map_or(Ok(()), |it| it.write(text))?;)*
                Ok(())
            }
        }
    };
}
parts! {
    programs: programs::Programs,
    kernel: kernel::Kernel,
    whole: whole::Whole,
    short: short::Short,
    slowdown: slowdown::Slowdown,
    switches: switches::Switches,
    agent: cost::Costs,
    recording: recording::Recordings,
    losses: losses::Losses,
    overload: overload::Overload,
    start: start::Start,
    tables: tables::Tables,
    names: names::Names,
    top: top::Top,
    soak: soak::Soak,
}

fn main() -> Result<()> {
    // Names come from a parser process, which is this program started again.
    profiler::parser::run_if_requested();
    let (Some(agent), Some(fixed_record), Some(fixtures)) =
        (path("PROFILER_AGENT"), path("PROFILER_FIXED_RECORD"), path("PROFILER_TEST_FIXTURES"))
    else {
        println!("run this by `cargo xtask bench`, which builds what is measured");
        return Ok(());
    };
    // cargo adds options of its own.
    let parts: Vec<String> = env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    if let Some(part) = parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(format!("no part `{part}`; there are: {}", PARTS.join(", ")).into());
    }
    let begin = Instant::now();
    let cpus: CpuList = fs::read_to_string("/sys/devices/system/cpu/online")?.parse()?;
    let dir = tempfile::tempdir()?;
    let compile = |build| load::Program::compile(dir.path(), build, 0, &cpus);
    let bench = Bench {
        agent,
        fixed_record,
        profile_bee: path("PROFILER_PROFILE_BEE"),
        brief: fixtures.join("brief-c"),
        with_frame_pointers: compile(Build::FramePointers)?,
        without_frame_pointers: compile(Build::NoFramePointers)?,
        cpus,
        dir: dir.path().to_owned(),
    };
    let report = Report::measure(&bench, &parts)?;
    let mut text = String::new();
    report.write(&mut text)?;
    print!("{text}");
    eprintln!("\nall that took {:.0} s", begin.elapsed().as_secs_f64());
    if let Some(path) = path("PROFILER_BENCH_JSON") {
        fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

fn path(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What was disturbed least: whatever else runs, and a host that takes CPU time, only add.
fn lowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::min)
}
