//! What a run says while it goes on: that samples are lost, or that something stands still.

use std::time::{Duration, Instant};

use super::Lost;

/// Each kind of notice comes at most once in this time.
const INTERVAL: Duration = Duration::from_secs(60);
/// What has made no progress for so long stands still.
const STANDSTILL: Duration = Duration::from_secs(5);

/// What is known of a run at a moment, all of it cheap to read.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// Samples lost so far, as far as that is known before the end.
    pub lost: Lost,
    /// Where the output goes.
    pub output: &'a str,
    /// For how long the output has accepted nothing.
    pub output_blocked: Duration,
    /// Batches of samples that have been named and written.
    pub batches: u64,
    /// Whether others wait.
    pub is_waiting: bool,
}

/// Says no more often than it helps what is wrong with a run.
#[derive(Debug)]
pub struct Watch {
    told: Lost,
    /// When losses were told last, or sampling began.
    told_at: Instant,
    /// When losses may be told again.
    losses_due: Instant,
    output_due: Instant,
    naming_due: Instant,
    batches: u64,
    /// Since when there is no other number of batches, or nothing waits.
    moved_at: Instant,
}

impl Watch {
    /// Watches from now on.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            told: Lost::default(),
            told_at: now,
            losses_due: now,
            output_due: now,
            naming_due: now,
            batches: 0,
            moved_at: now,
        }
    }

    /// The notices that are due.
    pub fn look(&mut self, progress: &Progress<'_>, now: Instant) -> Vec<String> {
        let mut notices = Vec::new();
        notices.extend(self.losses(progress.lost, now));
        if progress.batches != self.batches || !progress.is_waiting {
            (self.batches, self.moved_at) = (progress.batches, now);
        }
        let (blocked, output) = (progress.output_blocked, progress.output);
        let stood = now.saturating_duration_since(self.moved_at);
        if blocked >= STANDSTILL {
            if now >= self.output_due {
                self.output_due = now + INTERVAL;
                let seconds = blocked.as_secs();
                notices.push(format!(
                    "{output} has accepted nothing for {seconds} s because nobody is reading it: samples are \
                     queued, and lost once the queue is full"
                ));
            }
        } else if stood >= STANDSTILL && now >= self.naming_due {
            self.naming_due = now + INTERVAL;
            let seconds = stood.as_secs();
            notices.push(format!(
                "no sample has been named for {seconds} s: a file system is not responding, or debug info \
                 is being read; samples are queued, and lost once the queue is full"
            ));
        }
        notices
    }

    fn losses(&mut self, lost: Lost, now: Instant) -> Option<String> {
        let new: Vec<(&str, u64)> = lost
            .reasons()
            .into_iter()
            .zip(self.told.reasons())
            .map(|((reason, now), (_, told))| (reason, now.saturating_sub(told)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let (most, _) = *new.iter().max_by_key(|(_, count)| *count)?;
        if now < self.losses_due {
            return None;
        }
        let seconds = now.saturating_duration_since(self.told_at).as_secs_f64().ceil();
        let total: u64 = new.iter().map(|(_, count)| count).sum();
        let reasons: Vec<String> =
            new.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        (self.told, self.told_at, self.losses_due) = (lost, now, now + INTERVAL);
        let advice = advice(most).map(|advice| format!("; {advice}")).unwrap_or_default();
        Some(format!(
            "{total} samples were lost in the last {seconds} s: {}{advice}",
            reasons.join(", ")
        ))
    }
}

/// What helps against losses for a reason, by its name in the ledger.
fn advice(reason: &str) -> Option<&'static str> {
    match reason {
        "ring full" => Some("raise --buffer-size"),
        "ring contended" | "scratch busy" => Some("lower -F"),
        "agent behind" => Some("lower -F, read the output faster, or leave out --lines"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn progress(lost: Lost) -> Progress<'static> {
        let (output, output_blocked) = ("standard output", Duration::ZERO);
        Progress { lost, output, output_blocked, batches: 0, is_waiting: false }
    }

    fn ring_full(ring_full: u64) -> Progress<'static> {
        progress(Lost { ring_full, ..Lost::default() })
    }

    #[test]
    fn losses_are_told_at_once_and_then_once_a_minute() {
        let start = Instant::now();
        let mut watch = Watch::new(start);
        assert!(watch.look(&ring_full(0), start + SECOND).is_empty());
        assert_eq!(
            watch.look(&ring_full(5), start + 2 * SECOND),
            ["5 samples were lost in the last 2 s: ring full 5; raise --buffer-size"]
        );
        // More are lost in each second of the minute.
        for second in 3..62 {
            assert!(
                watch.look(&ring_full(5 + u64::from(second)), start + second * SECOND).is_empty()
            );
        }
        let mut lost = Lost { ring_full: 105, agent_behind: 200, ..Lost::default() };
        let line = "300 samples were lost in the last 60 s: ring full 100, agent behind 200; lower -F, \
                    read the output faster, or leave out --lines";
        assert_eq!(watch.look(&progress(lost), start + 62 * SECOND), [line]);
        // Nothing new for long, then something: at once again.
        assert!(watch.look(&progress(lost), start + 300 * SECOND).is_empty());
        lost.scratch_busy += 1;
        let line = "1 samples were lost in the last 239 s: scratch busy 1; lower -F";
        assert_eq!(watch.look(&progress(lost), start + 301 * SECOND), [line]);
    }

    #[test]
    fn a_standstill_is_told_once_a_minute_by_what_stands_still() {
        let start = Instant::now();
        let mut watch = Watch::new(start);
        let mut now = progress(Lost::default());
        now.is_waiting = true;
        // Slow is not still.
        for second in 0..30 {
            now.batches = u64::from(second) / 3;
            assert!(watch.look(&now, start + second * SECOND).is_empty());
        }
        let notices = |watch: &mut Watch, now: &Progress<'_>, seconds: std::ops::Range<u32>| {
            let each = seconds.flat_map(|second| watch.look(now, start + second * SECOND));
            each.collect::<Vec<String>>()
        };
        // The last batch came at 27 s.
        assert!(notices(&mut watch, &now, 30..32).is_empty());
        let told = notices(&mut watch, &now, 32..92);
        assert!(
            told.len() == 1 && told[0].starts_with("no sample has been named for 5 s"),
            "{told:?}"
        );
        assert_eq!(notices(&mut watch, &now, 92..93).len(), 1);
        // Where the output takes nothing, it is to blame.
        now.output_blocked = 4 * SECOND;
        assert!(notices(&mut watch, &now, 93..94).is_empty());
        now.output_blocked = 5 * SECOND;
        let told = notices(&mut watch, &now, 94..154);
        let line = "standard output has accepted nothing for 5 s because nobody is reading it";
        assert!(told.len() == 1 && told[0].starts_with(line), "{told:?}");
        // Nothing waits, so nothing stands still.
        (now.output_blocked, now.is_waiting) = (Duration::ZERO, false);
        assert!(notices(&mut watch, &now, 154..400).is_empty());
    }
}
