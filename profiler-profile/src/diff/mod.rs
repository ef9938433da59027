//! What has changed from one profile to another, and whether it may be noise of sampling.
//!
//! Of a function that was hit by `n` samples, another run of the same program has about `n ± √n`: the hits are nearly
//! those of a Poisson process (with a dithered clock somewhat less scattered, so this errs on the safe side). The
//! difference of two counts has the variance of both together. Where many functions are compared, some differ by chance
//! alone, so a difference counts as a change only beyond what the largest of them all would reach in one of a hundred
//! comparisons (Bonferroni's correction).

pub mod condition;
pub mod text;

use std::collections::{HashMap, HashSet};

use regex::Regex;

use crate::import::{Frame, Imported, Stack};

/// The interval that is shown holds the true difference in 95 of 100 runs.
const SHOWN_DEVIATIONS: f64 = 1.96;
/// How often a comparison may name a change where there is none.
const FALSE_ALARMS: f64 = 0.01;

/// What is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// The values themselves: two runs of the same work.
    #[default]
    Absolute,
    /// Shares of all that each profile has, in millionths: runs that differ in length.
    Share,
}

/// A value, as two profiles have it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// In the first profile.
    pub before: f64,
    /// In the second.
    pub after: f64,
    /// The standard deviation of the difference.
    pub deviation: f64,
}

impl Change {
    /// From so many samples to so many, where each of the first stands for `scale` of the second.
    #[must_use]
    pub fn of_counts(before: u64, after: u64, scale: f64) -> Self {
        let (before, after) = (before as f64, after as f64);
        let deviation = (scale * before.sqrt()).hypot(after.sqrt());
        Self { before: scale * before, after, deviation }
    }

    /// The difference as a share of the larger value: from -1, where nothing is left, to 1, where nothing was before.
    #[must_use]
    pub fn relative(&self) -> f64 {
        let larger = self.before.max(self.after);
        if larger > 0.0 { self.delta() / larger } else { 0.0 }
    }

    /// The difference.
    #[must_use]
    pub fn delta(&self) -> f64 {
        self.after - self.before
    }

    /// The difference as a share of what was there before; infinite if nothing was.
    #[must_use]
    pub fn growth(&self) -> f64 {
        if self.delta() == 0.0 { 0.0 } else { self.delta() / self.before }
    }

    /// By how much the true difference may be more or less, in 95 of 100 runs.
    #[must_use]
    pub fn margin(&self) -> f64 {
        SHOWN_DEVIATIONS * self.deviation
    }

    /// Whether it is beyond so many standard deviations.
    #[must_use]
    pub fn is_beyond(&self, deviations: f64) -> bool {
        self.delta().abs() > deviations * self.deviation
    }
}

/// A function, as two profiles have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What it took itself.
    pub own: Change,
    /// What it took with all that it called.
    pub total: Change,
    /// Whether neither has changed by more than chance explains.
    pub is_noise: bool,
}

/// Two profiles, side by side.
#[derive(Debug)]
pub struct Diff<'a> {
    before: Side<'a>,
    after: Side<'a>,
}

impl<'a> Diff<'a> {
    /// Compares two profiles by their default values.
    #[must_use]
    pub fn new(before: &'a Imported, after: &'a Imported, measure: Measure) -> Self {
        Self { before: Side::new(before, measure), after: Side::new(after, measure) }
    }

    /// All that the profiles have.
    #[must_use]
    pub fn whole(&self) -> Change {
        let all = |side: &Side<'_>| side.sum(|_| true);
        self.change(all(&self.before), all(&self.after))
    }

