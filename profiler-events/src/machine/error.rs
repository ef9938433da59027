//! Why events can't be had on a machine.

use std::path::PathBuf;

use crate::near::did_you_mean;

/// Why an event that was named can't be opened here. One line, for whoever typed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// No event has that name.
    #[error("no event `{name}` on this machine{}", did_you_mean(near))]
    UnknownEvent {
        /// As it was typed.
        name: String,
        /// What may have been meant.
        near: Vec<String>,
    },
    /// Neither a PMU nor an event has that name.
    #[error("no PMU `{name}` on this machine{}", did_you_mean(near))]
    UnknownPmu {
        /// As it was typed.
        name: String,
        /// What may have been meant.
        near: Vec<String>,
    },
    /// No tracepoint has that name, or matches that pattern.
    #[error("no tracepoint `{name}`{}", did_you_mean(near))]
    UnknownTracepoint {
        /// As it was typed.
        name: String,
        /// What may have been meant.
        near: Vec<String>,
    },
    /// The event, or its PMU, has no such term.
    #[error("`{of}` has no term `{term}`, only {}{}", known.join(", "), did_you_mean(near))]
    UnknownTerm {
        /// The event or the PMU.
        of: String,
        /// As it was typed.
        term: String,
        /// What may have been meant.
        near: Vec<String>,
        /// The terms that there are.
        known: Vec<String>,
    },
    /// A term of `perf`'s that asks for what can't be set for one event.
    #[error("the term `{term}` is not supported; of those that set no field, there are {}", supported.join(", "))]
    UnsupportedTerm {
        /// As it was typed.
        term: String,
        /// What can be set for one event.
        supported: &'static [&'static str],
    },
    /// A term with a value that it can't have.
    #[error("`{term}` has to be {expected}")]
    BadValue {
        /// The whole term.
        term: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A field of several bits without a value.
    #[error("`{term}` needs a value of up to {bits} bits, as in `{term}=1`")]
    NoValue {
        /// The field.
        term: String,
        /// Its width.
        bits: u32,
    },
    /// A number that a field has no room for.
    #[error("`{term}` is too wide: `{field}` has {bits} bit{}, so at most {largest:#x}", plural(*bits))]
    TooWide {
        /// The whole term.
        term: String,
        /// The field.
        field: String,
        /// Its width.
        bits: u32,
        /// What fits.
        largest: u64,
    },
    /// An event of a PMU that is complete only with a value from the user.
    #[error("`{event}` needs a value for `{term}`, as in `{event},{term}=1`")]
    MissingParameter {
        /// The event in sysfs.
        event: String,
        /// The field that it leaves open.
        term: String,
    },
    /// A name for a whole event among terms that set fields.
    #[error("`{event}` is a whole event: it takes no other terms that say what is counted")]
    WholeEvent {
        /// That name.
        event: String,
    },
    /// A period and a frequency for the same event.
    #[error("`{event}` has both a period and a frequency; give one")]
    TwoRates {
        /// The event.
        event: String,
    },
    /// A period or a frequency where nothing is sampled.
    #[error("`{event}` has a period or a frequency, but is only counted; leave it out")]
    RateOfCount {
        /// The event.
        event: String,
    },
    /// An event that can't be sampled.
    #[error("`{event}` can't be sampled: {why}")]
    CountingOnly {
        /// The event.
        event: String,
        /// Why not.
        why: &'static str,
    },
    /// A PMU of which all CPUs are offline.
    #[error("`{event}` has no CPU: none of those of `{pmu}` is online")]
    NoCpus {
        /// The event.
        event: String,
        /// The PMU.
        pmu: String,
    },
    /// A probe without a place.
    #[error("`{pmu}` needs a place, as in `{pmu}:{}FUNCTION`", if pmu == "uprobe" { "PATH:" } else { "" })]
    NoPlace {
        /// `kprobe` or `uprobe`.
        pmu: String,
    },
    /// More than the PMU can.
    #[error("`{event}` asks for precision {asked}, `{pmu}` has at most {most}; give {}", given(*most))]
    TooPrecise {
        /// The event.
        event: String,
        /// The PMU.
        pmu: String,
        /// The number of `p`.
        asked: u8,
        /// What it can.
        most: u8,
    },
    /// A group of events that no one PMU has all of.
    #[error("`{group}` can't be one group: `{event}` is not on `{pmu}`; leave out the braces")]
    MixedGroup {
        /// The group.
        group: String,
        /// One of its events.
        event: String,
        /// A PMU that others of it are on.
        pmu: String,
    },
    /// There is no tracefs to find tracepoints in.
    #[error("no tracefs at {path}; mount it: mount -t tracefs nodev {path}", path = path.display())]
    NoTracefs {
        /// Where it should be.
        path: PathBuf,
    },
    /// The kernel can't place such probes by `perf_event_open`.
    #[error("this kernel has no PMU `{pmu}`: it needs CONFIG_{}_EVENTS, and Linux 4.17", pmu.to_uppercase())]
    NoProbes {
        /// `kprobe` or `uprobe`.
        pmu: &'static str,
    },
    /// A file of sysfs or tracefs that can't be read.
    #[error("can't read {path}: {why}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says, and what helps.
        why: String,
    },
    /// A file of sysfs or tracefs that has not what it should have.
    #[error("{path} is not as expected: {what}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

fn plural(number: u32) -> &'static str {
    if number == 1 { "" } else { "s" }
}

fn given(most: u8) -> String {
    if most == 0 { "none, or `P`".into() } else { format!("`{}`", "p".repeat(most.into())) }
}
