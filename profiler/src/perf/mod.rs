//! Perf events: which one, on which CPUs, opening it, and what the kernel writes into its ring.

pub mod attr;
pub mod cgroups;
pub mod config;
pub mod deadline;
mod dither;
pub mod event;
pub mod governor;
pub mod hotplug;
mod mmap_ring;
pub mod open;
pub(crate) mod opening;
pub mod own_count;
mod per_cpu;
pub(crate) mod probe;
pub mod record;
pub(crate) mod refusal;
mod sampled_cpu;
pub mod set;
pub mod sideband;
mod slot;
mod task_list;
mod task_records;
mod task_times;
pub mod tasks;
pub mod trace;
pub mod wakeup;
