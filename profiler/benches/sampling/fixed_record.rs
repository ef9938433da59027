//! The program to compare with, and its reader.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use aya::{EbpfLoader, maps::RingBuf, programs::PerfEvent};
use profiler::{
    perf::{config::CountedEvent, event::Event, set::EventSet},
    ring::SampleRing,
};
use profiler_profile::{cpus::CpuList, source::Rate};

use crate::{
    HZ, Result, SETTLE,
    bpf::{Loaded, RunStats},
    load,
};

/// Where a record has the task's name.
const COMM_AT: usize = 8;
/// Where a record has the size of its user stack, in bytes.
const USER_BYTES_AT: usize = 28;

/// Runs the program for this long, and returns what it has taken and how deep its user stacks
/// were.
pub(crate) fn measure(
    object: &Path,
    cpus: &CpuList,
    time: Duration,
) -> Result<(RunStats, Option<usize>)> {
    let mut ebpf = EbpfLoader::new().load_file(object)?;
    let ring: RingBuf<_> = ebpf.take_map("SAMPLES").ok_or("no map `SAMPLES`")?.try_into()?;
    let program: &mut PerfEvent =
        ebpf.program_mut("sample").ok_or("no program `sample`")?.try_into()?;
    program.load()?;
    let loaded = Loaded::by(std::process::id())?;
    let choice = CountedEvent::Named(Event::cpu_clock());
    let mut set = EventSet::open(&choice, Rate::Frequency(HZ), cpus, true)?;
    set.attach(program.fd()?.try_clone()?)?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut ring = SampleRing::register(ring)?;
        set.enable()?;
        read(&mut ring, SETTLE).await?;
        let before = loaded.run_stats()?;
        let depth = read(&mut ring, time).await?;
        let after = loaded.run_stats()?;
        set.disable()?;
        Ok((after.since(before), depth))
    })
}

/// Sleeps until it is woken and reads all there is, over and over. Returns the median depth of the
/// load's user stacks.
async fn read(ring: &mut SampleRing, time: Duration) -> Result<Option<usize>> {
    let end = Instant::now() + time;
    let mut depths = Vec::new();
    let mut record = Vec::new();
    while let Ok(woken) = tokio::time::timeout_at(end.into(), ring.woken()).await {
        woken?;
        loop {
            record.clear();
            // A limit of one byte reads one record.
            if !ring.read_into(&mut record, 1) {
                break;
            }
            let comm = record.get(COMM_AT..).unwrap_or_default();
            if !comm.starts_with(load::NAME.as_bytes()) {
                continue;
            }
            let user_bytes = record.get(USER_BYTES_AT..).and_then(<[u8]>::first_chunk);
            let user_bytes =
                user_bytes.and_then(|it| usize::try_from(i32::from_ne_bytes(*it)).ok());
            depths.extend(user_bytes.map(|bytes| bytes / 8));
        }
    }
    depths.sort_unstable();
    Ok(depths.get(depths.len() / 2).copied())
}
