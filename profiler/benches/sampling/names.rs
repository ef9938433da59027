//! Names of processes that live for milliseconds, beside `perf`, and how fast names are found.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use profiler::{
    process::{table::Processes, tracker::Tracker},
    sample::Addresses,
    symbolize::symbolizer::Symbolizer,
};
use serde::Serialize;
use serde_json::Value;

use crate::{AGENT_SECONDS, HZ, Result, agent::Agent};

/// For how long the processes live, in milliseconds of CPU time.
const LIVES: [u32; 2] = [10, 2];
/// How many programs start processes one after another when many are wanted.
const CROWD: usize = 2;
/// Addresses that are named for the throughput.
const ADDRESSES: usize = 20_000;
const SYMBOL_CACHE: usize = 256 << 20;

#[derive(Serialize)]
pub(crate) struct Names {
    brief: Vec<Brief>,
    crowd: Crowd,
    throughput: Throughput,
}

/// Samples of processes of one length of life, and those of them whose user frames all have names.
#[derive(Serialize)]
struct Brief {
    milliseconds: u32,
    samples: u64,
    named: u64,
    /// The same of `perf record -g`; `None` where there is no perf.
    perf: Option<(u64, u64)>,
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

/// A program that starts one process after another; ended when dropped.
struct Load(Child);

impl Load {
    fn start(program: &Path, milliseconds: u32) -> Result<Self> {
        Ok(Self(Command::new(program).arg(milliseconds.to_string()).spawn()?))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Names {
    /// Measures; `brief` is the fixture that starts the processes.
    pub(crate) fn measure(agent: &Path, brief: &Path, dir: &Path) -> Result<Self> {
        eprintln!("counting names of short processes ...");
        let lives =
            LIVES.iter().map(|&milliseconds| Brief::measure(agent, brief, milliseconds, dir));
        let lives = lives.collect::<Result<_>>()?;
        let crowd = Crowd::measure(agent, brief)?;
        Ok(Self { brief: lives, crowd, throughput: Throughput::measure()? })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nsamples of short processes with all names, at {HZ} Hz\n{:>14}{:>10}{:>16}",
            "live for", "profiler", "perf record -g"
        )?;
        let percent = |named: u64, samples: u64| 100.0 * named as f64 / samples.max(1) as f64;
        for it in &self.brief {
            write!(text, "{:>11} ms{:>8.1} %", it.milliseconds, percent(it.named, it.samples))?;
            match it.perf {
                Some((named, samples)) => writeln!(text, "{:>14.1} %", percent(named, samples))?,
                None => writeln!(text, "{:>16}", "not installed")?,
            }
        }
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

impl Brief {
    fn measure(agent: &Path, brief: &Path, milliseconds: u32, dir: &Path) -> Result<Self> {
        let _load = Load::start(brief, milliseconds)?;
        let path = dir.join("names.json");
        let arguments = format!("-F {HZ} -d {AGENT_SECONDS} -f json");
        Agent::start(agent, &arguments, File::create(&path)?.into())?.wait()?;
        let (mut samples, mut named) = (0, 0);
        for line in BufReader::new(File::open(&path)?).lines() {
            let sample: Value = serde_json::from_str(&line?)?;
            if sample.get("comm") != Some(&"brief-c".into()) {
                continue;
            }
            let frames = sample.get("user").and_then(Value::as_array).into_iter().flatten();
            samples += 1;
            named += u64::from(
                frames.into_iter().all(|it| it.get("symbol").is_some_and(Value::is_string)),
            );
        }
        let perf = perf(&dir.join("perf.data"))?;
        Ok(Self { milliseconds, samples, named, perf })
    }
}

/// Named and all samples of the short processes by perf.
fn perf(data: &Path) -> Result<Option<(u64, u64)>> {
    let seconds = AGENT_SECONDS.to_string();
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", &HZ.to_string(), "-o"]);
    record.arg(data).args(["sleep", &seconds]).stderr(Stdio::null());
    match record.status() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        done => {
            done?;
        }
    }
    let mut script = Command::new("perf");
    script.args(["script", "--comm", "brief-c", "-F", "comm,ip,sym,dso", "-i"]).arg(data);
    let output = script.stderr(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let samples = text.split("\n\n").filter(|sample| !sample.trim().is_empty());
    let (mut all, mut named) = (0, 0);
    for sample in samples {
        all += 1;
        named += u64::from(!sample.contains("[unknown]"));
    }
    Ok(Some((named, all)))
}

impl Crowd {
    fn measure(agent: &Path, brief: &Path) -> Result<Self> {
        let _loads = (0..CROWD).map(|_| Load::start(brief, 0)).collect::<Result<Vec<_>>>()?;
        let (before, start) = (processes()?, Instant::now());
        let arguments = format!("-F 99 -d {AGENT_SECONDS} -f json");
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
