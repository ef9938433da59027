//! What the agent's start takes of a CPU.

use std::{fmt::Write as _, process::Stdio};

use serde::Serialize;

use crate::{Bench, Result, agent::Agent, lowest, median};

const ROUNDS: usize = 15;
const ARGUMENTS: [&str; 3] = ["", "--user-only", "--kernel-only"];

#[derive(Serialize)]
pub(crate) struct Start(Vec<Row>);

/// Runs of a tenth of a second, in which little is sampled.
#[derive(Serialize)]
struct Row {
    arguments: &'static str,
    user_ms: Vec<f64>,
    system_ms: Vec<f64>,
    both_ms: Vec<f64>,
    peak_mib: Vec<f64>,
}

impl Start {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("measuring the start ...");
        ARGUMENTS.into_iter().map(|it| Row::measure(bench, it)).collect::<Result<_>>().map(Self)
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nCPU time of a run of 100 ms, {ROUNDS} rounds: lowest (median) ms\n  {:<16}{:>16}{:>16}{:>16}{:>10}",
            "", "user", "system", "both", "peak MiB"
        )?;
        for it in &self.0 {
            let cell = |ms: &[f64]| format!("{:.0} ({:.0})", lowest(ms), median(ms));
            writeln!(
                text,
                "  {:<16}{:>16}{:>16}{:>16}{:>10.0}",
                it.arguments,
                cell(&it.user_ms),
                cell(&it.system_ms),
                cell(&it.both_ms),
                median(&it.peak_mib)
            )?;
        }
        Ok(())
    }
}

impl Row {
    fn measure(bench: &Bench, arguments: &'static str) -> Result<Self> {
        let mut row = Self {
            arguments,
            user_ms: Vec::new(),
            system_ms: Vec::new(),
            both_ms: Vec::new(),
            peak_mib: Vec::new(),
        };
        for _ in 0..ROUNDS {
            let arguments = format!("-d 100ms {arguments}");
            let ended = Agent::start(&bench.agent, &arguments, Stdio::null())?.wait()?;
            row.user_ms.push(1e3 * ended.user);
            row.system_ms.push(1e3 * ended.system);
            row.both_ms.push(1e3 * (ended.user + ended.system));
            row.peak_mib.push(ended.peak_kib as f64 / 1024.0);
        }
        Ok(row)
    }
}
