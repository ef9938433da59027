//! From one event that was typed to one for each PMU and tracepoint that it means.

use super::{
    Machine, ResolveError,
    pmu::Pmu,
    tracefs::{Tracefs, Tracepoint},
};
use crate::{
    cache::CacheEvent,
    generic::Generic,
    glob,
    near::near,
    syntax::{Event, Term, What},
};

/// An event as it would be typed for one PMU alone, and that PMU, where it has one.
pub(super) type OnOne = (Event, Option<Pmu>);

impl Machine {
    /// The event as it would be typed for each PMU alone, or for each tracepoint. There is at least one.
    pub(super) fn each(&self, event: &Event) -> Result<Vec<OnOne>, ResolveError> {
        match &event.what {
            What::Generic(generic) if generic.is_hardware() => self.on_core(event),
            What::Cache(_) | What::Raw(_) => self.on_core(event),
            What::Name(name) => self.by_name(event, name),
            What::Pmu(name) => {
                let pmus = self.matching(name)?;
                if pmus.is_empty() { self.by_name(event, name) } else { Ok(on(pmus, event, None)) }
            }
            What::Tracepoint { system, name } => {
                let found = Tracefs::find(&self.root)?.matching(system, name)?;
                let each = found.into_iter().map(|Tracepoint { system, name }| {
                    let what = What::Tracepoint { system, name };
                    (Event { what, ..event.clone() }, None)
                });
                Ok(each.collect())
            }
            _ => Ok(vec![(event.clone(), None)]),
        }
    }

    /// An event that every CPU has: as it is, or once for each kind of CPU.
    fn on_core(&self, event: &Event) -> Result<Vec<OnOne>, ResolveError> {
        let mut core = self.core_pmus()?;
        if core.len() < 2 {
            return Ok(vec![(event.clone(), core.pop())]);
        }
        // A kind of CPU of which none is online has nothing to be opened on.
        let mut online = Vec::new();
        for pmu in core {
            if pmu.cpus()?.is_none_or(|it| !it.is_empty()) {
                online.push(pmu);
            }
        }
        if online.is_empty() {
            return Ok(vec![(event.clone(), None)]);
        }
        Ok(on(online, event, Some(&event.what.to_string())))
    }

    /// The event of that name on each PMU that has it.
    fn by_name(&self, event: &Event, name: &str) -> Result<Vec<OnOne>, ResolveError> {
        let mut pmus = Vec::new();
        for pmu in self.pmu_names()? {
            let pmu = self.pmu(&pmu)?;
            if pmu.alias(name)?.is_some() {
                pmus.push(pmu);
            }
        }
        if pmus.is_empty() { Err(self.unknown(event)) } else { Ok(on(pmus, event, Some(name))) }
    }

    /// The PMUs that a name means: that one, or those that it matches as a pattern or the beginning of
    /// their names, with or without `uncore_`.
    fn matching(&self, name: &str) -> Result<Vec<Pmu>, ResolveError> {
        let names = self.pmu_names()?;
        if names.iter().any(|it| it == name) {
            return Ok(vec![self.pmu(name)?]);
        }
        let pattern = format!("{name}*");
        let is_meant = |known: &str| {
            let short = known.strip_prefix("uncore_").unwrap_or(known);
            glob::matches(&pattern, known) || glob::matches(&pattern, short)
        };
        names.iter().filter(|it| is_meant(it)).map(|it| self.pmu(it)).collect()
    }

    /// The error for a name that nothing has.
    pub(super) fn unknown(&self, event: &Event) -> ResolveError {
        // What can't be read now has been no candidate before, either.
        let pmus = self.pmu_names().unwrap_or_default();
        let name = event.what.to_string();
        if matches!(event.what, What::Pmu(_)) {
            return ResolveError::UnknownPmu { near: near(&name, pmus), name };
        }
        let of_pmus = pmus.iter().filter_map(|it| self.pmu(it).ok()?.alias_names().ok()).flatten();
        let generic = Generic::all().flat_map(|it| it.names()).map(str::to_owned);
        let cache = CacheEvent::all().map(|it| it.to_string());
        let near = near(&name, generic.chain(cache).chain(of_pmus));
        ResolveError::UnknownEvent { name, near }
    }
}

fn on(pmus: Vec<Pmu>, event: &Event, name: Option<&str>) -> Vec<OnOne> {
    pmus.into_iter().map(|pmu| (on_one(event, &pmu, name), Some(pmu))).collect()
}

/// The event as it would be typed for this PMU alone.
fn on_one(event: &Event, pmu: &Pmu, name: Option<&str>) -> Event {
    let own = name.map(|name| Term { name: name.to_owned(), value: None });
    let terms = own.into_iter().chain(event.terms.iter().cloned()).collect();
    Event { what: What::Pmu(pmu.name.clone()), terms, modifiers: event.modifiers }
}
