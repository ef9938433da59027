//! The events to sample.

use profiler_common::{hit_filter::MAX_TEXTS, settings::MAX_SOURCES};
use profiler_events::{
    Attr, Events, Exclude, Rate, Text,
    abi::{PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT},
    syntax::{Item, Precise, filter::Filter},
};

use super::{Error, Machine, Result};
use crate::{
    bpf::hit_filter::HitFilter,
    cli::{SamplingArgs, TypedFilter},
    filter::comm,
    perf::{
        config::{CountedEvent, EventChoice},
        event::Event,
        trace::{MAX_POINTS, Site, Traced},
    },
};

/// The default event, or those that were named.
pub(super) fn resolve(args: &SamplingArgs, machine: &Machine) -> Result<Vec<EventChoice>> {
    let SamplingArgs { events: named, hit_filters, frequency, .. } = args;
    let misplaced = |it: &&TypedFilter| it.follows.is_none_or(|event| event >= named.len());
    if let Some(it) = hit_filters.0.iter().find(misplaced) {
        let why =
            "it is for the tracepoint before it: -e sched:sched_switch --filter 'prev_prio < 100'";
        return Err(Error::Usage(format!("--filter '{}': {why}", it.filter)));
    }
    if named.is_empty() {
        return Ok(vec![EventChoice::Counted(CountedEvent::Default)]);
    }
    let mut events: Vec<EventChoice> = Vec::new();
    let mut add = |event: EventChoice| {
        if events.iter().any(|it| is_same(it, &event)) {
            return Err(Error::Usage(format!("-e {event}: this event was given twice")));
        }
        events.push(event);
        Ok(())
    };
    // A filter is for the last event of its option.
    let filters = |option: usize, is_last: bool| {
        let own = hit_filters.0.iter().filter(move |it| is_last && it.follows == Some(option));
        own.map(|it| it.filter.clone()).collect::<Vec<_>>()
    };
    let items = named.iter().enumerate().flat_map(|(option, text)| {
        let last = text.0.len();
        (1..).zip(&text.0).map(move |(nth, item)| (item, filters(option, nth == last)))
    });
    for (item, filters) in items {
        let text = Events(vec![item.clone()]);
        let sets = (machine.find_events)(&text);
        let sets = sets.map_err(|why| Error::Usage(format!("-e {text}: {why}")))?;
        if sets.iter().any(|set| set.attrs.len() > 1) {
            let why = "events of a group are counted together, and sampled one by one: leave the braces out";
            return Err(Error::Usage(format!("-e {text}: {why}")));
        }
        let attrs: Vec<Attr> = sets.into_iter().flat_map(|set| set.attrs).collect();
        if attrs.iter().any(is_traced) {
            let filter = hit_filter(item, filters, machine)?;
            add(EventChoice::Traced(Traced { filter, ..traced(item, attrs)? }))?;
        } else if let Some(filter) = filters.first() {
            let why = "only hits of tracepoints have fields";
            return Err(Error::Usage(format!("--filter '{filter}': {why}, and {text} has none")));
        } else {
            for attr in attrs {
                add(EventChoice::Counted(CountedEvent::Named(check(attr, machine)?)))?;
            }
        }
    }
    if events.len() > MAX_SOURCES {
        let names: Vec<String> = events.iter().map(ToString::to_string).collect();
        let (most, asked, names) = (MAX_SOURCES, events.len(), names.join(", "));
        let why = format!("-e: at most {most} events at a time, not {asked}: {names}");
        return Err(Error::Usage(why));
    }
    let filters = events.iter().filter_map(|it| match it {
        EventChoice::Traced(traced) => traced.filter.as_ref(),
        EventChoice::Counted(_) => None,
    });
    let texts: usize = filters.map(|it| it.texts.len()).sum();
    if texts > MAX_TEXTS as usize {
        let why = format!("{texts} texts are compared, and at most {MAX_TEXTS} can be");
        return Err(Error::Usage(format!("--filter: {why}")));
    }
    if frequency.is_some() && events.iter().all(|it| matches!(it, EventChoice::Traced(_))) {
        let why = "tracepoints and probes have no frequency: every hit is a sample, or with -c N each Nth";
        return Err(Error::Usage(format!("-F: {why}")));
    }
    Ok(events)
}

