//! What is known of a profile beside its samples.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::{format::Options, root::Root};
use crate::{
    import::ValueType,
    ledger::{Ledger, SourceAccount},
    source::{Rate, Source},
};

/// What is known of a profile beside its samples: of a run that has ended, or of a file that was read.
#[derive(Clone, Debug)]
pub struct About<'a> {
    /// What was sampled, by slot.
    pub sources: Vec<Sampled>,
    /// The source and the values that readers show first, by their place in the [columns](Sampled::columns) of all.
    pub default_column: usize,
    /// What was sampled, and for how long, in a line.
    pub title: String,
    /// What is to be said of how it was taken, a line each, for people.
    pub comments: Vec<String>,
    /// When it was begun; nanoseconds since 1970.
    pub begun_ns: Option<i128>,
    /// Where the time of day is that of.
    pub zone: TimeZone,
    /// How long it took, in nanoseconds.
    pub duration_ns: Option<u64>,
    /// What the first source counts, and how much of it lies between two samples.
    pub period: Option<(ValueType, u64)>,
    /// What writes: the name and version of the program.
    pub producer: &'static str,
    /// What stacks begin with, where the format has no other place for whose they are.
    pub root: Root,
    /// What became of every sample; only a run has that.
    pub ledger: Option<&'a Ledger>,
}

/// What was sampled by one source.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// Its name.
    pub event: String,
    /// The same with how often it was sampled.
    pub title: String,
    /// What the [count](crate::profile::Entry::count) of an entry is. If `None`, it is the value, in its unit.
    pub counts: Option<ValueType>,
    /// What the [value](crate::profile::Entry::value) of an entry is.
    pub values: ValueType,
    /// Samples that were lost.
    pub lost: u64,
}

impl Sampled {
    /// What its values are, in the order of a profile with several of them: the count, if it is one, and the value.
    pub fn columns(&self) -> impl Iterator<Item = &ValueType> {
        self.counts.iter().chain([&self.values])
    }

    /// What is counted, in words: samples, or what the values are.
    #[must_use]
    pub fn unit(&self) -> &str {
        match &self.counts {
            Some(_) => "samples",
            None if &*self.values.unit == "count" => &self.values.name,
            None => &self.values.unit,
        }
    }

    /// Whether values are times in nanoseconds.
    #[must_use]
    pub fn is_time(&self) -> bool {
        &*self.values.unit == "nanoseconds"
    }
}

impl<'a> About<'a> {
    /// What the ledger of a run says.
    #[must_use]
    pub fn of_run(ledger: &'a Ledger, options: &Options) -> Self {
        let is_one = ledger.sources.len() == 1;
        let remarks = ledger.remarks();
        let title = remarks.first().cloned().unwrap_or_default();
        let begun_ns = options.real_time_ahead_ns.saturating_add(options.begun_ns.into());
        Self {
            sources: ledger.sources.iter().map(|it| Sampled::of(it, is_one)).collect(),
            default_column: 1,
            title,
            comments: std::iter::once(options.producer.to_owned()).chain(remarks).collect(),
            begun_ns: Some(begun_ns),
            zone: options.zone.clone(),
            duration_ns: Some(ledger.duration_ns),
            period: None,
            producer: options.producer,
            root: options.root,
            ledger: Some(ledger),
        }
    }
}

impl About<'_> {
    /// Of so much of a run that goes on, in which this was sampled.
    #[must_use]
    pub fn of_moment(
        sources: &[Source],
        begun_ns: i128,
        time: Duration,
        what: &str,
        producer: &'static str,
    ) -> Self {
        let is_one = sources.len() == 1;
        let of_source = |it: &Source| {
            let rate = match it.rate {
                Rate::Frequency(hz) => format!("{hz} Hz"),
                Rate::Period(period) => format!("every {period}"),
            };
            let title = format!("{} at {rate}", it.name);
            Sampled::named(&it.name, title, it.counts.is_clock(), is_one, 0)
        };
        let sources: Vec<Sampled> = sources.iter().map(of_source).collect();
        let titles: Vec<&str> = sources.iter().map(|it| &*it.title).collect();
        let title = format!("{}, {what}", titles.join(", "));
        Self {
            default_column: 1,
            comments: vec![producer.to_owned(), title.clone()],
            sources,
            title,
            begun_ns: Some(begun_ns),
            zone: TimeZone::system(),
            duration_ns: u64::try_from(time.as_nanos()).ok(),
            period: None,
            producer,
            root: Root::default(),
            ledger: None,
        }
    }
}

impl Sampled {
    fn of(account: &SourceAccount, is_one: bool) -> Self {
        let lost = account.total.lost.total();
        Self::named(&account.event, account.title(), account.counts.is_clock(), is_one, lost)
    }

    fn named(event: &str, title: String, is_clock: bool, is_one: bool, lost: u64) -> Self {
        let samples = if is_one { "samples".to_owned() } else { format!("{event}_samples") };
        let weight = if is_one && is_clock { "cpu" } else { event };
        Self {
            event: event.to_owned(),
            title,
            counts: Some(ValueType { name: samples.into(), unit: "count".into() }),
            values: ValueType {
                name: weight.to_owned().into(),
                unit: if is_clock { "nanoseconds" } else { "count" }.into(),
            },
            lost,
        }
    }
}
