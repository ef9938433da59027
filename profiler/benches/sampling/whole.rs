//! Whole stacks of a program without frame pointers, and how soon after a start there is one.

use std::{collections::HashMap, fmt::Write as _, thread, time::Duration};

use serde::Serialize;

use crate::{
    Bench, HZ, Result,
    agent::Agent,
    load::{self, Build},
    median,
    samples::{self, Sample, Wholeness, now_ns},
};

/// Runs of the agent beside a program that has been running.
const STARTS: usize = 7;
/// How often a program is started while the agent runs, and programs that it has not seen.
const EXECS: usize = 15;
const NEW_PROGRAMS: usize = 5;
/// For how long a program runs that is started.
const LIFE: Duration = Duration::from_millis(150);
/// How long a table may take at most.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Serialize)]
pub(crate) struct Whole {
    rows: Vec<Row>,
}

/// From when there are whole stacks.
#[derive(Serialize)]
struct Row {
    what: &'static str,
    times: usize,
    /// All samples of the programs.
    wholeness: Wholeness,
    /// Those behind the first whole one of a process.
    after_first: Wholeness,
    /// From the start to the first whole stack, in milliseconds; of those that have one.
    first_ms: Vec<f64>,
    lowest_ms: f64,
    median_ms: f64,
    most_ms: f64,
    /// What is aimed at.
    goal_ms: Option<u32>,
}

/// What is gathered for a row.
#[derive(Default)]
struct Found {
    times: usize,
    wholeness: Wholeness,
    after_first: Wholeness,
    first_ms: Vec<f64>,
}

impl Whole {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("measuring how soon stacks are whole ...");
        let mut running = Found::default();
        for _ in 0..STARTS {
            bench.start_agent(&mut running)?;
        }
        let known = bench.start_programs(&[bench.load(Build::NoFramePointers)], EXECS)?;
        let salts = 1..=NEW_PROGRAMS;
        let unseen = salts
            .map(|salt| {
                load::Program::compile(&bench.dir, Build::NoFramePointers, salt, &bench.cpus)
            })
            .collect::<Result<Vec<_>>>()?;
        let new = bench.start_programs(&unseen.iter().collect::<Vec<_>>(), NEW_PROGRAMS)?;
        Ok(Self {
            rows: vec![
                running.row("running when the profiler starts, on each CPU", Some(300)),
                known.row("started meanwhile, its file is known", Some(50)),
                new.row("started meanwhile, its file is new", None),
            ],
        })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nwhole stacks of a program without frame pointers at {HZ} Hz, and ms to the first one\n\
             {:48}{:>6}{:>9}{:>11}{:>9}{:>9}{:>9}{:>7}",
            "", "times", "whole", "from then", "lowest", "median", "most", "goal"
        )?;
        for it in &self.rows {
            let percent =
                |it: &Wholeness| it.percent().map_or("–".into(), |it| format!("{it:.1} %"));
            writeln!(
                text,
                "  {:<46}{:>6}{:>9}{:>11}{:>9.1}{:>9.1}{:>9.1}{:>7}",
                it.what,
                it.times,
                percent(&it.wholeness),
                percent(&it.after_first),
                it.lowest_ms,
                it.median_ms,
                it.most_ms,
                it.goal_ms.map_or("–".into(), |it| it.to_string())
            )?;
            for (when, cut) in [("cut", &it.wholeness), ("from then on", &it.after_first)] {
                let reasons = cut.reasons();
                if !reasons.is_empty() {
                    writeln!(text, "    {when}, of {}: {reasons}", cut.samples)?;
                }
            }
            let without = it.times.saturating_sub(it.first_ms.len());
            if without > 0 {
                writeln!(text, "    {without} without any whole stack")?;
            }
        }
        Ok(())
    }
}

impl Found {
    /// The samples of a process, or of several that count as one, that was there since `start_ns`.
    fn add(&mut self, start_ns: u64, samples: &[Sample]) {
        self.times += 1;
        self.wholeness.add(samples);
        let Some(first) = samples.iter().filter(|it| it.is_whole()).map(|it| it.time_ns).min()
        else {
            return;
        };
        self.after_first.add(samples.iter().filter(|it| it.time_ns > first));
        self.first_ms.push(first.saturating_sub(start_ns) as f64 / 1e6);
    }

    fn row(self, what: &'static str, goal_ms: Option<u32>) -> Row {
        let Self { times, wholeness, after_first, first_ms } = self;
        let most_ms = first_ms.iter().copied().fold(f64::NAN, f64::max);
        Row {
            what,
            times,
            wholeness,
            after_first,
            lowest_ms: crate::lowest(&first_ms),
            median_ms: median(&first_ms),
            most_ms,
            first_ms,
            goal_ms,
        }
    }
}

impl Bench {
    /// Starts the agent while all CPUs are busy.
    fn start_agent(&self, found: &mut Found) -> Result<()> {
        let output = self.dir.join("whole.json");
        let _load = self.load(Build::NoFramePointers).run(load::FRAMES)?;
        // It is to be busy, and not about to be started.
        thread::sleep(LIFE);
        let start_ns = now_ns()?;
        Agent::start_json(&self.agent, &format!("-F {HZ} -d 1"), &output)?.wait()?;
        found.add(start_ns, &samples::of(&output, load::NAME)?);
        Ok(())
    }

    /// Starts these programs in turns, while the agent samples and a CPU is free for it, if there are
    /// two.
    fn start_programs(&self, programs: &[&load::Program], times: usize) -> Result<Found> {
        let output = self.dir.join("whole.json");
        let mut cpus = self.cpus.iter();
        let first = cpus.next().ok_or("no CPU is online")?;
        let last = cpus.last().unwrap_or(first);
        let agent = Agent::start_json(&self.agent, &format!("-F {HZ} -d 120"), &output)?;
        // What is started has its file in common with this one, or libc only.
        let known = self.load(Build::NoFramePointers).run_on(first)?;
        samples::wait_for_whole(&output, load::NAME, LIMIT)?;
        drop(known);

        let mut started: Vec<(u64, u32)> = Vec::new();
        for program in programs.iter().cycle().take(times) {
            let start_ns = now_ns()?;
            let running = program.run_on(last)?;
            started.extend(running.pids().map(|pid| (start_ns, pid)));
            thread::sleep(LIFE);
        }
        agent.end()?;
        let mut by_pid: HashMap<u32, Vec<Sample>> = HashMap::new();
        for sample in samples::of(&output, load::NAME)? {
            by_pid.entry(sample.pid).or_default().push(sample);
        }
        let mut found = Found::default();
        for (start_ns, pid) in started {
            found.add(start_ns, &by_pid.remove(&pid).unwrap_or_default());
        }
        Ok(found)
    }
}
