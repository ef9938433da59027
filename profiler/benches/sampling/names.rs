//! What many processes cost the agent, and how fast names are found.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use profiler::{
    limits::budget::CacheBudget,
    parser::Bars,
    perf::{event::Event, own_count::OwnCount},
    process::{table::Processes, tracker::Tracker},
    sample::Addresses,
    symbolize::symbolizer::Symbolizer,
};
use profiler_events::Attr;
use serde::Serialize;

use crate::{Bench, Result, agent::Agent, brief::Load, jit::Jit};

/// How many programs start processes one after another when many are wanted.
const CROWD: usize = 2;
/// For how long the agent looks at them.
const CROWD_SECONDS: u64 = 5;
/// Addresses that are named for the throughput, and how many of them a stack has.
const ADDRESSES: usize = 1_000_000;
const FRAMES: usize = 30;
/// Addresses that are named twice: all of them are kept meanwhile.
const KEPT: usize = 1_000;
/// What all caches of the thread may take, as in the agent.
const CACHES: u64 = 256 << 20;

#[derive(Serialize)]
pub(crate) struct Names {
    crowd: Crowd,
    throughput: Throughput,
    jit: Jit,
}

/// The agent while processes come and go as fast as they can.
#[derive(Serialize)]
struct Crowd {
    processes_per_second: f64,
    agent_cpu_percent: f64,
    peak_mib: f64,
}

/// Addresses of this program's code, named by one thread and its parser process.
#[derive(Serialize)]
struct Throughput {
    addresses: usize,
    per_second: f64,
    /// As stacks of one frame: a question each.
    single_per_second: f64,
    kept_per_second: f64,
    /// CPU time of the parser process while all were named.
    parser_seconds: f64,
    thread_seconds: f64,
    /// Instructions of the thread for each stack; none without a PMU.
    instructions_per_stack: Option<f64>,
    /// By how much this process has grown.
    grown_mib: f64,
    parser_mib: f64,
}

impl Names {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("starting many processes, and finding names ...");
        let crowd = Crowd::measure(&bench.agent, &bench.brief)?;
        Ok(Self { crowd, throughput: Throughput::measure()?, jit: Jit::measure()? })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        let Crowd { processes_per_second, agent_cpu_percent, peak_mib } = self.crowd;
        writeln!(
            text,
            "\n{processes_per_second:.0} processes a second at 99 Hz: the agent takes \
             {agent_cpu_percent:.1} % of a CPU, at most {peak_mib:.0} MiB"
        )?;
        let of = &self.throughput;
        let instructions = of.instructions_per_stack.map(|it| format!("{it:.0}"));
        let instructions = instructions.unwrap_or_else(|| "n/a".into());
        writeln!(
            text,
            "names of {} addresses in stacks of {FRAMES}: {:.0} a second ({:.0} one by one), {:.0} of \
             those that are kept; the thread takes {:.2} s of a CPU ({instructions} instructions a stack) and grows by {:.0} MiB, its parser \
             process takes {:.2} s and {:.0} MiB",
            of.addresses,
            of.per_second,
            of.single_per_second,
            of.kept_per_second,
            of.thread_seconds,
            of.grown_mib,
            of.parser_seconds,
            of.parser_mib
        )?;
        self.jit.write(text)
    }
}

impl Crowd {
    fn measure(agent: &Path, brief: &Path) -> Result<Self> {
        let _loads = (0..CROWD).map(|_| Load::start(brief, 0)).collect::<Result<Vec<_>>>()?;
        let (before, start) = (processes()?, Instant::now());
        let arguments = format!("-F 99 -d {CROWD_SECONDS} -f json");
        let ended = Agent::start(agent, &arguments, Stdio::null())?.wait()?;
        let took = start.elapsed().max(Duration::from_millis(1)).as_secs_f64();
        Ok(Self {
            processes_per_second: processes()?.saturating_sub(before) as f64 / took,
            agent_cpu_percent: 100.0 * (ended.user + ended.system) / took,
            peak_mib: ended.peak_kib as f64 / 1024.0,
        })
    }
}

