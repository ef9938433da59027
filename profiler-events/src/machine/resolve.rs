//! From the tree to what the kernel needs.

use super::{
    Attr, Breakpoint, Machine, Probe, ResolveError, Set, files,
    pmu::Pmu,
    terms::Terms,
    tracefs::{Tracefs, Tracepoint},
};
use crate::{
    abi,
    syntax::{Access, Event, Events, Group, Item, Place, Precise, What},
};

/// What events are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be told when they fire.
    Sample,
    /// To know how many there were.
    Count,
}

impl Machine {
    /// What to open for these events, in the order in which they were named.
    ///
    /// An event of which there are several, as of each kind of CPU, or for a pattern, is several sets; in
    /// a group, it is several events, or one in each of several groups.
    pub fn resolve(&self, events: &Events, purpose: Purpose) -> Result<Vec<Set>, ResolveError> {
        let mut sets = Vec::new();
        for item in &events.0 {
            match item {
                Item::Event(event) => {
                    let attrs = self.event(event, purpose)?.into_iter();
                    sets.extend(attrs.map(|attr| Set { name: None, attrs: vec![attr] }));
                }
                Item::Group(group) => sets.extend(self.group(group, purpose)?),
            }
        }
        Ok(sets)
    }

    /// The group once for each PMU that its events are on.
    fn group(&self, group: &Group, purpose: Purpose) -> Result<Vec<Set>, ResolveError> {
        let mut members = Vec::new();
        for (nth, event) in group.events.iter().enumerate() {
            let of_group = if nth == 0 { group.modifiers } else { group.modifiers.of_follower() };
            // The parser has refused what is too precise.
            let modifiers = event.modifiers.and(of_group).unwrap_or(event.modifiers);
            members.push(self.event(&Event { modifiers, ..event.clone() }, purpose)?);
        }
        let mut pmus: Vec<&str> = Vec::new();
        for pmu in members.iter().flatten().filter_map(own_pmu) {
            if !pmus.contains(&pmu) {
                pmus.push(pmu);
            }
        }
        let name = &group.name;
        if pmus.len() < 2 {
            return Ok(vec![Set { name: name.clone(), attrs: members.concat() }]);
        }
        let sets = pmus.iter().map(|pmu| {
            let attrs = on_pmu(group, &members, pmu)?;
            Ok(Set { name: name.clone(), attrs })
        });
        sets.collect()
    }

