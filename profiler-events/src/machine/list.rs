//! What events there are.

use std::fmt;

use super::{Machine, ResolveError, pmu::Pmu, terms::is_parameter, tracefs::Tracefs};
use crate::{abi, cache::CacheEvent, generic::Generic, glob};

/// The events of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// By kind, and then by name.
    pub events: Vec<Listed>,
    /// Why there may be more.
    pub missing: Vec<ResolveError>,
}

/// An event that can be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What to type: with words in capitals in place of what is up to the user, and `?` for a value.
    pub name: String,
    /// What kind of event it is.
    pub kind: Kind,
    /// The PMUs that count it, where they are known.
    pub pmus: Vec<String>,
    /// What it counts, or the terms that sysfs has for it.
    pub description: Option<String>,
    /// What its counts are in, if they are not of events.
    pub unit: Option<String>,
    /// Why it can't be sampled, if it can't.
    pub counting_only: Option<&'static str>,
    /// What is needed for it, beside the right to use it.
    pub needs: Vec<Need>,
}

/// What kind of event it is, in the order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Of the processor, with a name that is the same everywhere.
    Hardware,
    /// Of the kernel.
    Software,
    /// Of a cache.
    Cache,
    /// Of a PMU, by its name in sysfs.
    Pmu,
    /// Of a PMU, by the fields that it has, or by number.
    Raw,
    /// An access to memory.
    Breakpoint,
    /// A function of the kernel or of a file.
    Probe,
    /// Of the kernel, by its name in tracefs.
    Tracepoint,
}

/// What an event needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// A value for this field.
    Value(String),
    /// That whole CPUs are counted, not single processes.
    WholeCpus,
    /// That tracefs can be read.
    Tracefs,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hardware => "hardware",
            Self::Software => "software",
            Self::Cache => "cache",
            Self::Pmu => "PMU",
            Self::Raw => "raw",
            Self::Breakpoint => "breakpoint",
            Self::Probe => "probe",
            Self::Tracepoint => "tracepoint",
        })
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(field) => write!(f, "a value for {field}"),
            Self::WholeCpus => f.write_str("whole CPUs"),
            Self::Tracefs => f.write_str("tracefs"),
        }
    }
}

impl Machine {
    /// All events whose names match the pattern, or, if it is a word, have it in them. Empty text is in all.
    ///
    /// The names of generic and cache events are there if the machine has a PMU for them; not every PMU
    /// has all.
    ///
    /// ```
    /// let listing = profiler_events::Machine::here().list("*faults");
    /// let names: Vec<_> = listing.events.iter().map(|it| it.name.as_str()).collect();
    /// assert!(names.contains(&"page-faults"));
    /// ```
    pub fn list(&self, pattern: &str) -> Listing {
        let mut listing = Listing::default();
        if let Err(error) = self.list_pmus(&mut listing) {
            listing.missing.push(error);
        }
        listing.events.extend(Generic::all().filter(|it| !it.is_hardware()).map(generic));
        match self.tracepoints() {
            Ok(found) => listing.events.extend(found),
            Err(error) => listing.missing.push(error),
        }
        listing.events.retain(|it| it.is_meant(pattern));
        listing.events.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        listing
    }

    fn list_pmus(&self, listing: &mut Listing) -> Result<(), ResolveError> {
        let core = self.core_pmus()?;
        if !core.is_empty() {
            let pmus: Vec<_> = core.iter().map(|it| it.name.clone()).collect();
            let hardware = Generic::all().filter(Generic::is_hardware).map(generic);
            let cache = CacheEvent::all()
                .map(|it| Listed::new(it.to_string(), Kind::Cache).described(it.description()));
            let raw = Listed::new("rHEX".into(), Kind::Raw)
                .described("the processor's number for an event, in hexadecimal".into());
            let of_core = hardware.chain(cache).chain([raw]);
            listing.events.extend(of_core.map(|it| Listed { pmus: pmus.clone(), ..it }));
        }
        for name in self.pmu_names()? {
            match self.pmu(&name).and_then(|pmu| of_pmu(&pmu)) {
                Ok(found) => listing.events.extend(found),
                Err(error) => listing.missing.push(error),
            }
        }
        Ok(())
    }

