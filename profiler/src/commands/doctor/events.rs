//! What the machine can sample.

use std::io;

use profiler_profile::source::Rate;

use super::{Check, Verdict, bad, ok};
use crate::{
    kernel,
    perf::{event::Event, open::Scope, opening, refusal::is_not_counted},
};

fn first_cpu() -> u32 {
    kernel::cpus("online").ok().and_then(|cpus| cpus.iter().next()).unwrap_or(0)
}

/// Tries the default event and its fallback on the first CPU, as a run would.
pub(super) fn events() -> Vec<Check> {
    let cpu = first_cpu();
    let try_open =
        |event: &Event| opening::try_open(event, Rate::Frequency(99), Scope::Cpu(cpu), |_| ());
    let event = |event: &Event| ok("event", format!("{event} will be sampled"));
    let (cycles, clock) = (Event::cycles(), Event::cpu_clock());
    match try_open(&cycles) {
        Ok(_) => vec![ok("PMU", "counts cycles"), event(&cycles)],
        Err(error) if is_not_counted(&error) => {
            let pmu = bad(
                "PMU",
                Verdict::Warn,
                format!("none ({error})"),
                "in a virtual machine, have the host pass its PMU on",
            );
            let fallback = match try_open(&clock) {
                Ok(_) => event(&clock),
                Err(error) => cannot_open(&error),
            };
            vec![pmu, fallback]
        }
        Err(error) => vec![cannot_open(&error)],
    }
}

fn cannot_open(error: &io::Error) -> Check {
    let found = format!("perf_event_open: {error}");
    bad("event", Verdict::Fail, found, "sudo profiler …, or a kernel with CONFIG_PERF_EVENTS")
}
