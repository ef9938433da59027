//! A CPU profiler for a whole Linux machine.
//!
//! In the order in which data flows:
//!
//! ```text
//! cli → config → perf (open) → bpf (load) ─┐
//!                                          │ kernel
//!   ring (samples) ──────────────┐         │
//!                                ├→ queue → sample → process::table → symbolize → output
//!   perf::sideband → process::tracker
//!                            ledger counts at every arrow
//! ```
//!
//! [`cli`] is what was typed and [`config`] what it means on this machine, a config for each stage.
//! [`perf`] opens one sampling event a CPU, and [`bpf`] loads the program that runs when one fires
//! and writes a record to the [`ring`]. The [sideband](perf::sideband) tells what happens to processes,
//! and the [tracker](process::tracker) opens the files that they map. Through the bounded [`queue`] both
//! go to a thread that decodes the samples ([`mod@sample`]), finds what the process had mapped at that
//! time ([`process`]), names each address ([`symbolize`]) and writes ([`output`]): the [`worker`]. [`unwind`] makes
//! tables of how stacks can be walked without frame pointers. The [ledger](profiler_profile::ledger) accounts for every sample,
//! [`shutdown`] says when to end, and [`agent`] is the one file that knows all of them.
//!
//! Which module may use which shows the picture of the layers in `docs/architecture.md`, which has the invariants, too.

pub mod agent;
pub mod bpf;
mod cache;
pub mod cli;
pub mod commands;
pub mod config;
pub mod error;
pub mod filter;
mod hardening;
pub mod heap;
mod invoker;
mod kernel;
pub mod launch;
pub mod limits;
mod moment;
pub mod monitoring;
mod nss;
pub mod output;
pub mod parser;
pub mod perf;
pub mod process;
pub mod procfs;
pub mod queue;
pub mod realtime;
mod regular_file;
pub mod ring;
pub mod sample;
pub mod serve;
pub mod shutdown;
mod sigbus;
pub mod source;
mod stat;
pub mod stderr;
pub mod symbolize;
mod time_budget;
pub mod top;
mod units;
pub mod unwind;
pub mod viewer;
pub mod windows;
pub mod worker;

pub use kernel::steps_over_breakpoints;
