//! What the eBPF program needs to walk stacks without frame pointers: mappings, and a table for each file.
//!
//! `profiler_unwind` makes the tables. [`loader`] puts them into the kernel, and [`walker`] walks stack
//! snapshots by them.

mod blocks;
mod builder;
pub mod config;
mod eviction;
mod interpreters;
pub mod loader;
pub mod report;
mod table_slots;
pub mod walker;