/// Processes started since boot.
fn processes() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat")?;
    let count = text.lines().find_map(|line| line.strip_prefix("processes "));
    Ok(count.ok_or("/proc/stat says nothing of processes")?.trim().parse()?)
}

impl Throughput {
    fn measure() -> Result<Self> {
        let own = std::process::id();
        let mut processes = Processes::new(1);
        processes.apply(Tracker::new(false).find(own).ok_or("no mappings of our own")?);
        let process = processes.at(own, u64::MAX).ok_or("no process of our own")?;
        let mappings = process.space.mappings().iter().filter(|it| it.name.starts_with('/'));
        let code: u64 = mappings.clone().map(|it| it.end - it.start).sum();
        // Evenly over all code, so that few lie in one function, and those of a stack far apart.
        let step = usize::try_from(code)?.div_ceil(ADDRESSES).max(1);
        let all: Vec<u64> = mappings.flat_map(|it| (it.start..it.end).step_by(step)).collect();
        let stacks = all.len() / FRAMES;
        let stacks: Vec<Vec<u8>> = (0..stacks)
            .map(|first| all.iter().skip(first).step_by(stacks).take(FRAMES))
            .map(|stack| stack.flat_map(|address| address.to_ne_bytes()).collect())
            .collect();
        let bars = Arc::<Bars>::default();
        let before = Memory::of(own)?;
        let budget = CacheBudget::share(CACHES);
        let mut symbolizer = Symbolizer::new(false, budget.symbols, None, Arc::clone(&bars));
        symbolizer.keep_within(&budget);
        let mut pass = |stacks: &mut dyn Iterator<Item = &[u8]>| {
            let (mut named, start) = (0, Instant::now());
            for stack in stacks {
                symbolizer.user_stack(&process, Addresses::new(stack), u64::MAX);
                named += stack.len() / size_of::<u64>();
            }
            named as f64 / start.elapsed().as_secs_f64()
        };
        let cpu = thread_cpu()?;
        let instructions = Event::new(Attr { name: "instructions".into(), ..Attr::new(0, 1) });
        let instructions = OwnCount::start(&instructions).ok();
        let per_second = pass(&mut stacks.iter().map(Vec::as_slice));
        let instructions = instructions.and_then(|it| it.read().ok());
        let thread_seconds = thread_cpu()? - cpu;
        let [parser] = bars.pids()[..] else { return Err("no parser process".into()) };
        let (after, parser) = (Memory::of(own)?, Memory::of(parser)?);
        // None of these is kept: they were not named before.
        let others = all.iter().map(|address| address + 1).step_by(all.len().div_ceil(KEPT).max(1));
        let others: Vec<[u8; 8]> = others.map(u64::to_ne_bytes).collect();
        let single_per_second = pass(&mut others.iter().map(<[u8; 8]>::as_slice));
        let kept_per_second = pass(&mut others.iter().map(<[u8; 8]>::as_slice));
        Ok(Self {
            addresses: all.len(),
            per_second,
            single_per_second,
            kept_per_second,
            parser_seconds: parser.cpu_seconds,
            thread_seconds,
            instructions_per_stack: instructions.map(|it| it as f64 / stacks.len().max(1) as f64),
            grown_mib: after.mib - before.mib,
            parser_mib: parser.mib,
        })
    }
}

/// What a process has taken.
struct Memory {
    mib: f64,
    cpu_seconds: f64,
}

impl Memory {
    fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 = kib.ok_or("no VmRSS")?.trim().trim_end_matches(" kB").parse()?;
        // In nanoseconds, and the first of three.
        let cpu = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
        let cpu: f64 = cpu.split_whitespace().next().ok_or("no CPU time")?.parse()?;
        Ok(Self { mib: kib / 1024.0, cpu_seconds: cpu / 1e9 })
    }
}

/// CPU time of this thread, in seconds.
pub(crate) fn thread_cpu() -> Result<f64> {
    let cpu = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(cpu.split_whitespace().next().ok_or("no CPU time")?.parse::<f64>()? / 1e9)
}
