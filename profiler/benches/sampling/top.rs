//! `top`: what its screen costs beside sampling, and what it takes to draw a large window.

use std::{
    fmt::Write as _,
    fs,
    hint::black_box,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use profiler_profile::{
    address::Address,
    export::Row,
    frame::Frame,
    live::{Filter, Flame, Snapshot, Span, Stacks, Window},
    sample::{Comm, Sample, Task},
    source::{Counts, Rate, Source},
    stack::{Location, Stack},
    stack_end::StackEnd,
    store::Store,
};
use serde::Serialize;

use crate::{
    AGENT_SECONDS, Bench, HZ, Result,
    agent::Agent,
    load::{self, Build},
    lowest,
};

/// What is pressed at the start, and what is seen then.
const VIEWS: [(&str, &str); 4] =
    [("1", "functions"), ("2", "processes"), ("4", "flame graph"), ("6", "spawns")];
/// A large window: so many samples of so many stacks, this deep.
const SAMPLES: usize = 1_000_000;
const STACKS: usize = 100_000;
const DEPTH: usize = 30;
const REPEATS: usize = 5;

#[derive(Serialize)]
pub(crate) struct Top {
    screens: Vec<Screen>,
    /// Milliseconds for each thing that is made of the large window.
    large: Vec<(&'static str, f64)>,
}

/// What a run takes of one CPU.
#[derive(Serialize)]
struct Screen {
    what: String,
    cpu_percent: f64,
}

impl Top {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("measuring the screen of top ...");
        let mut screens = Vec::new();
        {
            let _load = bench.load(Build::FramePointers).run(load::FRAMES)?;
            let all = format!("-F {HZ} -d {AGENT_SECONDS} -f folded");
            let ended = Agent::start(&bench.agent, &all, Stdio::null())?.wait()?;
            screens.push(Screen::of("no screen (-f folded)", ended.user + ended.system));
            for (key, view) in VIEWS {
                screens.push(Screen::of(view, top(bench, key)?));
            }
        }
        Ok(Self { screens, large: large() })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\ntop at {HZ} Hz on busy CPUs, {AGENT_SECONDS} s, with its start\n  {:<26}% of a CPU",
            ""
        )?;
        for it in &self.screens {
            writeln!(text, "  {:<26}{:>10.1}", it.what, it.cpu_percent)?;
        }
        writeln!(
            text,
            "  a window of {SAMPLES} samples of {STACKS} stacks, {DEPTH} frames deep\n  {:<26}ms",
            ""
        )?;
        for (what, ms) in &self.large {
            writeln!(text, "  {what:<26}{ms:>10.1}")?;
        }
        Ok(())
    }
}

impl Screen {
    fn of(what: &str, seconds: f64) -> Self {
        Self { what: what.to_owned(), cpu_percent: 100.0 * seconds / AGENT_SECONDS as f64 }
    }
}

/// CPU time of a run with a screen, in a terminal that `script` makes, in seconds.
fn top(bench: &Bench, key: &str) -> Result<f64> {
    let (keys, ledger) = (bench.dir.join("keys"), bench.dir.join("ledger"));
    fs::write(&keys, key)?;
    let inner = format!(
        "exec {} top -e cpu-clock -F {HZ} -d {AGENT_SECONDS} 2> {}",
        bench.agent.display(),
        ledger.display()
    );
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &inner, "/dev/null"]).env("TERM", "xterm-256color");
    let before = time_of_children()?;
    let status = command.stdin(fs::File::open(&keys)?).stdout(Stdio::null()).status()?;
    if !status.success() {
        return Err(format!("top: {status}: {}", fs::read_to_string(&ledger)?).into());
    }
    Ok(time_of_children()? - before)
}

/// User and system time of all that have been waited for, in seconds.
fn time_of_children() -> Result<f64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is valid for a write of the type.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: it was written.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// What is made of a large window for each look, and for each view.
fn large() -> Vec<(&'static str, f64)> {
    let now_ns = 9_000_000_000;
    let mut window = Window::new(Duration::from_secs(10), usize::MAX, 0);
    let samples = stacks();
    let begin = Instant::now();
    for at in 0..SAMPLES / STACKS {
        for sample in &samples {
            let time_ns = at as u64 * 900_000_000;
            window.add(&Row::from(&Sample { time_ns, ..sample.clone() }));
        }
    }
    let added = 1e3 * begin.elapsed().as_secs_f64();
    let snapshot = window.snapshot(Span::Window, now_ns);
    let first = Stacks::of(snapshot.clone());
    let all = Filter::default().stacks(&first);
    let mut again = Stacks::of(snapshot.clone());
    let mut take = |snapshot: Snapshot| again.take(snapshot);
    vec![
        ("samples into the window", added),
        ("snapshot, which holds it", of(|| window.snapshot(Span::Window, now_ns))),
        ("functions by number", of(|| Stacks::of(snapshot.clone()))),
        ("the same, the next time", of(|| take(snapshot.clone()))),
        ("filter", of(|| Filter::default().stacks(&first))),
        ("functions", of(|| first.function_rows(&all))),
        ("processes", of(|| first.process_rows(&all))),
        ("threads", of(|| first.thread_rows(&all))),
        ("flame graph", of(|| Flame::of(&first, &all))),
    ]
}

/// The least time that it takes, in milliseconds.
fn of<T>(mut what: impl FnMut() -> T) -> f64 {
    let once = |_| {
        let begin = Instant::now();
        black_box(what());
        1e3 * begin.elapsed().as_secs_f64()
    };
    lowest(&(0..REPEATS).map(once).collect::<Vec<_>>())
}

/// A sample of each stack: a tree of calls in which each function calls three.
fn stacks() -> Vec<Sample> {
    let mut store = Store::default();
    let (name, rate) = ("cpu-clock".into(), Rate::Frequency(HZ));
    let source = Arc::new(Source { slot: 0, name, counts: Counts::Clock, rate });
    let module: Arc<str> = "/usr/bin/server".into();
    let frames: Vec<Arc<[Frame]>> = (0..5000)
        .map(|it| {
            let symbol = Some(Arc::from(format!("server::part::function_{it}")));
            Arc::from([Frame { symbol, module: Some(Arc::clone(&module)), ..Frame::default() }])
        })
        .collect();
    let stack = |number: usize| -> Vec<Location> {
        let location = |depth: usize| {
            // The outermost frames are those of many stacks, the innermost those of few.
            let part = number / 3_usize.saturating_pow(u32::try_from(depth / 3).unwrap_or(0));
            let function = part.wrapping_mul(31).wrapping_add(depth * 7) % frames.len();
            let address = Address::sampled((function * 4096 + part % 64) as u64);
            Some(Location { address, frames: Arc::clone(frames.get(function)?) })
        };
        (0..DEPTH).filter_map(location).collect()
    };
    let empty: Arc<Stack> = store.empty();
    (0..STACKS)
        .map(|it| {
            let tgid = u32::try_from(it % 50).unwrap_or(0);
            let task = Task { tgid, tid: tgid, comm: Comm::of("server"), ..Task::default() };
            Sample {
                source: Arc::clone(&source),
                time_ns: 0,
                value: 1_000_000,
                cpu: 0,
                task,
                kernel: Arc::clone(&empty),
                user: store.intern(stack(it)),
                user_end: StackEnd::Complete,
                from_snapshot: false,
            }
        })
        .collect()
}