    fn tracepoints(&self) -> Result<Vec<Listed>, ResolveError> {
        let all = Tracefs::find(&self.root)?.all("*", "*")?.into_iter();
        let all = all.map(|it| Listed::new(it.full_name(), Kind::Tracepoint));
        Ok(all.map(|it| Listed { needs: vec![Need::Tracefs], ..it }).collect())
    }
}

/// What a PMU has: its own events, and the form of others.
fn of_pmu(pmu: &Pmu) -> Result<Vec<Listed>, ResolveError> {
    let own = |name: &str, kind, description: &str| Listed {
        pmus: vec![pmu.name.clone()],
        ..Listed::new(name.to_owned(), kind).described(description.to_owned())
    };
    match pmu.name.as_str() {
        "breakpoint" => {
            let access = "accesses to an address: r, w, rw or x";
            return Ok(vec![own("mem:ADDRESS[/LENGTH][:ACCESS]", Kind::Breakpoint, access)]);
        }
        "kprobe" => {
            return Ok(vec![
                own("kprobe:FUNCTION[+OFFSET]", Kind::Probe, "a function of the kernel"),
                own("kretprobe:FUNCTION", Kind::Probe, "the return of a function of the kernel"),
            ]);
        }
        "uprobe" => {
            return Ok(vec![
                own("uprobe:PATH:FUNCTION[+OFFSET]", Kind::Probe, "a function of a file"),
                own("uretprobe:PATH:FUNCTION", Kind::Probe, "the return of a function of a file"),
            ]);
        }
        _ if [abi::PERF_TYPE_SOFTWARE, abi::PERF_TYPE_TRACEPOINT].contains(&pmu.kind) => {
            return Ok(Vec::new());
        }
        _ => {}
    }
    let counting_only = pmu.counting_only();
    let cpus = if pmu.is_shared() { vec![Need::WholeCpus] } else { Vec::new() };
    let mut found = Vec::new();
    for name in pmu.alias_names()? {
        // It may be gone, as when a module is unloaded.
        let Some(alias) = pmu.alias(&name)? else { continue };
        let terms: Vec<_> = alias.terms.iter().map(ToString::to_string).collect();
        let open = alias.terms.iter().filter(|it| is_parameter(it)).map(|it| it.name.clone());
        let open: Vec<_> = open.collect();
        let values: String = open.iter().flat_map(|it| [",", it, "=?"]).collect();
        let typed = format!("{}/{name}{values}/", pmu.name);
        let needs = cpus.iter().cloned().chain(open.into_iter().map(Need::Value)).collect();
        let listed = own(&typed, Kind::Pmu, &terms.join(","));
        found.push(Listed { unit: alias.unit, counting_only, needs, ..listed });
    }
    let fields = pmu.field_names()?;
    if !fields.is_empty() {
        let name = format!("{}/TERM=VALUE,.../", pmu.name);
        let listed = own(&name, Kind::Raw, &format!("terms: {}", fields.join(", ")));
        found.push(Listed { counting_only, needs: cpus, ..listed });
    }
    Ok(found)
}

fn generic(event: Generic) -> Listed {
    let kind = if event.is_hardware() { Kind::Hardware } else { Kind::Software };
    let counting_only = event.counting_only();
    Listed { counting_only, ..Listed::new(event.name.into(), kind) }
        .described(event.description.into())
}

impl Listed {
    fn new(name: String, kind: Kind) -> Self {
        Self {
            name,
            kind,
            pmus: Vec::new(),
            description: None,
            unit: None,
            counting_only: None,
            needs: Vec::new(),
        }
    }

    fn described(self, description: String) -> Self {
        Self { description: Some(description), ..self }
    }

    /// Whether the pattern is for this: by its name, another name of it, or what the PMU calls it.
    fn is_meant(&self, pattern: &str) -> bool {
        let is_meant = |name: &str| {
            if glob::is_pattern(pattern) {
                glob::matches(pattern, name)
            } else {
                name.contains(pattern)
            }
        };
        let others = Generic::named(&self.name).into_iter().flat_map(|it| it.names());
        let in_pmu = self.name.trim_end_matches('/').split_once('/').map(|it| it.1);
        is_meant(&self.name) || in_pmu.is_some_and(is_meant) || others.into_iter().any(is_meant)
    }
}

#[cfg(test)]
mod tests;
