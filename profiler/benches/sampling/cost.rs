//! The agent's own time and memory.

use std::{fmt::Write as _, process::Stdio};

use serde::Serialize;

use crate::{
    AGENT_SECONDS, Bench, HZ, Result,
    agent::Agent,
    load::{self, Build},
};

const ARGUMENTS: [&str; 5] =
    ["-f text", "-f json", "-f folded", "-f text --lines", "-f folded --lines"];

#[derive(Serialize)]
pub(crate) struct Costs(Vec<Cost>);

#[derive(Serialize)]
struct Cost {
    arguments: &'static str,
    delivered: u64,
    user_ms: f64,
    system_ms: f64,
    cpu_ms_per_1000_samples: f64,
    peak_mib: f64,
}

impl Costs {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("measuring the agent's time and memory ...");
        let _load = bench.load(Build::FramePointers).run(load::FRAMES)?;
        ARGUMENTS
            .into_iter()
            .map(|arguments| Cost::measure(bench, arguments))
            .collect::<Result<_>>()
            .map(Self)
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nagent at {HZ} Hz for {AGENT_SECONDS} s\n  {:<18}{:>10}{:>9}{:>11}{:>19}{:>10}",
            "", "delivered", "user ms", "system ms", "ms / 1000 samples", "peak MiB"
        )?;
        for it in &self.0 {
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
        Ok(())
    }
}

impl Cost {
    fn measure(bench: &Bench, arguments: &'static str) -> Result<Self> {
        let all = format!("-F {HZ} -d {AGENT_SECONDS} {arguments}");
        let ended = Agent::start(&bench.agent, &all, Stdio::null())?.wait()?;
        let delivered = ended.delivered()?;
        Ok(Self {
            arguments,
            delivered,
            user_ms: 1e3 * ended.user,
            system_ms: 1e3 * ended.system,
            cpu_ms_per_1000_samples: 1e6 * (ended.user + ended.system) / delivered as f64,
            peak_mib: ended.peak_kib as f64 / 1024.0,
        })
    }
}
