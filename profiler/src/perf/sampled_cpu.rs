//! A CPU that is sampled: the event that it has while it is online, and what those before it left.

use std::time::Duration;

use super::open::{EventCount, SamplingEvent};
use crate::{error::Error, ledger::CpuEvent};

/// One CPU and its events, of which the last may be open.
#[derive(Debug, Default)]
pub(super) struct SampledCpu {
    event: Option<SamplingEvent>,
    /// What the open event had counted at the last look.
    seen: EventCount,
    /// What the closed events have counted.
    closed: EventCount,
    /// How many events there have been.
    events: u64,
    /// Whether the open event is there since the start.
    whole: bool,
    throttled: u64,
    idle: Duration,
    idle_seen: Option<Duration>,
    /// How often in a row an event could not be opened.
    refusals: u32,
}

impl SampledCpu {
    /// A CPU that has its event from the start.
    pub(super) fn new(event: SamplingEvent) -> Self {
        Self { event: Some(event), events: 1, whole: true, ..Self::default() }
    }

    /// The open event.
    pub(super) fn event(&self) -> Option<&SamplingEvent> {
        self.event.as_ref()
    }

    /// Goes on with another event, in place of a dead one or of none.
    pub(super) fn replace(&mut self, event: SamplingEvent) {
        self.close();
        self.event = Some(event);
        self.events += 1;
    }

    /// Closes the event and keeps what it has counted; whether there was one.
    pub(super) fn close(&mut self) -> bool {
        self.take_throttles();
        self.whole = false;
        self.refusals = 0;
        let seen = std::mem::take(&mut self.seen);
        let Some(event) = self.event.take() else { return false };
        // What it had counted at the last look is the least that is known.
        self.closed += event.count().unwrap_or(seen);
        true
    }

    /// Whether the open event is dead: no time has passed for it since it was last asked for.
    pub(super) fn stands_still(&mut self) -> bool {
        // Of one that can't be read nothing is known, and the end of the run says so.
        let Some(Ok(now)) = self.event.as_ref().map(SamplingEvent::count) else { return false };
        let before = std::mem::replace(&mut self.seen, now);
        now.enabled_ns <= before.enabled_ns
    }

    /// Counts that an event could not be opened; whether that is to be told. The first time, the CPU
    /// may just be going offline: for perf it has gone a little before it leaves the list.
    pub(super) fn refuse(&mut self) -> bool {
        self.refusals = self.refusals.saturating_add(1);
        self.refusals == 2
    }

    /// Adds up for how long the CPU is idle, from its idle time since boot; `None` if it is offline.
    /// Start and end of a run would not do: an offline CPU has no such time, and on some kernels it
    /// begins anew when the CPU is back.
    pub(super) fn note_idle(&mut self, now: Option<Duration>) {
        if let (Some(_), Some(before), Some(now)) = (&self.event, self.idle_seen, now) {
            self.idle += now.saturating_sub(before);
        }
        self.idle_seen = now;
    }

    /// Counts how often the kernel has throttled the event since the last call.
    pub(super) fn take_throttles(&mut self) {
        self.throttled += self.event.as_mut().map_or(0, SamplingEvent::take_throttles);
    }

    /// What all its events have done, and the error if the open one could not be read.
    pub(super) fn account(&self, cpu: u32) -> (CpuEvent, Option<Error>) {
        let open = self.event.as_ref().map(SamplingEvent::count).transpose();
        let (open, failed) = match open {
            Ok(open) => (open.unwrap_or_default(), None),
            Err(error) => (self.seen, Some(error)),
        };
        let mut count = self.closed;
        count += open;
        let Self { events, whole, throttled, idle, .. } = *self;
        (CpuEvent { cpu, count, events, whole, throttled, idle }, failed)
    }
}
