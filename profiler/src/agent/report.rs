//! What a run tells while it goes on, as text: its ledger so far, how far it is, and what is lost.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use profiler_profile::{
    ledger::{
        Children, KernelSide, Ledger, Lost, Scope, SourceSide,
        watch::{Progress, Watch},
    },
    live::Vitals,
};

use super::Sampling;
use crate::{
    bpf::runs::{RunTime, Runs},
    error::Result,
    kernel,
    monitoring::{Question, Snapshot},
    output::Blocked,
    perf::config::Target,
    procfs::stat::Stat,
};

impl Sampling<'_> {
    /// The ledger so far, of a run that has gone on for so long.
    pub(super) fn report(&mut self, duration: Duration) -> Result<String> {
        let kernel = self.kernel_so_far(duration)?;
        Ok(Ledger::so_far(&kernel, &self.delivered, &self.behind).table(false))
    }

    /// Ends a window of a run that has gone on for so long.
    pub(super) fn end_window(&mut self, duration: Duration) -> Result<()> {
        let kernel = self.kernel_so_far(duration)?;
        self.sender.end_window(Arc::new(kernel), self.last_read_ns);
        Ok(())
    }

    /// Tells who has asked how the run is, which has gone on for so long. Who is told nothing says that.
    pub(super) fn tell(&mut self, question: Question, duration: Duration) {
        let kernel = match self.kernel_so_far(duration) {
            Ok(kernel) => kernel,
            Err(error) => {
                tracing::debug!("nobody is told how the run is: {error}");
                return;
            }
        };
        let ledger = Ledger::so_far(&kernel, &self.delivered, &self.behind);
        let cpu = |pid| Some((pid, Stat::of(pid)?.cpu));
        let ebpf = self.runs.iter().filter_map(Runs::time);
        let ebpf = ebpf.reduce(|one, other| RunTime {
            time: one.time.saturating_add(other.time),
            runs: one.runs.saturating_add(other.runs),
        });
        // Whoever has asked may have gone.
        let _ = question.send(Snapshot {
            ledger: Ledger { parsing: self.bars.account(), ..ledger },
            cpu: kernel::cpu_time(),
            parser_cpu: self.bars.pids().into_iter().filter_map(cpu).collect(),
            ebpf: ebpf.map(|it| (it.time, it.runs)),
            ring_bytes: self.config.program.ring_bytes.into(),
        });
    }

    /// What was counted so far, when all that is there has been read.
    fn kernel_so_far(&mut self, duration: Duration) -> Result<KernelSide> {
        self.read();
        let (sources, unread) = self.sources.account(&self.counters);
        unread.map_or(Ok(()), Err)?;
        Ok(self.kernel_side(duration, sources))
    }

    /// What was counted on the way to the queue.
    pub(super) fn kernel_side(&self, duration: Duration, sources: Vec<SourceSide>) -> KernelSide {
        KernelSide {
            sources,
            duration,
            scope: match self.config.perf.target {
                Target::Cpus => Scope::Machine,
                Target::Tasks(_) => Scope::Tasks,
                Target::Cgroups(_) => Scope::Cgroups,
            },
            pids: self.config.process.pids.clone(),
            children: self.family.as_ref().map(|family| Children {
                followed: family.followed(),
                not_followed: family.not_followed(),
            }),
            filters: self.config.process.filters.clone(),
            strangers: Arc::clone(&self.strangers),
            sideband_lost: self.sideband.lost() + self.dropped_records,
            sideband_malformed: self.sideband.malformed(),
            unwinding: self.loader.as_ref().and_then(|loader| loader.account()),
            memory: self.memory.read(&self.bars.pids()),
        }
    }

    /// How far the run is.
    pub(super) fn status(&self, started: Instant) -> String {
        let elapsed = started.elapsed().as_secs();
        let left = self.config.duration.map(|it| it.as_secs().saturating_sub(elapsed));
        let left = left.map_or_else(String::new, |left| format!(", {left} s left"));
        let samples = self.delivered.sum();
        let lost = self.sources.lost(&self.counters).map_or(0, |it| it.by_us());
        let lost = lost + self.behind.sum();
        let memory = self.memory.read(&self.bars.pids());
        let mib = memory.agent.bytes().saturating_add(memory.parsers.bytes()) >> 20;
        let rate = samples / elapsed.max(1);
        let stacks = self.stacks.load(Ordering::Relaxed);
        format!(
            "{elapsed} s{left}: {samples} samples ({rate}/s), {stacks} stacks, {lost} lost, {mib} MiB; Ctrl-C ends"
        )
    }

    /// How the run goes on, for a screen.
    pub(super) fn vitals(&self) -> Vitals {
        let lost = self.sources.lost(&self.counters).unwrap_or_default();
        let pids = self.bars.pids();
        let memory = self.memory.read(&pids);
        let of_parsers = pids.into_iter().filter_map(Stat::of).map(|it| it.cpu);
        Vitals {
            lost: Lost { agent_behind: self.behind.sum(), ..lost },
            cpu: kernel::cpu_time() + of_parsers.sum::<Duration>(),
            is_behind: self.sender.is_waiting(),
            memory_bytes: memory.agent.bytes().saturating_add(memory.parsers.bytes()),
        }
    }

    /// What is lost or stands still, as far as that is news.
    pub(super) fn notices(&self, watch: &mut Watch) -> Vec<String> {
        // The end says it if they can't be read.
        let Ok(lost) = self.sources.lost(&self.counters) else { return Vec::new() };
        let lost = Lost { agent_behind: self.behind.sum(), ..lost };
        let blocked = self.blocked.iter().max_by_key(|it| it.time());
        let progress = Progress {
            lost,
            output: blocked.map_or("", |it| &it.to),
            output_blocked: blocked.map_or(Duration::ZERO, Blocked::time),
            batches: self.sender.batches_done(),
            is_waiting: self.sender.is_waiting(),
        };
        watch.look(&progress, Instant::now())
    }
}
