//! What a run has counted, as metrics.

use std::{collections::BTreeMap, time::Duration};

use profiler_profile::ledger::Ledger;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::exposition::{
    Exposition,
    Kind::{Counter, Gauge},
};
use crate::{
    queue::Part,
    windows::{Fates, Progress},
    worker::told::Named,
};

/// What the reader of the ring knows of the run at one time.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The account so far.
    pub(crate) ledger: Ledger,
    /// For how long the agent has had a CPU.
    pub(crate) cpu: Duration,
    /// The same of each parser process, by its id.
    pub(crate) parser_cpu: Vec<(u32, Duration)>,
    /// For how long the eBPF programs ran, and how often, where the kernel keeps count of that.
    pub(crate) ebpf: Option<(Duration, u64)>,
    /// Kernel memory of the ring.
    pub(crate) ring_bytes: u64,
}

/// What others know.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) named: Named,
    pub(super) windows: Vec<Progress>,
    pub(super) queue: [Part; 3],
    /// When the run began, in seconds since 1970.
    pub(super) began: f64,
}

/// What was told before, so that no counter goes down.
///
/// What the kernel has missed is an estimate that is made anew each time, and may be less than it was: Prometheus would
/// take that for a restart, and count all of it once more.
#[derive(Debug, Default)]
pub(super) struct Totals {
    by_name: FxHashMap<String, u64>,
    /// CPU time of parser processes, those that have ended among them.
    parsers: FxHashMap<u32, Duration>,
    of_ended_parsers: Duration,
}

/// The samples of one event, whose parts add up.
#[derive(Debug, Default)]
struct Samples {
    delivered: u64,
    filtered: BTreeMap<String, u64>,
    lost: BTreeMap<String, u64>,
    lowered: u64,
}

impl Totals {
    /// The most that was told under this name.
    fn keep(&mut self, name: String, value: u64) -> u64 {
        let most = self.by_name.entry(name).or_default();
        *most = value.max(*most);
        *most
    }

    /// CPU time of all parser processes that there were.
    fn of_parsers(&mut self, now: &[(u32, Duration)]) -> Duration {
        for (pid, before) in std::mem::take(&mut self.parsers) {
            let is_same = |(it, cpu): &(u32, Duration)| *it == pid && *cpu >= before;
            if !now.iter().any(is_same) {
                self.of_ended_parsers = self.of_ended_parsers.saturating_add(before);
            }
        }
        self.parsers.extend(now.iter().copied());
        let running: Duration = now.iter().map(|(_, cpu)| *cpu).sum();
        self.of_ended_parsers.saturating_add(running)
    }

    /// What has become of the samples of each event; those of one name are one.
    fn samples(&mut self, ledger: &Ledger) -> BTreeMap<String, Samples> {
        let mut all: BTreeMap<String, Samples> = BTreeMap::new();
        for source in &ledger.sources {
            let of = all.entry(source.event.clone()).or_default();
            of.delivered = of.delivered.saturating_add(source.total.delivered);
            of.lowered = of.lowered.saturating_add(source.lowered.map_or(0, |it| it.times));
            for (sums, reasons) in [
                (&mut of.filtered, words(&source.total.filtered)),
                (&mut of.lost, words(&source.total.lost)),
            ] {
                for (reason, count) in reasons {
                    let sum = sums.entry(reason).or_default();
                    *sum = sum.saturating_add(count);
                }
            }
        }
        for (event, of) in &mut all {
            of.delivered = self.keep(format!("{event} delivered"), of.delivered);
            for (reason, count) in &mut of.filtered {
                *count = self.keep(format!("{event} filtered {reason}"), *count);
            }
            for (reason, count) in &mut of.lost {
                *count = self.keep(format!("{event} lost {reason}"), *count);
            }
        }
        all
    }
}

/// Counts by the names that they have in the ledger's JSON.
fn words(counts: &impl Serialize) -> Vec<(String, u64)> {
    match serde_json::to_value(counts) {
        Ok(serde_json::Value::Object(counts)) => {
            counts.into_iter().filter_map(|(word, count)| Some((word, count.as_u64()?))).collect()
        }
        _ => Vec::new(),
    }
}

