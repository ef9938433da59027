//! What becomes of the samples at rates from low to high.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    AGENT_SECONDS, Bench, Result,
    agent::Agent,
    load::{self, Build},
};

/// At the last some losses are no surprise.
const RATES_HZ: [u64; 4] = [99, 999, 4999, 9999];

#[derive(Serialize)]
pub(crate) struct Losses(Vec<Rate>);

/// What became of the samples at one rate.
#[derive(Serialize)]
struct Rate {
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

impl Losses {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("counting losses ...");
        let _load = bench.load(Build::FramePointers).run(load::FRAMES)?;
        let path = bench.dir.join("losses.json");
        let mut rates = Vec::new();
        for hz in RATES_HZ {
            let arguments = format!("-F {hz} -d {AGENT_SECONDS}");
            Agent::start_json(&bench.agent, &arguments, &path)?.wait()?;
            rates.push(Rate::of(hz, &serde_json::from_str(&last_line(&path)?)?)?);
        }
        fs::remove_file(&path)?;
        Ok(Self(rates))
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nsamples lost, -f json to a file, {AGENT_SECONDS} s\n{:>8}{:>10}{:>10}{:>14}{:>11}  reasons",
            "Hz", "expected", "delivered", "never fired", "lost"
        )?;
        for it in &self.0 {
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
        Ok(())
    }
}

impl Rate {
    fn of(hz: u64, summary: &Value) -> Result<Self> {
        let number = |name: &str| {
            let found = summary.pointer(&format!("/summary/{name}")).and_then(Value::as_u64);
            found.ok_or_else(|| format!("no `{name}` in the summary"))
        };
        let reasons = summary.pointer("/summary/lost").and_then(Value::as_object);
        let reasons = reasons.ok_or("the summary says nothing of losses")?;
        let all: u64 = reasons.values().filter_map(Value::as_u64).sum();
        let missed = number("lost/missed")?;
        Ok(Self {
            hz,
            expected: number("expected")?,
            delivered: number("delivered")?,
            missed,
            lost: all - missed,
            throttled: number("throttled")?,
            reasons: Value::Object(reasons.clone()),
        })
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
