//! How fast names of JIT code are found: this process has mapped code, and a perf map says what is where.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use memmap2::{Mmap, MmapMut};
use profiler::{
    parser::Bars,
    process::{table::Processes, tracker::Tracker},
    sample::Addresses,
    symbolize::symbolizer::Symbolizer,
};
use serde::Serialize;

use crate::Result;

/// Functions, and bytes of each: as many as a large JavaScript server has.
const FUNCTIONS: usize = 20_000;
const BYTES: usize = 256;
/// Addresses that are named, and how many of them a stack has.
const ADDRESSES: usize = 1_000_000;
const FRAMES: usize = 30;
const SYMBOL_CACHE: usize = 256 << 20;

/// Addresses of JIT code, named by one thread and its parser process.
#[derive(Serialize)]
pub(crate) struct Jit {
    /// From the first question until all of the map was read.
    read_ms: f64,
    /// In stacks that spread over all functions.
    per_second: f64,
    /// All in a hundred functions, as where little code is hot.
    hot_per_second: f64,
    thread_seconds: f64,
}

/// The perf map of this process; gone when dropped.
struct Map(PathBuf);

impl Map {
    fn write(start: usize) -> Result<Self> {
        let path = PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()));
        let mut file = BufWriter::new(File::create(&path)?);
        let map = Self(path);
        for number in 0..FUNCTIONS {
            let at = start + number * BYTES;
            writeln!(file, "{at:x} {BYTES:x} JS:*function{number} /srv/app/node_modules/x.js:1:1")?;
        }
        file.flush()?;
        Ok(map)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Jit {
    pub(crate) fn measure() -> Result<Self> {
        let code: Mmap = MmapMut::map_anon(FUNCTIONS * BYTES)?.make_exec()?;
        let start = code.as_ptr().addr();
        let _map = Map::write(start)?;
        let own = std::process::id();
        let mut processes = Processes::new(1);
        processes.apply(Tracker::new(false).find(own).ok_or("no mappings of our own")?);
        let process = processes.at(own, u64::MAX).ok_or("no process of our own")?;
        let mut symbolizer = Symbolizer::new(false, SYMBOL_CACHE, None, Arc::<Bars>::default());
        let mut is_named = |addresses: &[usize]| {
            let bytes: Vec<u8> = addresses.iter().flat_map(|it| it.to_ne_bytes()).collect();
            let (stack, _) = symbolizer.user_stack(&process, Addresses::new(&bytes), u64::MAX);
            stack.iter().all(|it| it.frames.iter().all(|frame| frame.symbol.is_some()))
        };
        let begin = Instant::now();
        while !is_named(&[start + 1]) {}
        let read_ms = begin.elapsed().as_secs_f64() * 1e3;
        let mut pass = |functions: usize| {
            // A large odd step visits all functions in an order that nothing foresees.
            let at = |number: usize| start + 1 + number * 7919 % functions * BYTES + number % 200;
            let begin = Instant::now();
            let mut are_named = true;
            for first in (0..ADDRESSES).step_by(FRAMES) {
                let stack: Vec<usize> = (first..first + FRAMES).map(at).collect();
                are_named &= is_named(&stack);
            }
            let per_second = ADDRESSES as f64 / begin.elapsed().as_secs_f64();
            if are_named { Ok(per_second) } else { Err("an address has no name") }
        };
        let cpu = crate::names::thread_cpu()?;
        let per_second = pass(FUNCTIONS)?;
        let thread_seconds = crate::names::thread_cpu()? - cpu;
        Ok(Self { read_ms, per_second, hot_per_second: pass(100)?, thread_seconds })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        let Self { read_ms, per_second, hot_per_second, thread_seconds } = self;
        writeln!(
            text,
            "names of {ADDRESSES} addresses in {FUNCTIONS} functions of JIT code: {per_second:.0} a \
             second, {hot_per_second:.0} in a hundred functions, after {read_ms:.1} ms for their \
             map; the thread takes {thread_seconds:.2} s of a CPU"
        )
    }
}