/// All of it.
pub(super) fn write(snapshot: &Snapshot, beside: &Beside, totals: &mut Totals) -> String {
    let mut text = Exposition::default();
    let version = env!("CARGO_PKG_VERSION");
    text.family("profiler_build_info", Gauge, "The version, as a label.")
        .sample(&[("version", version)], 1);
    text.family("profiler_start_time_seconds", Gauge, "When the run began, since 1970.")
        .sample(&[], beside.began);
    samples(&mut text, snapshot, totals);
    windows(&mut text, &beside.windows);
    let queue = &beside.queue;
    let mut family =
        text.family("profiler_queue_bytes", Gauge, "What waits for the naming thread.");
    for it in queue {
        family.sample(&[("queue", it.name)], it.bytes);
    }
    let help = "What may wait there before it is dropped.";
    let mut family = text.family("profiler_queue_limit_bytes", Gauge, help);
    for it in queue {
        family.sample(&[("queue", it.name)], it.limit_bytes);
    }
    names(&mut text, &snapshot.ledger, &beside.named);
    cost(&mut text, snapshot, totals);
    text.finish()
}

fn samples(text: &mut Exposition, snapshot: &Snapshot, totals: &mut Totals) {
    let all = totals.samples(&snapshot.ledger);
    let help = "Samples whose fate is known: delivered, filtered, or lost.";
    let mut family = text.family("profiler_samples_expected_total", Counter, help);
    for (event, of) in &all {
        let parts = of.filtered.values().chain(of.lost.values());
        let expected = parts.fold(of.delivered, |sum, it| sum.saturating_add(*it));
        family.sample(&[("event", event)], expected);
    }
    let help = "Samples named and given to all destinations.";
    let mut family = text.family("profiler_samples_delivered_total", Counter, help);
    for (event, of) in &all {
        family.sample(&[("event", event)], of.delivered);
    }
    let help = "Samples left out on request, by reason.";
    let mut family = text.family("profiler_samples_filtered_total", Counter, help);
    for (event, of) in &all {
        for (reason, count) in &of.filtered {
            family.sample(&[("event", event), ("reason", reason)], count);
        }
    }
    let help = "Samples lost, by reason.";
    let mut family = text.family("profiler_samples_lost_total", Counter, help);
    for (event, of) in &all {
        for (reason, count) in &of.lost {
            family.sample(&[("event", event), ("reason", reason)], count);
        }
    }
    text.family("profiler_samples_waiting", Gauge, "Samples that have no fate yet.")
        .sample(&[], snapshot.ledger.waiting.unwrap_or(0));
    let help = "How often the rate was lowered, since the machine could not carry it.";
    let mut family = text.family("profiler_rate_lowered_total", Counter, help);
    for (event, of) in &all {
        family.sample(&[("event", event)], of.lowered);
    }
}

fn windows(text: &mut Exposition, windows: &[Progress]) {
    let help = "Windows by destination, and by what has become of them.";
    let mut family = text.family("profiler_windows_total", Counter, help);
    for Progress { name, fates, .. } in windows {
        let written = if fates.is_remote { "sent" } else { "written" };
        for (fate, count) in [
            (written, fates.written),
            ("dropped", fates.dropped.total()),
            ("refused", fates.refused),
        ] {
            family.sample(&[("destination", name), ("fate", fate)], count);
        }
    }
    let help = "Windows dropped, by reason.";
    let mut family = text.family("profiler_windows_dropped_total", Counter, help);
    for Progress { name, fates, .. } in windows {
        for (reason, count) in fates.dropped.by_reason() {
            family.sample(&[("destination", name), ("reason", reason)], count);
        }
    }
    let help = "Bytes of the windows that were written or sent.";
    let mut family = text.family("profiler_windows_written_bytes_total", Counter, help);
    for it in windows {
        family.sample(&[("destination", &it.name)], it.fates.bytes);
    }
    let help = "Windows that wait, or are being written.";
    let mut family = text.family("profiler_windows_waiting", Gauge, help);
    for it in windows {
        family.sample(&[("destination", &it.name)], it.waiting);
    }
    let stores = || windows.iter().filter(|it| it.fates.is_remote);
    if stores().next().is_none() {
        return;
    }
    let mut of_stores = |name, kind, help, value: fn(&Fates) -> u64| {
        let mut family = text.family(name, kind, help);
        for it in stores() {
            family.sample(&[("destination", &it.name)], value(&it.fates));
        }
    };
    let help = "Windows on disk that are not sent yet.";
    of_stores("profiler_windows_spooled", Gauge, help, |it| it.spooled);
    let help = "Bytes of these.";
    of_stores("profiler_spool_bytes", Gauge, help, |it| it.spooled_bytes);
    let help = "Attempts to send that failed, and are made again.";
    of_stores("profiler_send_retries_total", Counter, help, |it| it.retries);
    let help = "Profiles that stores have left out of windows that they took.";
    of_stores("profiler_profiles_rejected_total", Counter, help, |it| it.rejected);
}

