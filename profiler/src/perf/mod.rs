//! Perf events: which one, on which CPUs, and opening it.

pub mod attr;
pub mod cpus;
pub mod event;
pub mod open;
pub mod records;
pub mod set;
