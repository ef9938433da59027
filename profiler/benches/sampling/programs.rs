//! What a sample costs in the kernel: our eBPF program beside others, by how deep the stack is.

use std::{fmt::Write as _, process::Stdio, thread, time::Duration};

use aya::sys::{Stats, enable_stats};
use serde::Serialize;

use crate::{
    Bench, HZ, Result, SETTLE,
    agent::Agent,
    fixed_record,
    load::{self, Build},
    lowest,
    profile_bee::{self, Tracefs},
    samples::{self, Wholeness},
};

/// How deep the stacks are below libc's start.
const DEPTHS: [usize; 3] = [5, 29, 100];
/// For how long a program's runs are counted in a round.
const TIME: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;
/// How long an agent may take to its first samples.
const LIMIT: Duration = Duration::from_secs(10);

/// What is measured, in the order of the table.
const SUBJECTS: [(Build, Subject); 8] = {
    use Build::{FramePointers, NoFramePointers};
    use Subject::{FixedRecord, Ours, ProfileBee};
    [
        (FramePointers, FixedRecord),
        (FramePointers, Ours("--call-graph auto")),
        (FramePointers, Ours("--call-graph fp")),
        (FramePointers, Ours("--kernel-only")),
        (FramePointers, ProfileBee("")),
        (NoFramePointers, FixedRecord),
        (NoFramePointers, Ours("--call-graph auto")),
        (NoFramePointers, ProfileBee("--dwarf")),
    ]
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    FixedRecord,
    Ours(&'static str),
    ProfileBee(&'static str),
}

impl Subject {
    fn name(self) -> String {
        match self {
            Self::FixedRecord => "fixed record".to_owned(),
            Self::Ours(arguments) => format!("profiler {arguments}"),
            Self::ProfileBee(arguments) => format!("profile-bee {arguments}").trim_end().to_owned(),
        }
    }
}

/// The eBPF programs' time for a sample.
#[derive(Serialize)]
pub(crate) struct Programs {
    hz: u64,
    rows: Vec<Row>,
    /// Why there is no row of a peer.
    missing: Option<String>,
}

#[derive(Serialize)]
struct Row {
    frame_pointers: bool,
    program: String,
    cells: Vec<Cell>,
    /// What one more frame costs, by the least and the most depth; where it finds both.
    ns_per_frame: Option<f64>,
    /// Of the fixed record's time with frame pointers, at each depth.
    percent_of_fixed_record: Vec<f64>,
}

#[derive(Serialize)]
struct Cell {
    /// The program's own chain.
    depth: usize,
    /// What the profiler has found of it, libc's start included.
    frames: Option<usize>,
    whole_percent: Option<f64>,
    lowest_ns: f64,
    ns: Vec<f64>,
}

/// One round.
struct Round {
    ns: f64,
    frames: Option<usize>,
    whole_percent: Option<f64>,
}

impl Programs {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("measuring the eBPF programs ...");
        // Counting ends when this is dropped.
        let _stats = enable_stats(Stats::RunTime)?;
        let mut missing = bench.profile_bee.is_none().then(|| profile_bee::MISSING.to_owned());
        let _tracefs = bench.profile_bee.as_ref().map(|_| Tracefs::mount()).transpose()?;
        let mut cells = SUBJECTS.map(|_| Vec::new());
        for depth in DEPTHS {
            let mut rounds = SUBJECTS.map(|_| Vec::new());
            for _ in 0..ROUNDS {
                for (&(build, subject), rounds) in SUBJECTS.iter().zip(&mut rounds) {
                    let is_peer = matches!(subject, Subject::ProfileBee(_));
                    if is_peer && missing.is_some() {
                        continue;
                    }
                    let _load = bench.load(build).run(depth)?;
                    match bench.round(subject, depth) {
                        Ok(round) => rounds.push(round),
                        // It is not ours, and the rest does not depend on it.
                        Err(error) if is_peer => {
                            let error = error.to_string();
                            let why: Vec<&str> = error.lines().take(2).collect();
                            missing = Some(format!("profile-bee failed: {}", why.join(" ")));
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            for (cells, rounds) in cells.iter_mut().zip(&rounds) {
                if !rounds.is_empty() {
                    cells.push(Cell::of(depth, rounds));
                }
            }
        }
        let base: Vec<f64> = cells.first().into_iter().flatten().map(|it| it.lowest_ns).collect();
        let rows = SUBJECTS.into_iter().zip(cells).filter(|(_, it)| it.len() == DEPTHS.len());
        Ok(Self {
            hz: HZ,
            rows: rows.map(|((build, subject), it)| Row::of(build, subject, it, &base)).collect(),
            missing,
        })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\neBPF program, ns a sample at {} Hz (user frames found), lowest of {ROUNDS} rounds of \
             {TIME:?}",
            self.hz
        )?;
        for frame_pointers in [true, false] {
            let title = if frame_pointers { "frame pointers" } else { "no frame pointers" };
            write!(text, "  {title:<32}")?;
            for depth in DEPTHS {
                write!(text, "{:>14}", format!("{depth} deep"))?;
            }
            writeln!(text, "{:>10}  of the fixed record", "a frame")?;
            for row in self.rows.iter().filter(|it| it.frame_pointers == frame_pointers) {
                row.write(text)?;
            }
        }
        match &self.missing {
            Some(missing) => writeln!(text, "  {missing}"),
            None => Ok(()),
        }
    }
}

impl Row {
    fn of(build: Build, subject: Subject, cells: Vec<Cell>, base: &[f64]) -> Self {
        let ratios = cells.iter().zip(base).map(|(it, base)| 100.0 * it.lowest_ns / base);
        Self {
            frame_pointers: build == Build::FramePointers,
            program: subject.name(),
            ns_per_frame: per_frame(&cells),
            percent_of_fixed_record: ratios.collect(),
            cells,
        }
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        write!(text, "    {:<30}", self.program)?;
        for cell in &self.cells {
            let frames = cell.frames.map_or_else(|| "?".to_owned(), |it| it.to_string());
            write!(text, "{:>14}", format!("{:.0} ({frames})", cell.lowest_ns))?;
        }
        let per_frame = self.ns_per_frame.map_or_else(|| "–".to_owned(), |it| format!("{it:.0}"));
        let ratios: Vec<String> =
            self.percent_of_fixed_record.iter().map(|it| format!("{it:.0}")).collect();
        write!(text, "{per_frame:>10}  {} %", ratios.join(", "))?;
        let whole = self.cells.iter().filter_map(|it| it.whole_percent).fold(f64::NAN, f64::min);
        if whole.is_nan() {
            writeln!(text)
        } else {
            writeln!(text, "; at least {whole:.1} % whole")
        }
    }
}

/// What a frame more costs.
fn per_frame(cells: &[Cell]) -> Option<f64> {
    let (first, last) = (cells.first()?, cells.last()?);
    let frames = last.frames?.checked_sub(first.frames?)?;
    // A profiler that has lost the chain says nothing of that.
    (frames * 2 > last.depth).then(|| (last.lowest_ns - first.lowest_ns) / frames as f64)
}

impl Cell {
    fn of(depth: usize, rounds: &[Round]) -> Self {
        let ns: Vec<f64> = rounds.iter().map(|it| it.ns).collect();
        Self {
            depth,
            frames: rounds.last().and_then(|it| it.frames),
            whole_percent: rounds.iter().filter_map(|it| it.whole_percent).reduce(f64::min),
            lowest_ns: lowest(&ns),
            ns,
        }
    }
}

impl Bench {
    fn round(&self, subject: Subject, depth: usize) -> Result<Round> {
        match subject {
            Subject::FixedRecord => {
                let (stats, frames) = fixed_record::measure(&self.fixed_record, &self.cpus, TIME)?;
                Ok(Round { ns: stats.ns_per_run()?, frames, whole_percent: None })
            }
            Subject::Ours(arguments) => self.ours(arguments),
            Subject::ProfileBee(arguments) => self.profile_bee(arguments, depth),
        }
    }

    fn ours(&self, arguments: &str) -> Result<Round> {
        let output = self.dir.join("programs.json");
        let arguments = format!("-F {HZ} -d 60 {arguments}");
        let agent = Agent::start_json(&self.agent, &arguments, &output)?;
        let loaded = agent.loaded()?;
        samples::wait_for_any(&output, LIMIT)?;
        let by_tables = arguments.contains("auto");
        if by_tables {
            // Until then it is walked without the tables.
            samples::wait_for_whole(&output, load::NAME, LIMIT)?;
        }
        thread::sleep(SETTLE);
        let (before, begin_ns) = (loaded.run_stats()?, samples::now_ns()?);
        thread::sleep(TIME);
        let stats = loaded.run_stats()?.since(before);
        agent.end()?;
        let mut found = samples::of(&output, load::NAME)?;
        found.retain(|sample| sample.time_ns >= begin_ns);
        Ok(Round {
            ns: stats.ns_per_run()?,
            // Without user frames, as asked for, there are no such samples.
            frames: Some(samples::depth(&found).unwrap_or(0)),
            // By frame pointers a stack ends where libc has none.
            whole_percent: by_tables.then(|| Wholeness::of(&found).percent()).flatten(),
        })
    }

    fn profile_bee(&self, arguments: &str, depth: usize) -> Result<Round> {
        let program = self.profile_bee.as_deref().ok_or(profile_bee::MISSING)?;
        let output = self.dir.join("programs.folded");
        // It goes on while we look at it, and ends by itself.
        let time = profile_bee::SETTLE + TIME * 2;
        let mut command = profile_bee::command(program, arguments, time, &output);
        let agent = Agent::spawn(&mut command, Stdio::null())?;
        let loaded = agent.loaded()?;
        thread::sleep(profile_bee::SETTLE);
        let before = loaded.run_stats()?;
        thread::sleep(TIME);
        let stats = loaded.run_stats()?.since(before);
        agent.wait()?;
        let found = profile_bee::Found::read(&output, load::NAME, depth)?;
        Ok(Round {
            ns: stats.ns_per_run()?,
            frames: found.frames,
            whole_percent: found.whole_percent,
        })
    }
}
