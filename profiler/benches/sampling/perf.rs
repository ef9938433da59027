//! `perf`, to compare with.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{HZ, Result, agent::Agent};

/// How often perf is started before it is given up.
const ATTEMPTS: usize = 3;
/// What a program's first function may take, in bytes: frames that return to it are outermost.
const START_BYTES: u64 = 0x60;
const PAGE: u64 = 0x1000;
/// Where the kernel's half of the addresses begins.
const KERNEL: u64 = 1 << 63;

/// How perf walks user stacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallGraph {
    /// Not at all: what is left is the price of interrupting the program.
    None,
    FramePointers,
    /// It copies 8 KiB of each stack, and unwinds later.
    Dwarf,
}

impl CallGraph {
    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::FramePointers => &["-g"],
            Self::Dwarf => &["--call-graph", "dwarf"],
        }
    }

    pub(crate) fn command(self) -> String {
        [&["perf", "record"], self.arguments()].concat().join(" ")
    }
}

/// What perf has found of the user stacks of some tasks.
#[derive(Clone, Copy, serde::Serialize)]
pub(crate) struct Found {
    pub(crate) samples: u64,
    pub(crate) named: u64,
    pub(crate) whole: u64,
}

/// Whether there is one.
pub(crate) fn is_installed() -> bool {
    let version = Command::new("perf").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Does something while perf samples the whole machine into a file.
pub(crate) fn while_recording<T>(
    call_graph: CallGraph,
    data: &Path,
    mut work: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut failed = Ok(());
    // It crashes now and then (6.1), and then what was done was not sampled.
    for _ in 0..ATTEMPTS {
        let mut record = Command::new("perf");
        record.args(["record", "-q", "-a", "-e", "cpu-clock", "-F", &HZ.to_string()]);
        record.args(call_graph.arguments()).arg("-o").arg(data);
        let perf = Agent::spawn(&mut record, Stdio::null())?;
        perf.opened()?;
        let done = work()?;
        match perf.end() {
            Ok(_) => return Ok(done),
            Err(error) => failed = Err(error),
        }
    }
    failed.and(Err("perf was not tried".into()))
}

/// Reads what was recorded of the tasks with this name.
pub(crate) fn script(data: &Path, comm: &str) -> Result<Found> {
    let mut script = Command::new("perf");
    // Inlined functions are looked for with a process for each address.
    script.args(["script", "--no-inline", "--comm", comm, "-F", "comm,ip,sym,dso", "-i"]).arg(data);
    let output = script.stderr(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(format!("perf script ended with {}", output.status).into());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut entries = Entries::default();
    let mut found = Found { samples: 0, named: 0, whole: 0 };
    for sample in text.split("\n\n") {
        let frames: Vec<Frame> = sample.lines().filter_map(Frame::parse).collect();
        let Some(outermost) = frames.last() else { continue };
        found.samples += 1;
        found.named += u64::from(frames.iter().all(|it| it.symbol != "[unknown]"));
        found.whole += u64::from(entries.has(outermost));
    }
    Ok(found)
}

/// A user frame, as `perf script` prints it: `ADDRESS SYMBOL (FILE)`.
struct Frame<'t> {
    address: u64,
    symbol: &'t str,
    file: &'t str,
}

impl<'t> Frame<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let (address, rest) = line.trim().split_once(' ')?;
        let address = u64::from_str_radix(address, 16).ok().filter(|it| *it < KERNEL)?;
        let (symbol, file) = rest.rsplit_once(" (")?;
        Some(Self { address, symbol, file: file.trim_end_matches(')') })
    }
}

/// Where the files start that are programs, the dynamic linker among them. Its symbols don't say so on
/// most distributions, so that a name is not enough to know a stack's end by.
#[derive(Default)]
struct Entries(HashMap<PathBuf, Option<u64>>);

impl Entries {
    /// Whether the frame lies in its file's first function. The file may be mapped anywhere, but only
    /// by whole pages.
    fn has(&mut self, frame: &Frame<'_>) -> bool {
        let path = PathBuf::from(frame.file);
        let entry = self.0.entry(path).or_insert_with_key(|path| entry(path));
        entry.is_some_and(|entry| frame.address.wrapping_sub(entry) % PAGE < START_BYTES)
    }
}

/// A file's entry point. A library has none, and says 0.
fn entry(path: &Path) -> Option<u64> {
    use object::Object as _;
    let bytes = std::fs::read(path).ok()?;
    let entry = object::File::parse(&*bytes).ok()?.entry();
    (entry != 0).then_some(entry)
}
