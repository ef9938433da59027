//! How much slower a program without frame pointers is while it is sampled, by us and by perf.

use std::{fmt::Write as _, process::Stdio, thread};

use serde::Serialize;

use crate::{
    Bench, Result, SETTLE,
    agent::Agent,
    load::{Build, Took},
    lowest, median,
    perf::{self, CallGraph},
};

/// Each round does the work once with each profiler, and once with none.
const ROUNDS: usize = 9;
/// Work to find out how fast the machine is.
const TRIAL_UNITS: u32 = 200;
/// How long the work should take.
const WORK_SECONDS: f64 = 1.0;

/// Who samples.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sampler {
    Nobody,
    Profiler(u64),
    Perf(CallGraph),
}

const SAMPLERS: [Sampler; 6] = [
    Sampler::Nobody,
    Sampler::Profiler(99),
    Sampler::Profiler(999),
    Sampler::Perf(CallGraph::None),
    Sampler::Perf(CallGraph::FramePointers),
    Sampler::Perf(CallGraph::Dwarf),
];

impl Sampler {
    fn name(self) -> String {
        match self {
            Self::Nobody => "no profiler".to_owned(),
            Self::Profiler(hz) => format!("profiler -F {hz}"),
            Self::Perf(call_graph) => call_graph.command(),
        }
    }

    fn needs_perf(self) -> bool {
        matches!(self, Self::Perf(_))
    }
}

#[derive(Serialize)]
pub(crate) struct Slowdown {
    rows: Vec<Row>,
    perf: bool,
}

/// How much longer the same work takes while somebody samples.
#[derive(Serialize)]
struct Row {
    sampler: String,
    /// What one unit has taken of the CPU, in each round.
    cpu_ns: Vec<f64>,
    clock_ns: Vec<f64>,
    /// The lowest against the lowest without a profiler.
    cpu_percent: f64,
    clock_percent: f64,
    /// The median of the rounds, each against the same round without a profiler.
    median_cpu_percent: f64,
    median_clock_percent: f64,
}

impl Slowdown {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("measuring the slowdown of a program ...");
        let has_perf = perf::is_installed();
        let samplers: Vec<Sampler> =
            SAMPLERS.into_iter().filter(|it| has_perf || !it.needs_perf()).collect();
        let trial = bench.load(Build::NoFramePointers).work(TRIAL_UNITS.into())?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some hundreds"
        )]
        let units = (f64::from(TRIAL_UNITS) * WORK_SECONDS / trial.clock).ceil() as u64;
        let ns = |seconds: f64| 1e9 * seconds / units as f64;
        let mut took: Vec<Vec<Took>> = samplers.iter().map(|_| Vec::new()).collect();
        for round in 0..ROUNDS {
            // Each begins in some rounds: a drift of the clock's speed then cancels out.
            let order = (0..samplers.len()).cycle().skip(round % samplers.len());
            for at in order.take(samplers.len()) {
                if let (Some(sampler), Some(took)) = (samplers.get(at), took.get_mut(at)) {
                    took.push(bench.sampled_work(units, *sampler)?);
                }
            }
        }
        let mut rows: Vec<Row> = Vec::with_capacity(samplers.len());
        for (sampler, took) in samplers.iter().zip(&took) {
            let cpu_ns: Vec<f64> = took.iter().map(|it| ns(it.cpu)).collect();
            let clock_ns: Vec<f64> = took.iter().map(|it| ns(it.clock)).collect();
            // Nobody comes first.
            let base = rows.first();
            let base_cpu = base.map_or(&cpu_ns, |it| &it.cpu_ns);
            let base_clock = base.map_or(&clock_ns, |it| &it.clock_ns);
            rows.push(Row {
                sampler: sampler.name(),
                cpu_percent: more(lowest(&cpu_ns), lowest(base_cpu)),
                clock_percent: more(lowest(&clock_ns), lowest(base_clock)),
                median_cpu_percent: median_of_rounds(&cpu_ns, base_cpu),
                median_clock_percent: median_of_rounds(&clock_ns, base_clock),
                cpu_ns,
                clock_ns,
            });
        }
        Ok(Self { rows, perf: has_perf })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nslowdown of a program without frame pointers, {ROUNDS} rounds; perf at 999 Hz\n\
             {:<34}{:>22}{:>22}\n{:<34}{:>11}{:>11}{:>11}{:>11}",
            "", "its CPU time", "by the clock", "", "lowest", "median", "lowest", "median"
        )?;
        for it in self.rows.iter().skip(1) {
            writeln!(
                text,
                "  {:<32}{:>9.2} %{:>9.2} %{:>9.2} %{:>9.2} %",
                it.sampler,
                it.cpu_percent,
                it.median_cpu_percent,
                it.clock_percent,
                it.median_clock_percent
            )?;
        }
        if self.perf { Ok(()) } else { writeln!(text, "  perf is not installed") }
    }
}

fn more(with: f64, without: f64) -> f64 {
    100.0 * (with / without - 1.0)
}

fn median_of_rounds(with: &[f64], without: &[f64]) -> f64 {
    let rounds: Vec<f64> =
        with.iter().zip(without).map(|(with, without)| more(*with, *without)).collect();
    median(&rounds)
}

impl Bench {
    /// What the work takes while somebody samples.
    fn sampled_work(&self, units: u64, sampler: Sampler) -> Result<Took> {
        let load = self.load(Build::NoFramePointers);
        let work = || {
            // The agent reads the kernel's symbols once, and makes the tables of what runs: these are
            // costs of its start, not of sampling. Who does neither runs as long, for the CPU's sake.
            load.work(TRIAL_UNITS.into())?;
            thread::sleep(SETTLE);
            load.work(units)
        };
        let data = self.dir.join("perf.data");
        match sampler {
            Sampler::Nobody => work(),
            Sampler::Profiler(hz) => {
                let agent = Agent::start(&self.agent, &format!("-F {hz} -d 60"), Stdio::null())?;
                agent.loaded()?;
                let took = work()?;
                agent.end()?;
                Ok(took)
            }
            Sampler::Perf(call_graph) => perf::while_recording(call_graph, &data, work),
        }
    }
}