    /// What the event is: one for each PMU, or for each that a pattern matches.
    fn event(&self, event: &Event, purpose: Purpose) -> Result<Vec<Attr>, ResolveError> {
        let each = self.each(event)?;
        let are_several = each.len() > 1;
        let is_pattern_of_pmus = matches!(event.what, What::Pmu(_));
        let mut attrs = Vec::new();
        let mut refused = None;
        for (one, pmu) in &each {
            let shown = if are_several { one } else { event }.to_string();
            match self.attr(one, pmu.as_ref(), shown, purpose) {
                Ok(attr) => attrs.push(attr),
                // Not all that match have to have the event.
                Err(error) if is_pattern_of_pmus => refused = refused.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        match refused {
            Some(error) if attrs.is_empty() => Err(error),
            _ => Ok(attrs),
        }
    }

    /// One event that is on one PMU, `shown` so in messages.
    fn attr(
        &self,
        event: &Event,
        pmu: Option<&Pmu>,
        shown: String,
        purpose: Purpose,
    ) -> Result<Attr, ResolveError> {
        let terms = Terms::of(event)?;
        let mut attr = match (&event.what, pmu) {
            (What::Pmu(_), Some(pmu)) => self.of_pmu(pmu, &terms)?,
            _ => self.of_kernel(event, &terms)?,
        };
        if let Some(pmu) = pmu {
            attr.pmu = Some(pmu.name.clone());
            attr.cpus = pmu.cpus()?;
            if attr.cpus.as_ref().is_some_and(String::is_empty) {
                return Err(ResolveError::NoCpus { event: shown, pmu: pmu.name.clone() });
            }
            attr.counting_only = pmu.counting_only();
            self.check_precision(event, &shown, pmu)?;
        }
        if let What::Generic(generic) = &event.what {
            attr.counting_only = attr.counting_only.or(generic.counting_only());
        }
        attr.modify(event.modifiers);
        attr.rate = terms.rate;
        match (purpose, attr.counting_only, attr.rate) {
            (Purpose::Sample, Some(why), _) => {
                return Err(ResolveError::CountingOnly { event: shown, why });
            }
            (Purpose::Count, _, Some(_)) => {
                return Err(ResolveError::RateOfCount { event: shown });
            }
            _ => {}
        }
        attr.name = terms.name.unwrap_or(shown);
        Ok(attr)
    }

    /// What the PMU knows by its own terms.
    fn of_pmu(&self, pmu: &Pmu, terms: &Terms<'_>) -> Result<Attr, ResolveError> {
        if ["kprobe", "uprobe"].contains(&pmu.name.as_str()) {
            return Err(ResolveError::NoPlace { pmu: pmu.name.clone() });
        }
        let core = self.core_pmus()?;
        let is_core = core.iter().any(|it| it.name == pmu.name);
        let mut attr = Attr::new(pmu.kind, 0);
        terms.apply_fields(pmu, is_core, core.len() > 1, &mut attr)?;
        Ok(attr)
    }

    /// What has the same type on all machines, or is the kernel's own.
    fn of_kernel(&self, event: &Event, terms: &Terms<'_>) -> Result<Attr, ResolveError> {
        let (mut attr, has_registers) = match &event.what {
            What::Generic(generic) => (Attr::new(generic.kind, generic.config), true),
            What::Numeric { kind, config } => (Attr::new(*kind, *config), true),
            What::Cache(cache) => (Attr::new(abi::PERF_TYPE_HW_CACHE, cache.config()), true),
            What::Raw(config) => (Attr::new(abi::PERF_TYPE_RAW, *config), true),
            What::Tracepoint { system, name } => {
                let tracepoint = Tracepoint { system: system.clone(), name: name.clone() };
                let id = Tracefs::find(&self.root)?.id(&tracepoint)?;
                (Attr::new(abi::PERF_TYPE_TRACEPOINT, id), false)
            }
            What::Breakpoint { address, length, access } => {
                let breakpoint = Some(breakpoint(*address, *length, *access));
                (Attr { breakpoint, ..Attr::new(abi::PERF_TYPE_BREAKPOINT, 0) }, false)
            }
            What::Kprobe { place, returns } => {
                (self.probe("kprobe", None, place, *returns)?, false)
            }
            What::Uprobe { path, place, returns } => {
                (self.probe("uprobe", Some(path), place, *returns)?, false)
            }
            What::Name(_) | What::Pmu(_) => return Err(self.unknown(event)),
        };
        terms.apply_registers(&event.what.to_string(), has_registers, &mut attr)?;
        Ok(attr)
    }

    fn probe(
        &self,
        pmu: &'static str,
        path: Option<&String>,
        place: &Place,
        returns: bool,
    ) -> Result<Attr, ResolveError> {
        if !self.pmu_names()?.iter().any(|it| it == pmu) {
            return Err(ResolveError::NoProbes { pmu });
        }
        let pmu = self.pmu(pmu)?;
        let mut attr = Attr::new(pmu.kind, 0);
        if returns {
            let field = pmu.field("retprobe")?.ok_or_else(|| {
                files::malformed(&self.devices.join(&pmu.name), "it has no format/retprobe")
            })?;
            let register = attr.register(field.register);
            *register = field.put(1, *register).unwrap_or(*register);
        }
        attr.probe = Some(Probe { path: path.cloned(), place: place.clone(), returns });
        Ok(attr)
    }

    fn check_precision(&self, event: &Event, shown: &str, pmu: &Pmu) -> Result<(), ResolveError> {
        let Precise::Level(asked) = event.modifiers.precise else { return Ok(()) };
        // AMD's kernel passes what is precise on to this PMU.
        if asked == 0 || self.devices.join("ibs_op").exists() {
            return Ok(());
        }
        match pmu.max_precise()? {
            Some(most) if asked > most => Err(ResolveError::TooPrecise {
                event: shown.to_owned(),
                pmu: pmu.name.clone(),
                asked,
                most,
            }),
            _ => Ok(()),
        }
    }
}

/// The PMU that an event can't leave: the kernel's own PMUs can be in a group with any other.
fn own_pmu(attr: &Attr) -> Option<&str> {
    let pmu = attr.pmu.as_deref()?;
    let is_kernels =
        ["software", "tracepoint", "breakpoint", "kprobe", "uprobe", "msr"].contains(&pmu);
    (!is_kernels).then_some(pmu)
}

/// The group's events on one of its PMUs. Those of the kernel are counted on the CPUs of that PMU.
fn on_pmu(group: &Group, members: &[Vec<Attr>], pmu: &str) -> Result<Vec<Attr>, ResolveError> {
    let mut attrs: Vec<Attr> = Vec::new();
    for (event, of_event) in group.events.iter().zip(members) {
        let there = of_event.iter().filter(|it| own_pmu(it).is_none_or(|own| own == pmu));
        let before = attrs.len();
        attrs.extend(there.cloned());
        if attrs.len() == before {
            return Err(ResolveError::MixedGroup {
                group: group.to_string(),
                event: event.to_string(),
                pmu: pmu.to_owned(),
            });
        }
    }
    let cpus = attrs.iter().find(|it| own_pmu(it).is_some()).and_then(|it| it.cpus.clone());
    for attr in attrs.iter_mut().filter(|it| it.cpus.is_none()) {
        attr.cpus.clone_from(&cpus);
    }
    Ok(attrs)
}

/// As `perf` has it, code is watched by the word, and data by four bytes.
fn breakpoint(address: u64, length: Option<u8>, access: Access) -> Breakpoint {
    let bits = [
        (access.read, abi::HW_BREAKPOINT_R),
        (access.write, abi::HW_BREAKPOINT_W),
        (access.execute, abi::HW_BREAKPOINT_X),
    ];
    let kind = bits.iter().filter(|it| it.0).fold(0, |kind, (_, bit)| kind | bit);
    let default = if access.execute { size_of::<usize>() as u64 } else { 4 };
    Breakpoint { kind, address, length: length.map_or(default, u64::from) }
}
