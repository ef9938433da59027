//! Processes that live for milliseconds: whether their stacks are whole and have names, beside perf.

use std::{fmt::Write as _, path::Path, thread, time::Duration};

use serde::Serialize;

use crate::{
    Bench, HZ, Result,
    agent::Agent,
    brief::Load,
    load::{self, Build},
    perf::{self, CallGraph},
    samples::{self, Wholeness, percent},
};

/// For how long the processes live, in milliseconds of CPU time.
const LIVES: [u32; 2] = [10, 2];
/// For how long each profiler runs.
const TIME: Duration = Duration::from_secs(3);
/// The program's name, without frame pointers.
const NAME: &str = "brief-nofp";

#[derive(Serialize)]
pub(crate) struct Short {
    rows: Vec<Row>,
}

/// Samples of processes of one length of life.
#[derive(Serialize)]
struct Row {
    milliseconds: u32,
    frame_pointers: bool,
    samples: u64,
    named: u64,
    wholeness: Wholeness,
    /// The same of `perf record -g`; `None` where there is no perf.
    perf: Option<perf::Found>,
    /// And by DWARF, where the program has no frame pointers.
    perf_dwarf: Option<perf::Found>,
}

impl Short {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("looking at short processes ...");
        let without = bench.dir.join(NAME);
        let [first, second] = Build::NoFramePointers.flags();
        let source = include_str!("../../tests/fixtures/brief.c");
        load::compile(source, &without, &["-O2", first, second])?;
        let mut rows = Vec::new();
        for (program, frame_pointers) in [(bench.brief.as_path(), true), (&without, false)] {
            for milliseconds in LIVES {
                rows.push(Row::measure(bench, program, milliseconds, frame_pointers)?);
            }
        }
        Ok(Self { rows })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        let (with, without): (Vec<&Row>, Vec<&Row>) =
            self.rows.iter().partition(|it| it.frame_pointers);
        let share = |part: u64, whole: u64| {
            percent(part, whole).map_or_else(|| "no sample".to_owned(), |it| format!("{it:.1} %"))
        };
        let none = "not installed";
        writeln!(
            text,
            "\nsamples of short processes with all names, at {HZ} Hz\n{:>14}{:>18}{:>10}{:>16}",
            "live for", "frame pointers", "profiler", "perf record -g"
        )?;
        for (it, has) in
            with.iter().map(|it| (it, "yes")).chain(without.iter().map(|it| (it, "no")))
        {
            writeln!(
                text,
                "{:>11} ms{has:>18}{:>10}{:>16}",
                it.milliseconds,
                share(it.named, it.samples),
                it.perf.map_or(none.to_owned(), |it| share(it.named, it.samples))
            )?;
        }
        writeln!(
            text,
            "\nwhole stacks of short processes without frame pointers, at {HZ} Hz\n\
             {:>14}{:>10}{:>33}{:>16}  profiler cut",
            "live for", "profiler", "perf record --call-graph dwarf", "perf record -g"
        )?;
        for it in without {
            let perf = |it: Option<perf::Found>| {
                it.map_or(none.to_owned(), |it| share(it.whole, it.samples))
            };
            writeln!(
                text,
                "{:>11} ms{:>10}{:>33}{:>16}  {}",
                it.milliseconds,
                share(it.wholeness.whole, it.wholeness.samples),
                perf(it.perf_dwarf),
                perf(it.perf),
                it.wholeness.reasons()
            )?;
        }
        Ok(())
    }
}

impl Row {
    fn measure(
        bench: &Bench,
        program: &Path,
        milliseconds: u32,
        frame_pointers: bool,
    ) -> Result<Self> {
        let comm = program.file_name().and_then(|name| name.to_str()).ok_or("no name")?;
        let load = Load::start(program, milliseconds)?;
        let output = bench.dir.join("short.json");
        let arguments = format!("-F {HZ} -d {}", TIME.as_secs());
        Agent::start_json(&bench.agent, &arguments, &output)?.wait()?;
        let samples = samples::of(&output, comm)?;
        let data = bench.dir.join("perf.data");
        let perf = record(CallGraph::FramePointers, &data, comm)?;
        drop(load);
        let perf_dwarf = if frame_pointers {
            None
        } else {
            // perf (6.1) takes a file to lie where it has found it in the first process, and loses
            // most stacks of the others.
            let _load = Load::start_at_fixed_addresses(program, milliseconds)?;
            record(CallGraph::Dwarf, &data, comm)?
        };
        Ok(Self {
            milliseconds,
            frame_pointers,
            samples: samples.len() as u64,
            named: samples.iter().filter(|it| it.named).count() as u64,
            wholeness: Wholeness::of(&samples),
            perf,
            perf_dwarf,
        })
    }
}

/// What perf finds in the same time.
fn record(call_graph: CallGraph, data: &Path, comm: &str) -> Result<Option<perf::Found>> {
    if !perf::is_installed() {
        return Ok(None);
    }
    perf::while_recording(call_graph, data, || {
        thread::sleep(TIME);
        Ok(())
    })?;
    perf::script(data, comm).map(Some)
}
