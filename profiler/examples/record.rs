//! Records what the kernel sends of one program, for tests that replay it without root and without the eBPF
//! program: see `tests/recordings`.
//!
//! `cargo run --example record -- OUT PROGRAM`, as root.

use std::{
    collections::BTreeMap,
    env, fs, io,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use clap::Parser as _;
use profiler::{
    bpf::load::{Program, SlotSettings},
    cli::Cli,
    config::{Config, Machine},
    perf::{config::EventChoice, record::split, set::EventSet, sideband::Sideband},
    ring::SampleRing,
    sample,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How often what has come is read, and how many times.
const ROUND: Duration = Duration::from_millis(200);
const ROUNDS: usize = 5;
/// Bytes of the ring of each CPU.
const RING_BYTES: usize = 512 << 10;

/// A recording: parts, each with a letter, its length in bytes and its bytes.
#[derive(Default)]
struct Recording(Vec<u8>);

impl Recording {
    fn push(&mut self, kind: u8, bytes: &[u8]) -> Result<()> {
        self.0.push(kind);
        self.0.extend(u32::try_from(bytes.len())?.to_le_bytes());
        self.0.extend(bytes);
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = env::args_os().skip(1);
    let (Some(out), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: record OUT PROGRAM".into());
    };
    let cli = Cli::parse_from(["profiler", "-e", "cpu-clock", "-F", "99", "--call-graph", "fp"]);
    let config = Config::resolve(&cli.stream.sampling, Vec::new(), 0, &Machine::probe()?)?;
    let perf = &config.perf;
    let Some(EventChoice::Counted(event)) = perf.events.first() else {
        return Err("no event".into());
    };
    let mut set = EventSet::open(event, perf.rate, &perf.cpus, perf.cpus_named)?;
    let mut sideband = Sideband::open(&perf.cpus, RING_BYTES)?;
    let loaded = Program::load(&config.program, &[SlotSettings::default()])?;
    for slot in loaded.slots {
        set.attach(slot.program)?;
    }
    let mut ring = SampleRing::register(loaded.samples)?;
    set.enable()?;
    let mut program = Command::new(&path).stdin(Stdio::null()).spawn()?;
    let recorded = record(program.id(), &mut ring, &mut sideband);
    program.kill()?;
    program.wait()?;
    set.disable()?;
    Ok(fs::write(out, recorded?.0)?)
}

/// What comes of a process and its children.
fn record(tgid: u32, ring: &mut SampleRing, sideband: &mut Sideband) -> Result<Recording> {
    let (mut recording, mut kernel) = (Recording::default(), Vec::new());
    let mut tgids = vec![tgid];
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        thread::sleep(ROUND);
        let (mut samples, mut records) = (Vec::new(), Vec::new());
        ring.read_into(&mut samples, usize::MAX);
        sideband.read_runs(|run| {
            for (_, record) in split(run) {
                // All that we ask for begin with the process; that of a fork has its parent's next.
                let word = |at: usize| Some(u32::from_ne_bytes(*record.get(at..)?.first_chunk()?));
                let (Some(of), parent) = (word(8), word(12)) else { continue };
                let is_fork = word(0) == Some(7) && parent.is_some_and(|it| tgids.contains(&it));
                if is_fork && !tgids.contains(&of) {
                    tgids.push(of);
                }
                if tgids.contains(&of) {
                    records.extend_from_slice(record);
                }
            }
        });
        rounds.push((records, samples));
    }
    for (records, mut samples) in rounds {
        sample::retain(&mut samples, |it| tgids.contains(&it.tgid));
        kernel.extend(sample::each(&samples).flat_map(|it| it.kernel.iter().collect::<Vec<_>>()));
        recording.push(b'P', &records)?;
        recording.push(b'S', &samples)?;
    }
    for (start, bytes, name) in symbols(&kernel)? {
        let head = [start.to_le_bytes(), bytes.to_le_bytes()].concat();
        recording.push(b'K', &[&head, name.as_bytes()].concat())?;
    }
    Ok(recording)
}

/// The kernel's symbols that these addresses lie in: start, length and name.
fn symbols(addresses: &[u64]) -> io::Result<Vec<(u64, u64, String)>> {
    let text = fs::read_to_string("/proc/kallsyms")?;
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let (start, kind, name) = (fields.next(), fields.next(), fields.next());
        let (Some(start), Some("t" | "T"), Some(name)) = (start, kind, name) else { continue };
        if let Ok(start) = u64::from_str_radix(start, 16) {
            all.entry(start).or_insert(name);
        }
    }
    let mut found = BTreeMap::new();
    for address in addresses {
        let Some((start, name)) = all.range(..=address).next_back() else { continue };
        let end = all.range(address + 1..).next().map_or(u64::MAX, |(end, _)| *end);
        found.insert(*start, (end - start, (*name).to_owned()));
    }
    Ok(found.into_iter().map(|(start, (bytes, name))| (start, bytes, name)).collect())
}
