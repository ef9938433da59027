//! What terms make of an event.

use super::{
    attr::{Attr, Rate},
    error::ResolveError,
    field::Register,
    pmu::{Alias, Pmu},
};
use crate::{
    abi::{PERF_PMU_TYPE_SHIFT, PERF_TYPE_HW_CACHE},
    cache::CacheEvent,
    generic::Generic,
    near::near,
    syntax::{Event, Term, Value, raw},
};

/// The terms that every event takes.
const COMMON: [&str; 3] = ["name", "period", "freq"];

/// The terms that set a whole register, beside `config`.
const BESIDE_CONFIG: [&str; 3] = ["config1", "config2", "config3"];

/// Those of `perf` that ask for what can't be set for one event.
const UNSUPPORTED: [&str; 17] = [
    "branch_type",
    "time",
    "call-graph",
    "stack-size",
    "max-stack",
    "nr",
    "inherit",
    "no-inherit",
    "overwrite",
    "no-overwrite",
    "percore",
    "aux-output",
    "aux-action",
    "aux-sample-size",
    "metric-id",
    "cpu",
    "ratio-to-prev",
];

/// The terms of an event: those that every event takes, and the others.
pub(super) struct Terms<'a> {
    pub(super) name: Option<String>,
    pub(super) rate: Option<Rate>,
    /// What says what is counted.
    pub(super) rest: Vec<&'a Term>,
}

impl<'a> Terms<'a> {
    pub(super) fn of(event: &'a Event) -> Result<Self, ResolveError> {
        let mut terms = Self { name: None, rate: None, rest: Vec::new() };
        for term in &event.terms {
            match term.name.as_str() {
                "name" => terms.name = Some(text(term)?),
                "period" => terms.set_rate(Rate::Period(positive(term)?), event)?,
                "freq" => terms.set_rate(Rate::Frequency(positive(term)?), event)?,
                _ => terms.rest.push(term),
            }
        }
        Ok(terms)
    }

    fn set_rate(&mut self, rate: Rate, event: &Event) -> Result<(), ResolveError> {
        match self.rate.replace(rate) {
            None => Ok(()),
            Some(_) => Err(ResolveError::TwoRates { event: event.to_string() }),
        }
    }

    /// Takes the registers beside `config` where there are no fields but they count; refuses all others.
    pub(super) fn apply_registers(
        &self,
        of: &str,
        has_registers: bool,
        attr: &mut Attr,
    ) -> Result<(), ResolveError> {
        let beside = if has_registers { BESIDE_CONFIG.as_slice() } else { &[] };
        for term in &self.rest {
            match Register::named(&term.name).filter(|_| beside.contains(&term.name.as_str())) {
                Some(register) => *attr.register(register) = number(term)?,
                None => return Err(unknown(of, term, COMMON.iter().chain(beside).copied(), [])),
            }
        }
        Ok(())
    }

    /// Takes what the PMU knows: its events first, so that other terms can change what these set.
    ///
    /// `is_core`: whether this counts what a CPU does, and `are_several`: whether CPUs are of several kinds.
    pub(super) fn apply_fields(
        &self,
        pmu: &Pmu,
        is_core: bool,
        are_several: bool,
        attr: &mut Attr,
    ) -> Result<(), ResolveError> {
        let mut rest = Vec::new();
        for &term in &self.rest {
            let alias = if term.value.is_none() { pmu.alias(&term.name)? } else { None };
            match alias {
                Some(alias) => self.apply_alias(&term.name, alias, pmu, attr)?,
                None => rest.push(term),
            }
        }
        for &term in &rest {
            if apply_field(term, pmu, attr)? {
                continue;
            }
            let whole = (is_core && term.value.is_none()).then(|| generic(&term.name)).flatten();
            let Some((kind, config)) = whole else { return Err(unknown_of_pmu(pmu, term)) };
            let mut others = self.rest.iter().filter(|it| it.name != term.name);
            if !others.all(|it| BESIDE_CONFIG.contains(&it.name.as_str())) {
                return Err(ResolveError::WholeEvent { event: term.name.clone() });
            }
            let of_pmu = if are_several { u64::from(pmu.kind) } else { 0 };
            (attr.kind, attr.config) = (kind, config | of_pmu << PERF_PMU_TYPE_SHIFT);
        }
        Ok(())
    }

