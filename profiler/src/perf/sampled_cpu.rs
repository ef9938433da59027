//! A CPU that is sampled: the event that it has while it is online, and what those before it left.

use std::time::Duration;

use profiler_profile::ledger::{CpuEvent, EventCount};

use super::{open::OpenEvent, per_cpu::OnCpu, slot::Slot};
use crate::error::Error;

/// One CPU and its events, of which the last may be open.
#[derive(Debug, Default)]
pub(super) struct SampledCpu {
    slot: Slot,
    /// What the closed events have counted.
    closed: EventCount,
    /// How many events there have been.
    events: u64,
    /// Whether the open event is there since the start.
    whole: bool,
    /// Whether an event could not be opened before the last one was.
    refused: bool,
    throttled: u64,
    idle: Duration,
    idle_seen: Option<Duration>,
}

impl SampledCpu {
    /// A CPU that has its event from the start.
    pub(super) fn new(event: OpenEvent) -> Self {
        Self { slot: Slot::new(event), events: 1, whole: true, ..Self::default() }
    }

    /// The open event.
    pub(super) fn event(&self) -> Option<&OpenEvent> {
        self.slot.event()
    }

    /// Adds up for how long the CPU is idle, from its idle time since boot; `None` if it is offline.
    /// Start and end of a run would not do: an offline CPU has no such time, and on some kernels it
    /// begins anew when the CPU is back.
    pub(super) fn note_idle(&mut self, now: Option<Duration>) {
        if let (Some(_), Some(before), Some(now)) = (self.event(), self.idle_seen, now) {
            self.idle += now.saturating_sub(before);
        }
        self.idle_seen = now;
    }

    /// Counts how often the kernel has throttled the event since the last call.
    pub(super) fn take_throttles(&mut self) {
        self.throttled += self.slot.event_mut().map_or(0, OpenEvent::take_throttles);
    }

    /// What all its events have done, and the error if the open one could not be read.
    pub(super) fn account(&self, cpu: u32) -> (CpuEvent, Option<Error>) {
        let open = self.event().map(OpenEvent::count).transpose();
        let (open, failed) = match open {
            Ok(open) => (open.unwrap_or_default(), None),
            Err(error) => (self.slot.seen(), Some(error)),
        };
        let mut count = self.closed;
        count += open;
        let Self { events, whole, throttled, idle, .. } = *self;
        let refused = self.refused || self.slot.is_refused();
        (CpuEvent { cpu, count, events, whole, refused, throttled, idle }, failed)
    }
}

impl OnCpu for SampledCpu {
    fn slot(&mut self) -> &mut Slot {
        &mut self.slot
    }

    fn replace(&mut self, event: OpenEvent) {
        self.close();
        self.slot = Slot::new(event);
        self.events += 1;
    }

    fn close(&mut self) -> bool {
        self.take_throttles();
        self.whole = false;
        self.refused |= self.slot.is_refused();
        let Some((event, seen)) = self.slot.take() else { return false };
        // What it had counted at the last look is the least that is known.
        self.closed += event.count().unwrap_or(seen);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered() {
        let mut sampled = SampledCpu::default();
        // The first time, the CPU may just be going offline.
        assert!(!sampled.slot().refuse() && !sampled.account(5).0.refused);
        assert!(sampled.slot().refuse() && sampled.account(5).0.refused);
        sampled.close();
        assert!(!sampled.slot.is_refused() && sampled.account(5).0.refused);
    }
}
