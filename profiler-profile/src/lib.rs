//! The profile: what was sampled, named and counted, as data.
//!
//! A [source] has a [sample] taken, whose [stacks](stack) a [store](store::Store) keeps once each.
//! [Exporters](export::Exporter) turn samples into bytes, some by way of a [profile](profile::Profile), in which
//! equal stacks are counted. The [ledger] accounts for every sample. What was written, by us or by others, can be
//! [imported](import) again. While a run goes on, a [window](live) of it can be looked at.
//!
//! Nothing here needs root, the eBPF object, or a kernel.

pub mod address;
pub mod cpus;
pub mod diff;
pub mod export;
pub mod frame;
pub mod import;
pub mod ledger;
pub mod live;
pub mod printable;
pub mod process;
pub mod profile;
mod profile_proto;
pub mod report;
pub mod sample;
pub mod source;
pub mod stack;
pub mod stack_end;
pub mod store;
