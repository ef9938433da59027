//! What events cost at each context switch, by what they are opened on.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Lines, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use serde::Serialize;

use crate::{Bench, Result, SETTLE, agent::Agent, load, lowest, median};

/// Each round measures each way once.
const ROUNDS: usize = 9;
/// Round trips to find out how fast the machine is, and how long those that are measured should take.
const TRIAL_TRIPS: u32 = 5_000;
const SECONDS: f64 = 0.5;
/// Switches of a round trip.
const SWITCHES: f64 = 2.0;

/// What events are opened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nothing,
    Cpus,
    Tasks,
    /// The cgroup of both processes.
    Cgroup,
    /// That of one of them.
    CgroupOfOne,
}

const WAYS: [Way; 5] = [Way::Nothing, Way::Cpus, Way::Tasks, Way::Cgroup, Way::CgroupOfOne];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no profiler",
            Self::Cpus => "events of CPUs",
            Self::Tasks => "of both tasks (--per-task)",
            Self::Cgroup => "of their cgroup (--per-cgroup)",
            Self::CgroupOfOne => "of the cgroup of one of them",
        }
    }

    fn needs_cgroups(self) -> bool {
        matches!(self, Self::Cgroup | Self::CgroupOfOne)
    }
}

#[derive(Serialize)]
pub(crate) struct Switches {
    rows: Vec<Row>,
    cgroups: bool,
}

#[derive(Serialize)]
struct Row {
    way: &'static str,
    /// What a switch, and the system calls that lead to it, take of the CPU, in each round.
    cpu_ns: Vec<f64>,
    /// As many fit into a second, at the lowest.
    a_second: f64,
    /// What one takes more than without a profiler, at the lowest.
    more_ns: f64,
    /// How much longer it takes: the lowest, and the median of the rounds, each against the same round without.
    percent: f64,
    median_percent: f64,
}

impl Switches {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("measuring context switches ...");
        let program = bench.dir.join("switches/switches");
        load::compile(include_str!("switches.c"), &program, &["-O2"])?;
        let cgroup = Cgroup::make();
        let ways: Vec<Way> =
            WAYS.into_iter().filter(|it| cgroup.is_some() || !it.needs_cgroups()).collect();
        let mut pair = Pair::start(&program)?;
        let trial = pair.trips(TRIAL_TRIPS.into())?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "millions")]
        let trips = (f64::from(TRIAL_TRIPS) * SECONDS * 1e9 / trial).ceil() as u64;
        let mut took: Vec<Vec<f64>> = ways.iter().map(|_| Vec::new()).collect();
        for round in 0..ROUNDS {
            // Each begins in some rounds: what drifts then cancels out.
            for at in (0..ways.len()).cycle().skip(round % ways.len()).take(ways.len()) {
                if let (Some(way), Some(took)) = (ways.get(at), took.get_mut(at)) {
                    let ns = pair.measured(bench, *way, cgroup.as_ref(), trips)?;
                    took.push(ns / trips as f64 / SWITCHES);
                }
            }
        }
        // Nothing comes first.
        let base = took.first().cloned().unwrap_or_default();
        let row = |(way, ns): (&Way, &Vec<f64>)| {
            let rounds: Vec<f64> =
                ns.iter().zip(&base).map(|(with, without)| more(*with, *without)).collect();
            Row {
                way: way.name(),
                a_second: 1e9 / lowest(ns),
                more_ns: lowest(ns) - lowest(&base),
                percent: more(lowest(ns), lowest(&base)),
                median_percent: median(&rounds),
                cpu_ns: ns.clone(),
            }
        };
        let rows = ways.iter().zip(&took).map(row).collect();
        Ok(Self { rows, cgroups: cgroup.is_some() })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\ncontext switches of two processes on one CPU, {ROUNDS} rounds, cpu-clock at 99 Hz\n\
             {:<34}{:>14}{:>10}{:>12}{:>12}",
            "", "a CPU second", "more, ns", "lowest", "median"
        )?;
        for it in &self.rows {
            writeln!(
                text,
                "  {:<32}{:>14.0}{:>10.0}{:>10.1} %{:>10.1} %",
                it.way, it.a_second, it.more_ns, it.percent, it.median_percent
            )?;
        }
        if self.cgroups { Ok(()) } else { writeln!(text, "  cgroups of version 2 are not mounted") }
    }
}

fn more(with: f64, without: f64) -> f64 {
    100.0 * (with / without - 1.0)
}

/// The two processes; killed when dropped.
struct Pair {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    ids: [String; 2],
}

impl Pair {
    fn start(program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("no output of the pair")?;
        let mut lines = BufReader::new(output).lines();
        let line = lines.next().ok_or("the pair said nothing")??;
        let (one, other) = line.split_once(' ').ok_or("the pair has no ids")?;
        let ids = [one.to_owned(), other.to_owned()];
        Ok(Self { child, lines, ids })
    }

    /// How many nanoseconds of CPU time so many round trips take.
    fn trips(&mut self, trips: u64) -> Result<f64> {
        writeln!(self.child.stdin.as_mut().ok_or("the pair reads nothing")?, "{trips}")?;
        Ok(self.lines.next().ok_or("the pair has ended")??.parse()?)
    }

    /// The same, while events are open.
    fn measured(
        &mut self,
        bench: &Bench,
        way: Way,
        cgroup: Option<&Cgroup>,
        trips: u64,
    ) -> Result<f64> {
        let [one, other] = &self.ids;
        let of_one = |cgroup: &Cgroup| {
            let outside = (way == Way::CgroupOfOne).then_some(other);
            cgroup.take(one)?;
            outside.map_or_else(|| cgroup.take(other), |it| cgroup.leave(it))
        };
        // In all ways, so that only the events differ.
        cgroup.map_or(Ok(()), of_one)?;
        let folder = cgroup.map_or("", |it| it.folder.to_str().unwrap_or_default());
        let arguments = match way {
            Way::Nothing => None,
            Way::Cpus => Some(String::new()),
            Way::Tasks => Some(format!("--per-task -p {one},{other}")),
            Way::Cgroup | Way::CgroupOfOne => Some(format!("--per-cgroup --cgroup {folder}")),
        };
        let mut work = || {
            // What the agent does at its start is over by then.
            self.trips(TRIAL_TRIPS.into())?;
            thread::sleep(SETTLE);
            self.trips(trips)
        };
        let Some(arguments) = arguments else { return work() };
        let arguments = format!("-F 99 -d 60 {arguments}");
        let agent = Agent::start(&bench.agent, &arguments, Stdio::null())?;
        agent.loaded()?;
        let took = work()?;
        agent.end()?;
        Ok(took)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cgroup of version 2; removed when dropped, after the pair.
struct Cgroup {
    root: PathBuf,
    folder: PathBuf,
}

impl Cgroup {
    /// `None` where there is no such hierarchy.
    fn make() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let root = PathBuf::from(line.split(' ').nth(4)?);
        let folder = root.join(format!("profiler-bench-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        Some(Self { root, folder })
    }

    fn take(&self, pid: &str) -> Result<()> {
        Ok(fs::write(self.folder.join("cgroup.procs"), pid)?)
    }

    fn leave(&self, pid: &str) -> Result<()> {
        Ok(fs::write(self.root.join("cgroup.procs"), pid)?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // What was killed leaves it a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
