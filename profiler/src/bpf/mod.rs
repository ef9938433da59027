//! The eBPF program: loading it, and reading its counters.

mod btf;
pub mod counters;
pub mod features;
pub mod load;
pub mod memory;
pub mod unwind;
