//! The place of one CPU's event: taken while the CPU is online.

use profiler_profile::ledger::EventCount;

use super::open::OpenEvent;

/// The refusal in a row that is told.
const TOLD: u32 = 2;

/// A CPU's event, if it has one.
#[derive(Debug, Default)]
pub(super) struct Slot {
    event: Option<OpenEvent>,
    /// What the event had counted when it was last asked.
    seen: EventCount,
    /// How often in a row an event could not be opened.
    refusals: u32,
}

impl Slot {
    /// The place of this event.
    pub(super) fn new(event: OpenEvent) -> Self {
        Self { event: Some(event), ..Self::default() }
    }

    /// The open event.
    pub(super) fn event(&self) -> Option<&OpenEvent> {
        self.event.as_ref()
    }

    /// The open event, to be read from.
    pub(super) fn event_mut(&mut self) -> Option<&mut OpenEvent> {
        self.event.as_mut()
    }

    /// What the open event had counted when it was last asked.
    pub(super) fn seen(&self) -> EventCount {
        self.seen
    }

    /// Takes the event out, with what it had counted when it was last asked.
    pub(super) fn take(&mut self) -> Option<(OpenEvent, EventCount)> {
        let Self { event, seen, .. } = std::mem::take(self);
        event.map(|event| (event, seen))
    }

    /// Whether the open event is dead: no time has passed for it since it was last asked.
    pub(super) fn stands_still(&mut self) -> bool {
        // Of one that can't be read nothing is known, and the end of the run says so.
        let Some(Ok(now)) = self.event.as_ref().map(OpenEvent::count) else { return false };
        let before = std::mem::replace(&mut self.seen, now);
        now.enabled_ns <= before.enabled_ns
    }

    /// Counts that an event could not be opened; whether that is to be told. The first time, the CPU
    /// may just be going offline: for perf it has gone a little before it leaves the list.
    pub(super) fn refuse(&mut self) -> bool {
        self.refusals = self.refusals.saturating_add(1);
        self.refusals == TOLD
    }

    /// Whether that was told.
    pub(super) fn is_refused(&self) -> bool {
        self.refusals >= TOLD
    }
}
