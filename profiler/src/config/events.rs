//! The events to sample.

use profiler_common::settings::MAX_SOURCES;
use profiler_events::{
    Attr, Events,
    abi::{PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT},
    syntax::{self, Item, Precise, What},
};

use super::{Error, Machine, Result};
use crate::perf::{config::EventChoice, event::Event};

/// Why tracepoints and probes are refused.
pub(crate) const TRACED: &str = "tracepoints and probes can't be sampled; hardware, cache, raw, PMU and software events and \
                      breakpoints can";

/// The default event, or those that were named.
pub(super) fn resolve(named: &[Events], machine: &Machine) -> Result<Vec<EventChoice>> {
    if named.is_empty() {
        return Ok(vec![EventChoice::Default]);
    }
    let mut events: Vec<Event> = Vec::new();
    for text in named {
        refuse_traced(text)?;
        let sets = (machine.find_events)(text);
        for set in sets.map_err(|why| Error::Usage(format!("-e {text}: {why}")))? {
            if set.attrs.len() > 1 {
                let why = "events of a group are counted together, and sampled one by one: leave the braces out";
                return Err(Error::Usage(format!("-e {text}: {why}")));
            }
            for attr in set.attrs {
                let event = check(attr, machine)?;
                if events.iter().any(|it| it.is_same(&event)) {
                    return Err(Error::Usage(format!("-e {event}: this event was given twice")));
                }
                events.push(event);
            }
        }
    }
    if events.len() > MAX_SOURCES {
        let names: Vec<String> = events.iter().map(ToString::to_string).collect();
        let (most, asked, names) = (MAX_SOURCES, events.len(), names.join(", "));
        let why = format!("-e: at most {most} events at a time, not {asked}: {names}");
        return Err(Error::Usage(why));
    }
    Ok(events.into_iter().map(EventChoice::Named).collect())
}

/// Refuses what the eBPF program is of the wrong type for, before anything is looked for.
fn refuse_traced(events: &Events) -> Result<()> {
    let is_traced = |event: &syntax::Event| {
        matches!(event.what, What::Tracepoint { .. } | What::Kprobe { .. } | What::Uprobe { .. })
    };
    let all = events.0.iter().flat_map(|item| match item {
        Item::Event(event) => std::slice::from_ref(event),
        Item::Group(group) => &group.events,
    });
    match all.into_iter().find(|event| is_traced(event)) {
        Some(event) => Err(Error::Usage(format!("-e {event}: {TRACED}"))),
        None => Ok(()),
    }
}

/// Refuses what can't be sampled.
fn check(attr: Attr, machine: &Machine) -> Result<Event> {
    let Attr { kind, exclude, precise, .. } = &attr;
    let is_of_side = exclude.host || exclude.guest && *precise == Precise::default();
    let why = if *kind == PERF_TYPE_TRACEPOINT || attr.probe.is_some() {
        TRACED
    } else if *kind == PERF_TYPE_SOFTWARE && is_of_side {
        "the kernel's own events are always those of the host: leave G and H out"
    } else if attr.breakpoint.is_some() && !machine.steps_over_breakpoints {
        "before Linux 6.6, a breakpoint with an eBPF program stops the program that hits it on aarch64"
    } else {
        return Ok(Event::new(attr));
    };
    Err(Error::Usage(format!("-e {}: {why}", attr.name)))
}