    /// What functions took whose names match: with what they called, or only what they took themselves.
    #[must_use]
    pub fn matching(&self, pattern: &Regex, own: bool) -> Change {
        let of = |side: &Side<'_>| {
            side.sum(|stack| {
                let mut frames = side.profile.frames_of(stack);
                let is_match = |frame: &Frame| pattern.is_match(frame.shown_name());
                if own { frames.next().is_some_and(is_match) } else { frames.any(is_match) }
            })
        };
        self.change(of(&self.before), of(&self.after))
    }

    /// All functions: those that have changed first, and of them those that have changed most.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let (before, after) = (self.before.functions(), self.after.functions());
        let names: HashSet<&str> = before.keys().chain(after.keys()).copied().collect();
        let deviations = threshold(names.len());
        let mut rows: Vec<Row> = names
            .into_iter()
            .map(|name| {
                let of = |side: &HashMap<&str, (Hits, Hits)>| {
                    side.get(name).copied().unwrap_or_default()
                };
                let ((own_before, total_before), (own_after, total_after)) =
                    (of(&before), of(&after));
                let own = self.change(own_before, own_after);
                let total = self.change(total_before, total_after);
                let is_noise = !own.is_beyond(deviations) && !total.is_beyond(deviations);
                Row { name: name.to_owned(), own, total, is_noise }
            })
            .collect();
        rows.sort_by(|a, b| {
            let size = |row: &Row| row.own.delta().abs();
            let by_size = size(b).total_cmp(&size(a));
            let by_total = b.total.delta().abs().total_cmp(&a.total.delta().abs());
            let by_kind = a.is_noise.cmp(&b.is_noise);
            by_kind.then(by_size).then(by_total).then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    fn change(&self, before: Hits, after: Hits) -> Change {
        let (before, of_before) = self.before.measured(before);
        let (after, of_after) = self.after.measured(after);
        Change { before, after, deviation: of_before.hypot(of_after) }
    }
}

/// How many standard deviations the largest of so many differences stays within, but for [`FALSE_ALARMS`].
#[must_use]
pub fn threshold(comparisons: usize) -> f64 {
    // Each row is two comparisons, and each difference has two sides.
    let tail = FALSE_ALARMS / (comparisons.max(1) as f64 * 4.0);
    deviations_beyond(tail)
}

/// How many standard deviations a normal variable exceeds with this probability, below one half: Abramowitz and Stegun,
/// Handbook of Mathematical Functions, 26.2.23; off by less than 0.0005.
fn deviations_beyond(probability: f64) -> f64 {
    let t = (-2.0 * probability.ln()).sqrt();
    let numerator = 0.010_328_f64.mul_add(t, 0.802_853).mul_add(t, 2.515_517);
    let denominator = 0.001_308_f64.mul_add(t, 0.189_269).mul_add(t, 1.432_788).mul_add(t, 1.0);
    t - numerator / denominator
}

/// How often something was sampled, and what that stands for.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    samples: f64,
    value: f64,
}

impl Hits {
    fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.value += other.value;
    }
}

/// One of the profiles.
#[derive(Debug)]
struct Side<'a> {
    profile: &'a Imported,
    /// Where a stack has the number of its samples; where it has none, its value is that.
    samples_at: Option<usize>,
    /// What values are multiplied by.
    scale: f64,
}

impl<'a> Side<'a> {
    fn new(profile: &'a Imported, measure: Measure) -> Self {
        let value = profile.value_types.get(profile.default_value);
        // Of several events, each has its own.
        let own = value.map(|it| format!("{}_samples", it.name)).unwrap_or_default();
        let at = |name: &str| {
            profile.value_types.iter().position(|it| *it.name == *name && &*it.unit == "count")
        };
        let samples_at = at(&own).or_else(|| at("samples"));
        let mut side = Self { profile, samples_at, scale: 1.0 };
        if measure == Measure::Share {
            let all = side.sum(|_| true).value;
            side.scale = if all > 0.0 { 1e6 / all } else { 0.0 };
        }
        side
    }

    fn hits(&self, stack: &Stack) -> Hits {
        let at = |place: usize| stack.values.get(place).copied().unwrap_or(0) as f64;
        let value = at(self.profile.default_value);
        Hits { samples: self.samples_at.map_or(value, at).max(0.0), value }
    }

    fn sum(&self, is_wanted: impl Fn(&Stack) -> bool) -> Hits {
        let mut sum = Hits::default();
        for stack in self.profile.stacks.iter().filter(|it| is_wanted(it)) {
            sum.add(self.hits(stack));
        }
        sum
    }

    /// A value, and its standard deviation.
    fn measured(&self, hits: Hits) -> (f64, f64) {
        let value = hits.value * self.scale;
        // Nothing was seen of what is rarer than one sample: as uncertain as that one.
        let deviation = if hits.samples > 0.0 { value / hits.samples.sqrt() } else { 0.0 };
        (value, deviation)
    }

