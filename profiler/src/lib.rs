//! A CPU profiler for a whole Linux machine.
//!
//! In the order in which data flows:
//!
//! ```text
//! cli → config → doctor → perf (open) → bpf (load) ─┐
//!                                                   │ kernel
//!   ring (samples) ──────────────┐                  │
//!                                ├→ queue → sample → process::table → symbolize → output
//!   perf::sideband → process::tracker
//!                            ledger counts at every arrow
//! ```
//!
//! [`cli`] is what was typed and [`config`] what it means. [`doctor`] says what the machine can do.
//! [`perf`] opens one sampling event a CPU, and [`bpf`] loads the program that runs when one fires
//! and writes a record to the [`ring`]. The [sideband](perf::sideband) tells what happens to processes,
//! and the [tracker](process::tracker) opens the files that they map. Through the bounded [`queue`] both
//! go to a thread that decodes the samples ([`mod@sample`]), finds what the process had mapped at that
//! time ([`process`]), names each address ([`symbolize`]) and writes ([`output`]). [`unwind`] makes
//! tables of how stacks can be walked without frame pointers. The [`ledger`] accounts for every sample,
//! [`shutdown`] says when to end, and [`agent`] is the one file that knows all of them.
//!
//! A stage uses only what stands to its left, and [`config`], [`error`], [`ledger`] and
//! `profiler-common`. `docs/architecture.md` has the invariants.

pub mod agent;
mod allowance;
pub mod bpf;
pub mod build_id;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod elf;
pub mod error;
pub mod heap;
mod kernel;
pub mod ledger;
mod nss;
pub mod output;
pub mod perf;
mod printable;
pub mod process;
pub mod queue;
mod regular_file;
pub mod ring;
pub mod sample;
pub mod shutdown;
mod sigbus;
pub mod stderr;
pub mod symbolize;
mod units;
pub mod unwind;
