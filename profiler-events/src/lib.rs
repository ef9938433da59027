//! Events by the names that `perf` gives them: from text to what `perf_event_open` needs.
//!
//! That takes two steps. [`parse`] reads what was typed, by grammar alone. [`Machine::resolve`] looks up
//! what it means on a machine, in small files of sysfs and tracefs. [`Machine::list`] says what there is.
//! Nothing here opens an event, or needs root beyond what those files do.
//!
//! ```
//! use profiler_events::{Machine, Purpose, parse};
//!
//! let events = parse("page-faults:u,{task-clock,context-switches/period=1/}")?;
//! let sets = Machine::here().resolve(&events, Purpose::Sample)?;
//! let names = |set: &profiler_events::Set| {
//!     set.attrs.iter().map(|attr| attr.name.clone()).collect::<Vec<_>>()
//! };
//! assert_eq!(sets.iter().map(names).collect::<Vec<_>>(), [
//!     vec!["page-faults:u"],
//!     vec!["task-clock", "context-switches/period=1/"],
//! ]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod abi;
mod cache;
#[cfg(test)]
mod fixture;
mod generic;
mod glob;
mod machine;
mod near;
pub mod syntax;

pub use cache::{CacheEvent, NoSuchOp};
pub use generic::Generic;
pub use machine::{
    Attr, Breakpoint, Exclude, FilterError, HitFilter, Kind, Listed, Listing, Machine, Need, Probe,
    Purpose, Rate, ResolveError, Set, Text,
};
pub use near::{did_you_mean, near};
pub use syntax::{Events, SyntaxError, filter::parse_filter, parse};
