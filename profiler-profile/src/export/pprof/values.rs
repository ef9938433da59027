//! What the values of a sample are: of each source how many samples, and what these stand for.

use crate::{
    export::{
        about::{About, Sampled},
        tables::{Finished, Tables},
    },
    import,
    ledger::SourceAccount,
    printable::printable,
    profile::Profile,
    profile_proto::ValueType,
};

/// The values, in their order.
pub(super) struct Values {
    /// Where those of a source begin, and how many of the count and the value it leaves out.
    sources: Vec<(usize, usize)>,
    types: Vec<Type>,
    period_type: Option<Type>,
    period: u64,
}

/// A name and a unit, by the numbers of their texts.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    unit: u32,
}

impl Type {
    fn of(it: &import::ValueType, tables: &mut Tables) -> Self {
        Self { name: tables.text(&printable(&it.name)), unit: tables.text(&printable(&it.unit)) }
    }

    fn written(self, tables: &Finished) -> ValueType {
        ValueType { r#type: tables.text(self.name), unit: tables.text(self.unit) }
    }
}

impl Values {
    /// Those of a profile.
    pub(super) fn of(about: &About<'_>, profile: &Profile, tables: &mut Tables) -> Self {
        let (mut sources, mut types) = (Vec::new(), Vec::new());
        for source in &about.sources {
            sources.push((usize::from(source.counts.is_none()), types.len()));
            types.extend(source.columns().map(|it| Type::of(it, tables)));
        }
        let period = match (&about.period, about.ledger) {
            (Some((what, period)), _) => Some((what, *period)),
            (None, Some(ledger)) => {
                let first = about.sources.first().zip(ledger.sources.first());
                first.map(|(it, account)| (&it.values, period(it, account, profile)))
            }
            (None, None) => None,
        };
        let period_type = period.map(|(what, _)| Type::of(what, tables));
        Self { sources, types, period_type, period: period.map_or(0, |(_, period)| period) }
    }

    /// How many values a sample has.
    pub(super) fn len(&self) -> usize {
        self.types.len()
    }

    /// How many of the count and the value a source leaves out, and where the others begin.
    pub(super) fn of_slot(&self, slot: usize) -> (usize, usize) {
        self.sources.get(slot).copied().unwrap_or((0, self.types.len()))
    }

    /// Their types, as they are written.
    pub(super) fn types(&self, tables: &Finished) -> Vec<ValueType> {
        self.types.iter().map(|it| it.written(tables)).collect()
    }

    /// What the first source counts.
    pub(super) fn period_type(&self, tables: &Finished) -> Option<ValueType> {
        self.period_type.map(|it| it.written(tables))
    }

    /// How much of that lies between two of its samples.
    pub(super) fn period(&self) -> i64 {
        i64::try_from(self.period).unwrap_or(i64::MAX)
    }
}

/// How much the first source of a run counts between two samples.
fn period(source: &Sampled, account: &SourceAccount, profile: &Profile) -> u64 {
    match (account.frequency, account.period) {
        (Some(hz), _) if source.is_time() => 1_000_000_000 / hz.max(1),
        (Some(_), _) => mean(profile),
        (None, period) => period.unwrap_or_default(),
    }
}

/// What a sample of the first source stands for in the mean, where the kernel adapts the period.
fn mean(profile: &Profile) -> u64 {
    let of_first = profile.entries().filter(|it| it.source.slot == 0);
    let (count, value) = of_first.fold((0_u64, 0_u64), |(count, value), it| {
        (count.saturating_add(it.count), value.saturating_add(it.value))
    });
    value.checked_div(count).unwrap_or(0)
}
