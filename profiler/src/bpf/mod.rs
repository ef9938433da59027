//! The eBPF program: loading it, and reading its counters.

pub mod counters;
pub mod features;
pub mod load;
pub mod memory;
pub mod unwind;