fn is_same(one: &EventChoice, other: &EventChoice) -> bool {
    use CountedEvent::Named;
    match (one, other) {
        (EventChoice::Counted(Named(one)), EventChoice::Counted(Named(other))) => {
            one.is_same(other)
        }
        (EventChoice::Traced(one), EventChoice::Traced(other)) => one.is_same(other),
        _ => false,
    }
}

/// Whether it is hit, and does not count.
fn is_traced(attr: &Attr) -> bool {
    attr.kind == PERF_TYPE_TRACEPOINT || attr.probe.is_some()
}

/// A probe, a tracepoint, or all that a pattern matches as one source.
fn traced(item: &Item, points: Vec<Attr>) -> Result<Traced> {
    let name = match points.first() {
        Some(first) if points.iter().all(|it| it.name == first.name) => first.name.clone(),
        _ => item.to_string(),
    };
    let refuse = |why: &str| Err(Error::Usage(format!("-e {name}: {why}")));
    let is_modified = |it: &Attr| {
        it.exclude != Exclude::default()
            || it.precise != Precise::default()
            || it.pinned
            || it.exclusive
    };
    if points.iter().any(is_modified) {
        return refuse(
            "where it is hit is given by the place, and not by modifiers: leave them out",
        );
    }
    let period = match points.first().and_then(|it| it.rate) {
        None => None,
        Some(Rate::Period(period)) => Some(period),
        Some(Rate::Frequency(_)) => {
            return refuse(
                "tracepoints and probes have no frequency: every hit is a sample, or with period=N \
                 each Nth",
            );
        }
    };
    if points.len() > MAX_POINTS {
        let found = points.len();
        return refuse(&format!(
            "the pattern matches {found} tracepoints, and at most {MAX_POINTS} can be sampled as one event"
        ));
    }
    let sites = points.into_iter().map(Site::find).collect::<Result<_>>()?;
    Ok(Traced { name, sites, period, filter: None })
}

/// What the filters of an event mean together.
fn hit_filter(item: &Item, filters: Vec<Filter>, machine: &Machine) -> Result<Option<HitFilter>> {
    let filter = match filters.as_slice() {
        [] => return Ok(None),
        [one] => one.clone(),
        _ => Filter::All(filters),
    };
    let refused = |why: String| Error::Usage(format!("--filter '{filter}': {why}"));
    let Item::Event(event) = item else {
        return Err(refused("it is for a single tracepoint, and not for a group".into()));
    };
    let found = (machine.find_hit_filter)(event, &filter);
    let found = found.map_err(|why| refused(why.to_string()))?;
    let texts = found.texts.iter().map(|text| match text {
        Text::Exactly(text) => comm::text_table(text, false),
        Text::Like(pattern) => comm::text_table(pattern, true),
    });
    let texts = texts.collect::<Result<Vec<_>, _>>().map_err(refused)?;
    Ok(Some(HitFilter { tests: found.tests, texts }))
}

/// Refuses what can't be sampled.
fn check(attr: Attr, machine: &Machine) -> Result<Event> {
    let Attr { kind, exclude, precise, .. } = &attr;
    let is_of_side = exclude.host || exclude.guest && *precise == Precise::default();
    let why = if *kind == PERF_TYPE_SOFTWARE && is_of_side {
        "the kernel's own events are always those of the host: leave G and H out"
    } else if attr.breakpoint.is_some() && !machine.steps_over_breakpoints {
        "before Linux 6.6, a breakpoint with an eBPF program stops the program that hits it on aarch64"
    } else {
        return Ok(Event::new(attr));
    };
    Err(Error::Usage(format!("-e {}: {why}", attr.name)))
}
