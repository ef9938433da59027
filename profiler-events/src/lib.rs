//! Events by the names that `perf` gives them: from text to what `perf_event_open` needs.
//!
//! [`parse`] reads what was typed, by grammar alone. Nothing here opens an event.
//!
//! ```
//! let events = profiler_events::parse("page-faults:u,{task-clock,cs/period=1/}")?;
//! assert_eq!(events.to_string(), "page-faults:u,{task-clock,context-switches/period=1/}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod abi;
mod cache;
mod generic;
pub mod syntax;

pub use cache::{CacheEvent, NoSuchOp};
pub use generic::Generic;
pub use syntax::{Events, SyntaxError, parse};
