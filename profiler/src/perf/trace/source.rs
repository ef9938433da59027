//! Tracepoints or a probe as a source of samples.

use std::{
    collections::BTreeSet,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use profiler_profile::{
    cpus::CpuList,
    ledger::{CpuEvent, EventCount},
    source::{self, Counts, Rate},
};

use super::{Traced, point::Point};
use crate::{
    bpf::{
        gate::Gate,
        load::{Slot, SlotSettings},
        runs::Runs,
    },
    error::{Error, Result},
    kernel::{self, OnlineCpus},
    source::Source,
};

/// All points of one source, with the program that runs at their hits.
pub struct TraceSource {
    traced: Traced,
    period: u64,
    points: Vec<Point>,
    /// The CPUs whose hits count: those that were named, or all that can be there.
    cpus: CpuList,
    /// Of these, the ones that were online at any time.
    seen: BTreeSet<u32>,
    online: OnlineCpus,
    gate: Option<Arc<Gate>>,
    runs: Option<Runs>,
    /// What the program had missed when the gate was opened, and up to when it was closed.
    missed_before: u64,
    missed: Option<u64>,
    enabled: Option<Instant>,
    ran: Duration,
}

impl TraceSource {
    /// Puts the tracepoints or the probe into the kernel, for hits on these CPUs, which are the only ones to sample, or
    /// those that are online now. One is sampled each `rate` hits, or each so many that the event says itself; at a
    /// frequency, each.
    pub fn open(traced: &Traced, rate: Rate, cpus: &CpuList, only_these: bool) -> Result<Self> {
        let cpu = cpus.iter().next().unwrap_or(0);
        let points = traced.sites.iter().map(|it| Point::open(it, cpu));
        Ok(Self {
            period: traced.period(rate),
            points: points.collect::<Result<_>>()?,
            traced: traced.clone(),
            seen: cpus.iter().collect(),
            cpus: if only_these { cpus.clone() } else { kernel::cpus("possible")? },
            online: OnlineCpus::open()?,
            gate: None,
            runs: None,
            missed_before: 0,
            missed: None,
            enabled: None,
            ran: Duration::ZERO,
        })
    }

    fn look(&mut self) {
        if let Ok(online) = self.online.read() {
            self.seen.extend(online.iter().filter(|cpu| self.cpus.contains(*cpu)));
        }
    }

    fn failed(&self, error: impl std::fmt::Display) -> Error {
        Error::system(format!("cannot tell the program when hits of {} count", self.traced), error)
    }

    fn read_missed(&self) -> Option<u64> {
        self.runs.as_ref().and_then(Runs::missed)
    }
}

impl Source for TraceSource {
    fn describe(&self) -> source::Source {
        source::Source {
            slot: 0,
            name: self.traced.name.clone().into(),
            counts: Counts::Events,
            rate: Rate::Period(self.period),
        }
    }

    fn settings(&self) -> SlotSettings {
        self.traced.settings()
    }

    fn notices(&self) -> &[String] {
        &[]
    }

    fn attach(&mut self, slot: Slot, _: bool) -> Result<()> {
        // The program runs from here on, but takes no samples.
        self.points.iter().try_for_each(|it| it.attach(slot.program.as_fd()))?;
        self.gate = Some(Arc::new(Gate::new(slot.periods, self.cpus.clone())));
        self.runs = Some(slot.runs);
        Ok(())
    }

    fn is_dithered(&self) -> bool {
        false
    }

    fn enable(&mut self) -> Result<()> {
        self.missed_before = self.read_missed().unwrap_or(0);
        self.enabled = Some(Instant::now());
        let opened = self.gate.as_ref().map_or(Ok(()), |it| it.open(self.period));
        opened.map_err(|error| self.failed(error))
    }

    fn disable(&mut self) -> Result<()> {
        let closed = self.gate.as_ref().map_or(Ok(()), |it| it.close());
        if let Some(enabled) = self.enabled.take() {
            self.ran += enabled.elapsed();
            self.missed = self.read_missed();
        }
        // The kernel waits for runs that have begun.
        self.points.clear();
        self.look();
        closed.map_err(|error| self.failed(error))
    }

    fn set_rate(&mut self, rate: Rate) -> Result<()> {
        // It is asked for a rate of the same kind.
        if let Rate::Period(period) = rate {
            self.period = period.max(1);
        }
        let opened = self.gate.as_ref().map_or(Ok(()), |it| it.open(self.period));
        opened.map_err(|error| self.failed(error))
    }

    fn follow_cpus(&mut self, _: &[u32]) -> Vec<String> {
        // Their hits count as soon as they are there.
        self.look();
        Vec::new()
    }

    fn poll(&mut self) {}

    fn account(&mut self) -> (Vec<CpuEvent>, Option<Error>) {
        self.look();
        let ran = self.ran + self.enabled.map_or(Duration::ZERO, |it| it.elapsed());
        let ran_ns = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
        // The program counts the hits itself: nothing is known of others.
        let count = EventCount { count: 0, enabled_ns: ran_ns, running_ns: ran_ns };
        let account = |&cpu| CpuEvent {
            cpu,
            count,
            events: 1,
            whole: true,
            refused: false,
            throttled: 0,
            idle: Duration::ZERO,
        };
        (self.seen.iter().map(account).collect(), None)
    }

    fn skipped(&self) -> u64 {
        let now = if self.enabled.is_some() { self.read_missed() } else { self.missed };
        now.unwrap_or(0).saturating_sub(self.missed_before)
    }

    fn descriptors(&self) -> Vec<Weak<OwnedFd>> {
        Vec::new()
    }

    fn gate(&self) -> Option<Weak<Gate>> {
        self.gate.as_ref().map(Arc::downgrade)
    }
}
