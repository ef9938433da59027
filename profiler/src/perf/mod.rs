//! Perf events: which one, on which CPUs, and opening it.

pub mod attr;
pub mod cpus;
pub mod event;
pub mod hotplug;
pub mod open;
pub mod records;
mod sampled_cpu;
pub mod set;
