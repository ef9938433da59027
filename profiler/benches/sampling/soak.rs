//! What the profiler holds in memory while many processes come and go.

use std::{
    env,
    fmt::Write as _,
    fs,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    Bench, Result,
    agent::{Agent, Resident},
    brief::Load,
};

const RATES_HZ: [u64; 2] = [99, 999];
/// At each rate, unless `PROFILER_SOAK_SECONDS` says otherwise.
const SECONDS: u64 = 15;
/// When the run has begun, is half over, and ends: in percent of the time.
const LOOKS: [(&str, u64); 3] = [("start", 10), ("middle", 50), ("end", 95)];
/// What the agent has before the processes begin to come.
const BEFORE: Duration = Duration::from_secs(1);

#[derive(Serialize)]
pub(crate) struct Soak {
    seconds: u64,
    rows: Vec<Row>,
}

/// A run at one rate.
#[derive(Serialize)]
struct Row {
    hz: u64,
    processes_per_second: f64,
    samples: u64,
    lost: Vec<(String, u64)>,
    /// Percent of one CPU, without the parser processes.
    cpu_percent: f64,
    looks: Vec<Look>,
}

#[derive(Serialize)]
struct Look {
    when: &'static str,
    agent: Resident,
    parsers: Resident,
}

impl Soak {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        let asked = env::var("PROFILER_SOAK_SECONDS").ok();
        let seconds = asked.map_or(Ok(SECONDS), |it| it.parse())?.max(1);
        eprintln!("soaking for twice {seconds} s ...");
        let rows = RATES_HZ.into_iter().map(|hz| Row::measure(bench, hz, seconds));
        Ok(Self { seconds, rows: rows.collect::<Result<_>>()? })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nmany processes for {} s: resident MiB (anonymous + files)\n\
             {:>6}{:>13}{:>9}{:>7}{:>7}  {:<8}{:>24}{:>24}",
            self.seconds, "Hz", "processes/s", "samples", "lost", "CPU", "", "agent", "parsers"
        )?;
        for row in &self.rows {
            let lost: u64 = row.lost.iter().map(|(_, count)| count).sum();
            for (number, look) in row.looks.iter().enumerate() {
                let Row { hz, processes_per_second, samples, cpu_percent, .. } = row;
                let cells = if number == 0 {
                    format!(
                        "{hz:>6}{processes_per_second:>13.0}{samples:>9}{lost:>7}{cpu_percent:>6.1}%"
                    )
                } else {
                    String::new()
                };
                let (when, agent, parsers) = (look.when, look.agent.text(), look.parsers.text());
                writeln!(text, "{cells:>42}  {when:<8}{agent:>24}{parsers:>24}")?;
            }
        }
        Ok(())
    }
}

impl Row {
    fn measure(bench: &Bench, hz: u64, seconds: u64) -> Result<Self> {
        let arguments = format!("-f json -F {hz}");
        let agent = Agent::start(&bench.agent, &arguments, Stdio::null())?;
        agent.loaded()?;
        thread::sleep(BEFORE);
        let loads = bench.cpus.iter().map(|_| Load::start(&bench.brief, 0));
        let loads: Vec<Load> = loads.collect::<Result<_>>()?;
        let (begin, before) = (Instant::now(), forks()?);
        let mut looks = Vec::new();
        for (when, percent) in LOOKS {
            let at = Duration::from_secs(seconds) * u32::try_from(percent)? / 100;
            thread::sleep(at.saturating_sub(begin.elapsed()));
            let (agent, parsers) = agent.resident()?;
            looks.push(Look { when, agent, parsers });
        }
        thread::sleep(Duration::from_secs(seconds).saturating_sub(begin.elapsed()));
        let (time, after) = (begin.elapsed().as_secs_f64(), forks()?);
        drop(loads);
        let ended = agent.end()?;
        Ok(Self {
            hz,
            processes_per_second: (after - before) as f64 / time,
            samples: ended.delivered()?,
            lost: ended.lost(),
            cpu_percent: 100.0 * (ended.user + ended.system) / (time + BEFORE.as_secs_f64()),
            looks,
        })
    }
}

/// Processes and threads that this machine has started.
fn forks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().find_map(|line| line.strip_prefix("processes "));
    Ok(line.ok_or("/proc/stat counts no processes")?.trim().parse()?)
}
