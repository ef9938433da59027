//! What the values of a sample are: two for each source, how many samples and what these stand for.

use std::{borrow::Cow, collections::BTreeMap};

use super::tables::{Finished, Tables};
use crate::{
    ledger::Ledger,
    printable::printable,
    profile::Profile,
    profile_proto::ValueType,
    source::{Counts, Rate},
};

/// The values, in their order.
pub(super) struct Values {
    sources: BTreeMap<usize, Names>,
    period: u64,
}

struct Names {
    samples: u32,
    samples_unit: u32,
    weight: u32,
    weight_unit: u32,
}

impl Values {
    /// Those of a run.
    pub(super) fn of(ledger: &Ledger, profile: &Profile, tables: &mut Tables) -> Self {
        let mut sources = BTreeMap::new();
        for (slot, source) in ledger.sources.iter().enumerate() {
            let rate = match (source.frequency, source.period) {
                (Some(hz), _) => Rate::Frequency(hz),
                (None, period) => Rate::Period(period.unwrap_or_default()),
            };
            sources.insert(slot, (Cow::Borrowed(source.event.as_str()), source.counts, rate));
        }
        for it in profile.entries().map(|it| &it.source) {
            sources.entry(it.slot).or_insert((Cow::Borrowed(&it.name), it.counts, it.rate));
        }
        let first = sources.iter().next();
        let period = first.map_or(0, |(slot, (_, counts, rate))| match rate {
            Rate::Period(period) => *period,
            Rate::Frequency(hz) if counts.is_clock() => 1_000_000_000 / hz.max(&1),
            Rate::Frequency(_) => mean(profile, *slot),
        });
        let is_one = sources.len() == 1;
        let mut names = |(name, counts, _): &(Cow<'_, str>, Counts, Rate)| {
            let (name, is_clock) = (printable(name), counts.is_clock());
            let samples = if is_one { "samples".into() } else { format!("{name}_samples") };
            let weight = if is_one && is_clock { "cpu" } else { &*name };
            Names {
                samples: tables.text(&samples),
                samples_unit: tables.text("count"),
                weight: tables.text(weight),
                weight_unit: tables.text(if is_clock { "nanoseconds" } else { "count" }),
            }
        };
        Self { sources: sources.iter().map(|(slot, it)| (*slot, names(it))).collect(), period }
    }

    /// How many values a sample has.
    pub(super) fn len(&self) -> usize {
        2 * self.sources.len()
    }

    /// Where those of a source begin.
    pub(super) fn of_slot(&self, slot: usize) -> usize {
        2 * self.sources.range(..slot).count()
    }

    /// Their types, as they are written.
    pub(super) fn types(&self, tables: &Finished) -> Vec<ValueType> {
        let of_source = |it: &Names| {
            [(it.samples, it.samples_unit), (it.weight, it.weight_unit)].map(|(name, unit)| {
                ValueType { r#type: tables.text(name), unit: tables.text(unit) }
            })
        };
        self.sources.values().flat_map(of_source).collect()
    }

    /// How much of what the first source counts lies between two of its samples.
    pub(super) fn period(&self) -> i64 {
        i64::try_from(self.period).unwrap_or(i64::MAX)
    }
}

/// What a sample stands for in the mean, where the kernel adapts the period.
fn mean(profile: &Profile, slot: usize) -> u64 {
    let of_slot = profile.entries().filter(|it| it.source.slot == slot);
    let (count, value) = of_slot.fold((0_u64, 0_u64), |(count, value), it| {
        (count.saturating_add(it.count), value.saturating_add(it.value))
    });
    value.checked_div(count).unwrap_or(0)
}