    fn apply_alias(
        &self,
        name: &str,
        alias: Alias,
        pmu: &Pmu,
        attr: &mut Attr,
    ) -> Result<(), ResolveError> {
        for term in &alias.terms {
            if is_parameter(term) {
                if !self.rest.iter().any(|it| it.name == term.name && it.value.is_some()) {
                    let (event, term) = (name.to_owned(), term.name.clone());
                    return Err(ResolveError::MissingParameter { event, term });
                }
            } else if !apply_field(term, pmu, attr)? {
                return Err(unknown_of_pmu(pmu, term));
            }
        }
        attr.scale = alias.scale.or(attr.scale);
        attr.unit = alias.unit.or(attr.unit.take());
        Ok(())
    }
}

/// Whether an event of a PMU leaves the value to whoever names it.
pub(super) fn is_parameter(term: &Term) -> bool {
    matches!(&term.value, Some(Value::Text(text)) if text == "?")
}

/// Sets a field or a register; false if the PMU has none of that name.
fn apply_field(term: &Term, pmu: &Pmu, attr: &mut Attr) -> Result<bool, ResolveError> {
    if let Some(field) = pmu.field(&term.name)? {
        let bits = field.width();
        if term.value.is_none() && bits > 1 {
            return Err(ResolveError::NoValue { term: term.name.clone(), bits });
        }
        let register = attr.register(field.register);
        *register = field.put(number(term)?, *register).ok_or_else(|| ResolveError::TooWide {
            term: term.to_string(),
            field: term.name.clone(),
            bits,
            largest: field.largest(),
        })?;
    } else if let Some(register) = Register::named(&term.name) {
        *attr.register(register) = number(term)?;
    } else if let Some(config) = raw(&term.name).filter(|_| term.value.is_none()) {
        attr.config = config;
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// Type and config of an event that has the same name everywhere, and that PMUs of CPUs count.
fn generic(name: &str) -> Option<(u32, u64)> {
    let hardware = Generic::named(name).filter(Generic::is_hardware);
    let cache = || CacheEvent::named(name)?.ok();
    let hardware = hardware.map(|it| (it.kind, it.config));
    hardware.or_else(|| cache().map(|it| (PERF_TYPE_HW_CACHE, it.config())))
}

/// The value as a number: 1 where there is none.
fn number(term: &Term) -> Result<u64, ResolveError> {
    match term.value {
        None => Ok(1),
        Some(Value::Decimal(number) | Value::Hex(number)) => Ok(number),
        Some(Value::Text(_)) => Err(bad_value(term, "a number")),
    }
}

fn positive(term: &Term) -> Result<u64, ResolveError> {
    let number = if term.value.is_some() { number(term)? } else { 0 };
    if number > 0 { Ok(number) } else { Err(bad_value(term, "a number larger than 0")) }
}

fn text(term: &Term) -> Result<String, ResolveError> {
    match &term.value {
        Some(Value::Text(text)) => Ok(text.clone()),
        Some(number) => Ok(number.to_string()),
        None => Err(bad_value(term, "a text, as in `name=x`")),
    }
}

fn bad_value(term: &Term, expected: &'static str) -> ResolveError {
    ResolveError::BadValue { term: term.to_string(), expected }
}

fn unknown_of_pmu(pmu: &Pmu, term: &Term) -> ResolveError {
    // An error about a term is no place for another about the folder.
    let fields = pmu.field_names().unwrap_or_default();
    let known =
        fields.iter().map(String::as_str).chain(["config"]).chain(BESIDE_CONFIG).chain(COMMON);
    unknown(&pmu.name, term, known, pmu.alias_names().unwrap_or_default())
}

fn unknown<'a>(
    of: &str,
    term: &Term,
    known: impl Iterator<Item = &'a str>,
    events: impl IntoIterator<Item = String>,
) -> ResolveError {
    if UNSUPPORTED.contains(&term.name.as_str()) {
        return ResolveError::UnsupportedTerm { term: term.name.clone(), supported: &COMMON };
    }
    let known: Vec<_> = known.map(str::to_owned).collect();
    let near = near(&term.name, known.iter().cloned().chain(events));
    ResolveError::UnknownTerm { of: of.to_owned(), term: term.name.clone(), near, known }
}