    /// What each function took itself, and with what it called.
    fn functions(&self) -> HashMap<&'a str, (Hits, Hits)> {
        let mut functions: HashMap<&str, (Hits, Hits)> = HashMap::new();
        let mut seen = HashSet::new();
        for stack in &self.profile.stacks {
            let hits = self.hits(stack);
            seen.clear();
            for (depth, frame) in self.profile.frames_of(stack).enumerate() {
                let name = frame.shown_name();
                let (own, total) = functions.entry(name).or_default();
                if depth == 0 {
                    own.add(hits);
                }
                // A function that calls itself is on the stack once.
                if seen.insert(name) {
                    total.add(hits);
                }
            }
        }
        functions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Limits, folded};

    fn profile(counts: &[(&str, u64)]) -> Imported {
        let lines = counts.iter().map(|(stack, count)| format!("{stack} {count}\n"));
        folded::read(lines.collect::<String>().as_bytes(), &Limits::default()).unwrap()
    }

    fn changed(before: &Imported, after: &Imported, measure: Measure) -> Vec<String> {
        let rows = Diff::new(before, after, measure).rows();
        rows.into_iter().filter(|it| !it.is_noise).map(|it| it.name).collect()
    }

    #[test]
    fn deviations_are_those_of_the_tables() {
        for (probability, deviations) in [(0.025, 1.95996), (0.005, 2.57583), (1e-6, 4.75342)] {
            assert!((deviations_beyond(probability) - deviations).abs() < 5e-4, "{probability}");
        }
        assert!(threshold(1000) > threshold(10) && threshold(0) > 2.5);
    }

    #[test]
    fn what_chance_explains_is_noise() {
        let before = profile(&[("a;main;parse", 1000), ("a;main;write", 400), ("a;main", 10)]);
        let after = profile(&[("a;main;parse", 1060), ("a;main;write", 370), ("a;main", 14)]);
        assert!(changed(&before, &after, Measure::Absolute).is_empty());
        assert!(changed(&before, &before, Measure::Share).is_empty());
    }

    #[test]
    fn what_it_does_not_is_a_change() {
        let before = profile(&[("a;main;parse", 10_000), ("a;main;write", 4000), ("a;main", 10)]);
        let after = profile(&[("a;main;parse", 12_000), ("a;main;write", 4030), ("a;main", 14)]);
        // Those that call it have changed with it.
        assert_eq!(changed(&before, &after, Measure::Absolute), ["parse", "main", "a"]);
        let rows = Diff::new(&before, &after, Measure::Absolute).rows();
        let parse = rows.first().unwrap().own;
        assert!((parse.growth() - 0.2).abs() < 1e-9 && parse.margin() > 280.0, "{parse:?}");
    }

    /// Hits as sampling has them: of a Poisson process, by the time until each.
    fn sampled(mean: f64, random: &mut u64) -> u64 {
        let (mut hits, mut time) = (0, 0.0);
        loop {
            // Xorshift: Marsaglia, Journal of Statistical Software 8 (2003).
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            let uniform = (*random >> 11) as f64 / (1_u64 << 53) as f64;
            time -= (1.0 - uniform).ln();
            if time > mean {
                return hits;
            }
            hits += 1;
        }
    }

    #[test]
    fn of_many_runs_of_one_program_none_differs_and_a_slower_function_does() {
        let mut random = 0x9e37_79b9_7f4a_7c15;
        let mut run = |slower: usize| {
            let stacks: Vec<_> = (0..60).map(|it| (format!("a;main;f{it}"), it)).collect();
            let mean = |it: usize| {
                let usual = 10.0 * 1.12_f64.powf(it as f64);
                if it == slower { 1.2 * usual } else { usual }
            };
            let counts: Vec<(&str, u64)> = stacks
                .iter()
                .map(|(stack, it)| (stack.as_str(), sampled(mean(*it), &mut random)))
                .collect();
            profile(&counts)
        };
        let nothing = usize::MAX;
        for _ in 0..10 {
            let (before, after) = (run(nothing), run(nothing));
            assert!(changed(&before, &after, Measure::Absolute).is_empty());
            assert!(changed(&before, &after, Measure::Share).is_empty());
            // Its callers take 1 % more, which may be noise.
            let slower = changed(&before, &run(50), Measure::Absolute);
            assert!(slower.iter().all(|it| ["f50", "main", "a"].contains(&&**it)), "{slower:?}");
            assert_eq!(slower.first().map(|it| &**it), Some("f50"));
        }
    }

    #[test]
    fn shares_do_not_depend_on_the_length_of_a_run() {
        let before = profile(&[("a;parse", 5000), ("a;write", 5000)]);
        let longer = profile(&[("a;parse", 10_000), ("a;write", 10_000)]);
        assert!(changed(&before, &longer, Measure::Share).is_empty());
        assert_eq!(changed(&before, &longer, Measure::Absolute), ["parse", "write", "a"]);
    }

    #[test]
    fn what_is_new_and_what_is_gone_have_changed() {
        let before = profile(&[("a;old", 500), ("a;same", 500)]);
        let after = profile(&[("a;new", 500), ("a;same", 500)]);
        assert_eq!(changed(&before, &after, Measure::Absolute), ["new", "old"]);
        let diff = Diff::new(&before, &after, Measure::Absolute);
        let grown = |pattern: &str| diff.matching(&Regex::new(pattern).unwrap(), true).growth();
        assert_eq!((grown("^new$"), grown("^old$")), (f64::INFINITY, -1.0));
        assert!(diff.whole().delta().abs() < 1e-9);
    }

    #[test]
    fn a_pattern_counts_each_stack_once() {
        let before = profile(&[("a;f;f;f", 100)]);
        let after = profile(&[("a;f;f;f", 150)]);
        let diff = Diff::new(&before, &after, Measure::Absolute);
        let pattern = Regex::new("f").unwrap();
        let (own, total) = (diff.matching(&pattern, true), diff.matching(&pattern, false));
        assert_eq!(
            (own.before, own.after, total.before, total.after),
            (100.0, 150.0, 100.0, 150.0)
        );
    }

    #[test]
    fn nothing_is_compared_with_nothing() {
        let nothing = Imported::default();
        let diff = Diff::new(&nothing, &nothing, Measure::Share);
        assert!(diff.rows().is_empty());
        assert_eq!(diff.whole(), Change::default());
    }
}
