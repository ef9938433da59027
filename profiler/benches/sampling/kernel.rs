//! What the agent takes of the kernel: memory for its maps, and time to load its program.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use aya::maps::loaded_maps;
use clap::Parser as _;
use profiler::{
    bpf::load::{Program, SlotSettings},
    cli::Cli,
    config::{Config, Machine},
};
use serde::Serialize;

use crate::{
    Bench, HZ, Result,
    agent::Agent,
    bpf::field,
    load::{self, Build},
    lowest,
};

const ROUNDS: usize = 5;
/// How long the agent has to find what it needs tables of.
const TIME: Duration = Duration::from_secs(3);

#[derive(Serialize)]
pub(crate) struct Kernel {
    programs: Vec<Loading>,
    processes: usize,
    maps: Vec<Map>,
    /// Of all but the ring of samples.
    walk_bytes: u64,
}

/// The program with the settings of one way to walk.
#[derive(Serialize)]
struct Loading {
    call_graph: &'static str,
    name: String,
    /// From Linux 5.16 on.
    verified_instructions: Option<u64>,
    jited_bytes: u32,
    /// The program and its maps, the file's reading not included.
    lowest_ms: f64,
    ms: Vec<f64>,
}

/// All maps of one name.
#[derive(Serialize)]
struct Map {
    name: String,
    maps: usize,
    bytes: u64,
}

impl Kernel {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("looking at what the kernel has of the agent ...");
        let programs =
            ["auto", "fp"].into_iter().map(Loading::measure).collect::<Result<Vec<_>>>()?;
        let before: BTreeSet<u32> = loaded_maps().flatten().map(|it| it.id()).collect();
        let _load = bench.load(Build::NoFramePointers).run(load::FRAMES)?;
        let agent = Agent::start(&bench.agent, &format!("-F {HZ} -d 60"), Stdio::null())?;
        agent.loaded()?;
        thread::sleep(TIME);
        let mut maps: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for map in loaded_maps().flatten().filter(|it| !before.contains(&it.id())) {
            // One that has just gone takes nothing.
            let Ok(fd) = map.fd() else { continue };
            let fd = fd.as_fd().as_raw_fd();
            let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
            let bytes =
                field(&text, "memlock").ok_or("the kernel says nothing of a map's memory")?;
            // The tables of files have the name that aya gives.
            let name = map.name_as_str().filter(|name| !name.starts_with("standalone"));
            let name = name.unwrap_or("tables of files");
            let (count, sum) = maps.entry(name.to_owned()).or_default();
            *count += 1;
            *sum += bytes;
        }
        agent.end()?;
        let ring = maps.get("SAMPLES").map_or(0, |(_, bytes)| *bytes);
        let walk_bytes = maps.values().map(|(_, bytes)| bytes).sum::<u64>() - ring;
        let maps = maps.into_iter().map(|(name, (maps, bytes))| Map { name, maps, bytes });
        let mut maps: Vec<Map> = maps.collect();
        maps.sort_by_key(|map| std::cmp::Reverse(map.bytes));
        Ok(Self { programs, processes: processes_with_code()?, maps, walk_bytes })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nloading the eBPF program and its maps, lowest of {ROUNDS} rounds\n  {:<22}\
             {:<16}{:>23}{:>12}{:>10}",
            "", "", "verified instructions", "jited KiB", "ms"
        )?;
        for it in &self.programs {
            writeln!(
                text,
                "  --call-graph {:<9}{:<16}{:>23}{:>12}{:>10.1}",
                it.call_graph,
                it.name,
                it.verified_instructions.map_or("–".to_owned(), |it| it.to_string()),
                it.jited_bytes >> 10,
                it.lowest_ms
            )?;
        }
        let kib = |bytes: u64| bytes as f64 / 1024.0;
        writeln!(
            text,
            "\nkernel memory of the maps, {} processes: {:.1} MiB without the ring of samples",
            self.processes,
            kib(self.walk_bytes) / 1024.0
        )?;
        for it in self.maps.iter().filter(|it| it.bytes >= 4096) {
            let name =
                if it.maps > 1 { format!("{} {}", it.maps, it.name) } else { it.name.clone() };
            writeln!(text, "  {name:<24}{:>10.0} KiB", kib(it.bytes))?;
        }
        Ok(())
    }
}

impl Loading {
    fn measure(call_graph: &'static str) -> Result<Self> {
        let cli = Cli::try_parse_from(["profiler", "--call-graph", call_graph])?;
        let config = Config::resolve(&cli.stream.sampling, Vec::new(), 0, &Machine::probe()?)?;
        let mut ms = Vec::with_capacity(ROUNDS);
        let mut loaded = None;
        for _ in 0..ROUNDS {
            // One at a time.
            drop(loaded.take());
            let begin = Instant::now();
            loaded = Some(Program::load(&config.program, &[SlotSettings::default()])?);
            ms.push(1e3 * begin.elapsed().as_secs_f64());
        }
        let loaded = loaded.ok_or("nothing was loaded")?;
        let info = loaded.ebpf.programs().find_map(|(_, it)| it.info().ok());
        let info = info.ok_or("no program of it is loaded")?;
        Ok(Self {
            call_graph,
            name: info.name_as_str().unwrap_or_default().to_owned(),
            verified_instructions: info.verified_instruction_count().map(u64::from),
            jited_bytes: info.size_jitted(),
            lowest_ms: lowest(&ms),
            ms,
        })
    }
}

/// How many processes have anything mapped: not the kernel's threads.
fn processes_with_code() -> Result<usize> {
    let processes = fs::read_dir("/proc")?.flatten().filter(|entry| {
        let name = entry.file_name();
        let is_pid = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        is_pid && fs::read(entry.path().join("maps")).is_ok_and(|text| !text.is_empty())
    });
    Ok(processes.count())
}
