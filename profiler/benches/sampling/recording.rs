//! A flame graph of the whole machine: what it takes from the first sample to the file, beside perf.

use std::{
    fmt::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use serde::Serialize;

use crate::{
    Bench, Result,
    agent::{Agent, Ended},
    load::{self, Build},
    perf,
};

const RATES: [u64; 2] = [99, 999];
const SECONDS: &str = "10";

#[derive(Serialize)]
pub(crate) struct Recordings(Vec<Recording>);

/// CPU time in milliseconds.
#[derive(Serialize)]
struct Recording {
    hz: u64,
    /// `profiler record -o x.svg`: sampling, names and the picture.
    profiler_ms: f64,
    /// `perf record -g`, which writes down what it has sampled.
    perf_record_ms: Option<f64>,
    /// `perf script`, which names that. A picture would come on top.
    perf_script_ms: Option<f64>,
}

impl Recordings {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("measuring recordings ...");
        let _load = bench.load(Build::FramePointers).run(load::FRAMES)?;
        RATES.into_iter().map(|hz| Recording::measure(bench, hz)).collect::<Result<_>>().map(Self)
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nCPU ms to record {SECONDS} s of the machine\n  {:>6}{:>24}{:>16}{:>14}",
            "Hz", "profiler record -o svg", "perf record -g", "perf script"
        )?;
        for it in &self.0 {
            let peer = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.0}"));
            writeln!(
                text,
                "  {:>6}{:>24.0}{:>16}{:>14}",
                it.hz,
                it.profiler_ms,
                peer(it.perf_record_ms),
                peer(it.perf_script_ms)
            )?;
        }
        Ok(())
    }
}

impl Recording {
    fn measure(bench: &Bench, hz: u64) -> Result<Self> {
        let mut record = Command::new(&bench.agent);
        record.args(["record", "-e", "cpu-clock", "-d", SECONDS, "-F", &hz.to_string(), "-o"]);
        let profiler_ms = cpu_ms(record.arg(bench.dir.join("recording.svg")))?;
        let (mut perf_record_ms, mut perf_script_ms) = (None, None);
        if perf::is_installed() {
            let data = bench.dir.join("recording.data");
            perf_record_ms = Some(perf_record(hz, &data)?);
            let mut script = Command::new("perf");
            perf_script_ms = Some(cpu_ms(script.args(["script", "--no-inline", "-i"]).arg(&data))?);
        }
        Ok(Self { hz, profiler_ms, perf_record_ms, perf_script_ms })
    }
}

fn perf_record(hz: u64, data: &Path) -> Result<f64> {
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", &hz.to_string(), "-o"]);
    cpu_ms(record.arg(data).args(["--", "sleep", SECONDS]))
}

/// What a program takes until it has ended by itself.
fn cpu_ms(command: &mut Command) -> Result<f64> {
    let Ended { user, system, .. } = Agent::spawn(command, Stdio::null())?.wait()?;
    Ok((user + system) * 1e3)
}
