//! What was sampled of a service in a container.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    address::Address,
    export::about::{About, Sampled},
    frame::Frame,
    import::ValueType,
    ledger::SourceAccount,
    profile::{Entry, Profile},
    sample::Task,
    stack::{Location, Stack},
};

/// The service of what is known by nothing.
const UNKNOWN: &str = "unknown";
/// The function of a sample that has no stack: not every store takes one without.
const NO_STACK: &str = "[no stack]";

/// What was sampled of a service in a container: a series of a store.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) whose: Whose,
    /// Each stack once; of nobody in particular.
    pub(super) entries: Vec<Entry>,
}

/// Whose samples are a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Whose {
    pub(super) service: String,
    pub(super) container: Option<String>,
    /// The uid of the Kubernetes pod.
    pub(super) pod: Option<String>,
}

impl Whose {
    fn of(task: &Task) -> Self {
        let process = task.process.as_deref();
        let service = process.and_then(|it| it.service.as_deref()).unwrap_or(UNKNOWN);
        Self {
            service: service.to_owned(),
            container: process.and_then(|it| Some(it.container.as_ref()?.id.clone())),
            pod: process.and_then(|it| it.pod.clone()),
        }
    }
}

impl Series {
    pub(super) fn samples(&self) -> u64 {
        self.entries.iter().map(|it| it.count).fold(0, u64::saturating_add)
    }

    /// Two of half the stacks, if there are so many.
    pub(super) fn halves(&self) -> Option<(Self, Self)> {
        let (first, second) = self.entries.split_at_checked(self.entries.len() / 2)?;
        let with = |entries: &[Entry]| Self { whose: self.whose.clone(), entries: entries.into() };
        (!first.is_empty()).then(|| (with(first), with(second)))
    }

    /// As a profile.
    pub(super) fn profile(&self) -> Profile {
        let mut profile = Profile::new(usize::MAX);
        self.entries.iter().cloned().for_each(|it| profile.add_entry(it));
        profile
    }
}

/// The series of a window, in the order of whose they are.
///
/// Stores show CPU time by its name. So the CPU's cycles, sampled so many times a second, are sent as the time that lies between
/// two samples; `about` says so then.
pub(super) fn of(profile: &Profile, about: &mut About<'_>) -> Vec<Series> {
    let periods = as_time(about);
    let frame = Frame { symbol: Some(Arc::from(NO_STACK)), ..Frame::default() };
    let no_stack = Arc::new(Stack::outside(
        1,
        Location { address: Address::sampled(0), frames: [frame].into() },
    ));
    let mut all: BTreeMap<Whose, Profile> = BTreeMap::new();
    for entry in profile.entries() {
        let whose = Whose::of(&entry.task);
        let mut entry = Entry { task: Task::default(), ..entry.clone() };
        if entry.kernel.is_empty() && entry.user.is_empty() {
            entry.user = Arc::clone(&no_stack);
        }
        if let Some(Some(period)) = periods.get(entry.source.slot) {
            entry.value = entry.count.saturating_mul(*period);
        }
        all.entry(whose).or_insert_with(|| Profile::new(usize::MAX)).add_entry(entry);
    }
    let series = |(whose, profile): (Whose, Profile)| {
        let mut entries: Vec<Entry> = profile.entries().cloned().collect();
        let addresses = |it: &Entry| -> Vec<u64> {
            let halves = it.kernel.locations().iter().chain(it.user.locations());
            halves.map(|it| it.address.value).collect()
        };
        // The same window makes the same requests.
        entries.sort_by_cached_key(|it| (it.source.slot, addresses(it), it.count, it.value));
        Series { whose, entries }
    };
    all.into_iter().map(series).collect()
}

/// Has the first source of CPU time be called that; of each source, the nanoseconds between two samples, where these are
/// not what it counts itself.
fn as_time(about: &mut About<'_>) -> Vec<Option<u64>> {
    let accounts = about.ledger.map(|it| &*it.sources).unwrap_or_default();
    let periods: Vec<_> = accounts.iter().map(period_of_cycles).collect();
    let is_time = |(at, it): &(usize, &mut Sampled)| {
        it.is_time() || periods.get(*at).copied().flatten().is_some()
    };
    if let Some((_, first)) = about.sources.iter_mut().enumerate().find(is_time) {
        first.counts = Some(ValueType { name: "samples".into(), unit: "count".into() });
        first.values = ValueType { name: "cpu".into(), unit: "nanoseconds".into() };
    }
    let is_named = |at: usize| about.sources.get(at).is_some_and(Sampled::is_time);
    let of = |(at, period): (usize, Option<u64>)| period.filter(|_| is_named(at));
    periods.into_iter().enumerate().map(of).collect()
}

fn period_of_cycles(account: &SourceAccount) -> Option<u64> {
    let event = account.event.split(':').next().unwrap_or_default();
    let is_cycles = !account.counts.is_clock() && matches!(event, "cycles" | "cpu-cycles");
    account.frequency.filter(|_| is_cycles).and_then(|hz| 1_000_000_000_u64.checked_div(hz))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::{
            push::tests::with_window,
            tests::{ledger, options, sample},
        },
        source::{Counts, Rate, Source},
    };

    #[test]
    fn processes_of_a_service_and_container_are_one() {
        with_window(|profile, about| {
            let series = of(profile, &mut about.clone());
            let [kernel, shop] = &series[..] else { panic!("{series:?}") };
            assert_eq!((kernel.whose.service.as_str(), kernel.samples()), ("kernel", 1));
            assert_eq!(shop.whose.container.as_deref(), Some("c0ffee"));
            let counts: Vec<_> = shop.entries.iter().map(|it| (it.count, it.value)).collect();
            assert_eq!(counts, [(3, 150_000_003), (1, 50_000_001)]);
            assert!(shop.entries.iter().all(|it| it.task.pid().is_none()));
        });
    }

    #[test]
    fn cycles_by_frequency_are_time_and_by_period_cycles() {
        for (rate, expected) in
            [(Rate::Frequency(20), ("cpu", 50_000_000)), (Rate::Period(1000), ("cycles", 3))]
        {
            let source = Source { slot: 0, name: "cycles".into(), counts: Counts::Events, rate };
            let ledger = ledger(&[source]);
            let mut about = About::of_run(&ledger, &options());
            let mut profile = Profile::new(1 << 20);
            profile.add(&sample());
            let series = of(&profile, &mut about);
            assert_eq!(series[0].whose.service, UNKNOWN);
            let value = series[0].entries[0].value;
            assert_eq!((&*about.sources[0].values.name, value), expected);
        }
    }
}
