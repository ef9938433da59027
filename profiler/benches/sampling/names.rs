//! What many processes cost the agent, and how fast names are found.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use profiler::{
    process::{table::Processes, tracker::Tracker},
    sample::Addresses,
    symbolize::symbolizer::Symbolizer,
};
use serde::Serialize;

use crate::{Bench, Result, agent::Agent, brief::Load};

/// How many programs start processes one after another when many are wanted.
const CROWD: usize = 2;
/// For how long the agent looks at them.
const CROWD_SECONDS: u64 = 5;
/// Addresses that are named for the throughput.
const ADDRESSES: usize = 20_000;
const SYMBOL_CACHE: usize = 256 << 20;

#[derive(Serialize)]
pub(crate) struct Names {
    crowd: Crowd,
    throughput: Throughput,
}

/// The agent while processes come and go as fast as they can.
#[derive(Serialize)]
struct Crowd {
    processes_per_second: f64,
    agent_cpu_percent: f64,
    peak_mib: f64,
}

/// Addresses of this program's code, named by one thread.
#[derive(Serialize)]
struct Throughput {
    addresses: usize,
    cold_per_second: f64,
    cached_per_second: f64,
}

impl Names {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("starting many processes, and finding names ...");
        let crowd = Crowd::measure(&bench.agent, &bench.brief)?;
        Ok(Self { crowd, throughput: Throughput::measure()? })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        let Crowd { processes_per_second, agent_cpu_percent, peak_mib } = self.crowd;
        writeln!(
            text,
            "\n{processes_per_second:.0} processes a second at 99 Hz: the agent takes \
             {agent_cpu_percent:.1} % of a CPU, at most {peak_mib:.0} MiB"
        )?;
        let Throughput { addresses, cold_per_second, cached_per_second } = self.throughput;
        writeln!(
            text,
            "names of {addresses} addresses: {cold_per_second:.0} a second, {cached_per_second:.0} \
             when asked again"
        )
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
        // Evenly over all code, so that few lie in one function.
        let step = usize::try_from(code)?.div_ceil(ADDRESSES).max(1);
        let addresses = mappings.flat_map(|it| (it.start..it.end).step_by(step));
        let bytes: Vec<[u8; 8]> = addresses.map(u64::to_ne_bytes).collect();
        let mut symbolizer = Symbolizer::new(false, SYMBOL_CACHE, None);
        let mut pass = || {
            let start = Instant::now();
            for address in &bytes {
                symbolizer.user_stack(&process, Addresses::new(address), u64::MAX);
            }
            bytes.len() as f64 / start.elapsed().as_secs_f64()
        };
        let (cold_per_second, cached_per_second) = (pass(), pass());
        Ok(Self { addresses: bytes.len(), cold_per_second, cached_per_second })
    }
}
