//! The eBPF program: loading it, and reading its counters.

mod btf;
pub mod config;
pub mod counters;
pub mod features;
mod filter;
pub mod gate;
pub mod hit_filter;
pub mod kernel_names;
pub mod load;
pub mod memory;
mod object;
pub mod own;
pub mod periods;
pub mod runs;
pub mod unwind;
