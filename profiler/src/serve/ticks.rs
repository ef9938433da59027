//! What each page is told once a second: how far the run is, what it has lost, and what it costs.

use std::time::{Duration, Instant};

use profiler_profile::live::Vitals;
use serde::Serialize;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::answers::Site;
use crate::kernel;

/// How often pages are told that there is something new.
const INTERVAL: Duration = Duration::from_secs(1);

/// How the run goes on.
#[derive(Debug, Serialize)]
struct Tick {
    /// The slices that are kept.
    first: u64,
    end: u64,
    is_behind: bool,
    /// Whether memory did not suffice for all of them.
    is_short: bool,
    /// Samples lost so far, by reason; only those of which there are any.
    lost: Vec<(&'static str, u64)>,
    /// What of a CPU the agent took lately, if that is known by now.
    cpu: Option<f64>,
    memory_bytes: u64,
}

/// Tells all pages, for ever. A page that has not listened for a while is told the last.
pub(super) async fn tell(site: &Site, to: watch::Sender<String>) {
    let mut interval = interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut load = Load::default();
    loop {
        interval.tick().await;
        let vitals = site.live.vitals();
        let kept = site.live.kept(kernel::monotonic_ns());
        let tick = Tick {
            first: kept.first,
            end: kept.end,
            is_behind: vitals.is_behind,
            is_short: site.live.is_short(),
            lost: vitals.lost.reasons().into_iter().filter(|(_, count)| *count > 0).collect(),
            cpu: load.follow(&vitals, Instant::now()),
            memory_bytes: vitals.memory_bytes,
        };
        // It has no part that could not be written.
        to.send_replace(serde_json::to_string(&tick).unwrap_or_default());
    }
}

/// What of a CPU is used.
#[derive(Debug, Default)]
struct Load {
    last: Option<(Instant, Duration)>,
    share: Option<f64>,
}

impl Load {
    /// The agent tells of itself once a second, too, and not at the same moments.
    fn follow(&mut self, vitals: &Vitals, now: Instant) -> Option<f64> {
        let Some((at, before)) = self.last else {
            self.last = Some((now, vitals.cpu));
            return None;
        };
        if vitals.cpu != before {
            let passed = now.saturating_duration_since(at).as_secs_f64();
            let used = vitals.cpu.saturating_sub(before).as_secs_f64();
            self.share = (passed > 0.0).then(|| used / passed);
            self.last = Some((now, vitals.cpu));
        }
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_what_was_used_between_two_changes() {
        let (mut load, start) = (Load::default(), Instant::now());
        let vitals = |ms| Vitals { cpu: Duration::from_millis(ms), ..Vitals::default() };
        assert_eq!(load.follow(&vitals(100), start), None);
        let later = start + Duration::from_secs(2);
        assert_eq!(load.follow(&vitals(100), later), None);
        assert_eq!(load.follow(&vitals(600), later), Some(0.25));
        assert_eq!(load.follow(&vitals(600), later), Some(0.25));
    }
}
