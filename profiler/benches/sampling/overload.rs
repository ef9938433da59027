//! A machine with eight times more runnable threads than CPUs: whether stacks are whole, whether samples
//! are lost, and what the agent takes.

use std::{
    fmt::Write as _,
    fs::File,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    Bench, Result,
    agent::{Agent, Ended},
    crowd::{Crowd, THREADS_PER_CPU},
    samples::Wholeness,
};

/// Where stacks have to be whole.
const WHOLE_HZ: [u64; 2] = [99, 999];
/// Where no sample may be lost by the profiler.
const LOST_HZ: [u64; 3] = [99, 999, 4999];
const ROUNDS: usize = 2;
const SECONDS: u64 = 8;
/// The time in which a run is young.
const YOUNG: Duration = Duration::from_secs(2);
/// From when the crowd runs until it is measured.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Serialize)]
pub(crate) struct Overload {
    threads: usize,
    whole: Vec<Whole>,
    lost: Vec<Fate>,
}

/// The stacks at one rate, of all rounds.
#[derive(Serialize)]
struct Whole {
    hz: u64,
    all: Wholeness,
    young: Wholeness,
    agent_percent: Vec<f64>,
}

/// The samples at one rate, of one round.
#[derive(Serialize)]
struct Fate {
    hz: u64,
    to: &'static str,
    delivered: u64,
    /// Which the profiler lost, not the kernel.
    lost: u64,
    reasons: String,
    agent_percent: f64,
    peak_mib: f64,
}

impl Overload {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("overloading the machine ...");
        let runs = WHOLE_HZ.len() * ROUNDS + LOST_HZ.len() * 2;
        // Each run takes a little longer than it samples.
        let crowd = Crowd::start(bench, (runs as u64 + 1) * (SECONDS + 10))?;
        thread::sleep(SETTLE);
        let whole = WHOLE_HZ.into_iter().map(|hz| Whole::measure(bench, hz));
        let whole = whole.collect::<Result<_>>()?;
        let mut lost = Vec::new();
        for hz in LOST_HZ {
            for to in ["/dev/null", "a pipe"] {
                lost.push(Fate::measure(bench, hz, to)?);
            }
        }
        drop(crowd);
        Ok(Self { threads: bench.cpus.len() * THREADS_PER_CPU, whole, lost })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\noverload: {} runnable threads, {ROUNDS} rounds of {SECONDS} s, -f json\n\
             {:>8}{:>10}{:>10}{:>12}{:>16}",
            self.threads, "Hz", "samples", "whole", "first 2 s", "agent's CPU"
        )?;
        let percent = |it: &Wholeness| it.percent().map_or("–".into(), |it| format!("{it:.2} %"));
        for it in &self.whole {
            writeln!(
                text,
                "{:>8}{:>10}{:>10}{:>12}{:>16}",
                it.hz,
                it.all.samples,
                percent(&it.all),
                percent(&it.young),
                format!("{:.1} %", crate::median(&it.agent_percent)),
            )?;
            writeln!(text, "    cut: {}; first 2 s: {}", it.all.reasons(), it.young.reasons())?;
        }
        writeln!(
            text,
            "{:>8}  {:<10}{:>10}{:>8}{:>13}{:>10}  reasons",
            "Hz", "to", "delivered", "lost", "agent's CPU", "peak MiB"
        )?;
        for it in &self.lost {
            writeln!(
                text,
                "{:>8}  {:<10}{:>10}{:>8}{:>13}{:>10.0}  {}",
                it.hz,
                it.to,
                it.delivered,
                it.lost,
                format!("{:.1} %", it.agent_percent),
                it.peak_mib,
                it.reasons
            )?;
        }
        Ok(())
    }
}

impl Whole {
    fn measure(bench: &Bench, hz: u64) -> Result<Self> {
        let output = bench.dir.join("overload.json");
        let mut found = Self {
            hz,
            all: Wholeness::default(),
            young: Wholeness::default(),
            agent_percent: Vec::new(),
        };
        for _ in 0..ROUNDS {
            let arguments = format!("-F {hz} -d {SECONDS}");
            let ended = Agent::start_json(&bench.agent, &arguments, &output)?.wait()?;
            found.agent_percent.push(percent_of_machine(bench, &ended));
            found.add(&output)?;
        }
        Ok(found)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let mut first_ns = None;
        for line in BufReader::new(File::open(path)?).lines() {
            let value: Value = serde_json::from_str(&line?)?;
            let (Some(time_ns), Some(end)) = (
                value.get("time_ns").and_then(Value::as_u64),
                value.get("user_end").and_then(Value::as_str),
            ) else {
                continue;
            };
            let first_ns = *first_ns.get_or_insert(time_ns);
            if value.get("user").and_then(Value::as_array).is_none_or(Vec::is_empty) {
                continue;
            }
            self.all.add_end(end);
            if u128::from(time_ns.saturating_sub(first_ns)) < YOUNG.as_nanos() {
                self.young.add_end(end);
            }
        }
        Ok(())
    }
}

impl Fate {
    fn measure(bench: &Bench, hz: u64, to: &'static str) -> Result<Self> {
        let arguments = format!("-f json -F {hz} -d {SECONDS}");
        let ended = if to == "/dev/null" {
            Agent::start(&bench.agent, &arguments, Stdio::null())?.wait()?
        } else {
            let (mut reader, writer) = std::io::pipe()?;
            let agent = Agent::start(&bench.agent, &arguments, writer.into())?;
            let reads = thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
            let ended = agent.wait()?;
            reads.join().map_err(|_| "the pipe's reader panicked")??;
            ended
        };
        let reasons = ended.lost();
        Ok(Self {
            hz,
            to,
            delivered: ended.delivered()?,
            lost: reasons.iter().map(|(_, count)| count).sum(),
            reasons: reasons
                .iter()
                .map(|(reason, count)| format!("{reason} {count}"))
                .collect::<Vec<_>>()
                .join(", "),
            agent_percent: percent_of_machine(bench, &ended),
            peak_mib: ended.peak_kib as f64 / 1024.0,
        })
    }
}

/// What the agent took of all CPUs.
fn percent_of_machine(bench: &Bench, ended: &Ended) -> f64 {
    100.0 * (ended.user + ended.system) / (SECONDS * bench.cpus.len() as u64) as f64
}