fn names(text: &mut Exposition, ledger: &Ledger, named: &Named) {
    let help = "User stacks, by how they have ended: complete, or why they are cut short.";
    let mut family = text.family("profiler_user_stacks_total", Counter, help);
    for (end, count) in &named.user_ends {
        family.sample(&[("end", end)], count);
    }
    let help = "Frames of user stacks: named, or why they have no name.";
    let mut family = text.family("profiler_user_frames_total", Counter, help);
    for (name, count) in &named.user_frames {
        family.sample(&[("name", name)], count);
    }
    let mut counter = |name, help, count| {
        text.family(name, Counter, help).sample(&[], count);
    };
    counter(
        "profiler_samples_beyond_memory_total",
        "Samples delivered without their stacks, since their window had no room for these.",
        named.beyond_memory,
    );
    counter(
        "profiler_mapping_records_lost_total",
        "Records of mappings and processes that were lost: names may be missing.",
        ledger.sideband_lost.saturating_add(ledger.sideband_malformed),
    );
    counter(
        "profiler_processes_evicted_total",
        "Processes evicted to make room for others.",
        named.evicted_processes,
    );
    counter(
        "profiler_parser_restarts_total",
        "How often a parser process was replaced.",
        ledger.parsing.restarts,
    );
    counter(
        "profiler_files_given_up_total",
        "Files that can't be parsed within their limits.",
        ledger.parsing.barred,
    );
}

fn cost(text: &mut Exposition, snapshot: &Snapshot, totals: &mut Totals) {
    let Snapshot { ledger, cpu, parser_cpu, ebpf, ring_bytes } = snapshot;
    let of_parsers = totals.of_parsers(parser_cpu);
    text.family("profiler_cpu_seconds_total", Counter, "CPU time of the profiler's processes.")
        .sample(&[("process", "agent")], cpu.as_secs_f64())
        .sample(&[("process", "parsers")], of_parsers.as_secs_f64());
    if let Some((time, runs)) = ebpf {
        let help = "For how long the eBPF programs ran, while kernel.bpf_stats_enabled is 1.";
        text.family("profiler_ebpf_seconds_total", Counter, help).sample(&[], time.as_secs_f64());
        let help = "How often they ran meanwhile.";
        text.family("profiler_ebpf_runs_total", Counter, help).sample(&[], runs);
    }
    text.family("profiler_resident_memory_bytes", Gauge, "Memory in RAM.")
        .sample(&[("process", "agent")], ledger.memory.agent.bytes())
        .sample(&[("process", "parsers")], ledger.memory.parsers.bytes());
    let mut family = text.family(
        "profiler_kernel_map_bytes",
        Gauge,
        "Kernel memory: the ring, unwind tables, and the other maps that unwinding needs.",
    );
    family.sample(&[("map", "ring")], ring_bytes);
    let Some(unwinding) = &ledger.unwinding else { return };
    family.sample(&[("map", "unwind_tables")], unwinding.table_bytes);
    family.sample(&[("map", "unwind_other")], unwinding.other_bytes);
    let help = "What the maps of unwinding may take.";
    text.family("profiler_unwind_limit_bytes", Gauge, help).sample(&[], unwinding.limit_bytes);
    text.family("profiler_unwind_tables", Gauge, "Unwind tables in the kernel.")
        .sample(&[], unwinding.tables);
    let help = "Unwind tables evicted to make room for others.";
    let evicted = totals.keep("unwind tables evicted".into(), unwinding.evicted);
    text.family("profiler_unwind_tables_evicted_total", Counter, help).sample(&[], evicted);
}

#[cfg(test)]
mod tests;
