//! A CPU profiler for a whole Linux machine.
//!
//! In the order in which data flows:
//!
//! ```text
//! cli → config → doctor → perf (open) → bpf (load) ─┐
//!                                                   │ kernel
//!   ring → queue → sample → process → symbolize → output
//!                            ledger counts at every arrow
//! ```
//!
//! [`cli`] is what was typed and [`config`] what it means. [`doctor`] says what the machine can do.
//! [`perf`] opens one sampling event a CPU, and [`bpf`] loads the program that runs when one fires
//! and writes a record to the [`ring`]. Through the bounded [`queue`] records go to a thread that
//! decodes them ([`mod@sample`]), finds the mappings of the process ([`process`]), names each address
//! ([`symbolize`]) and writes ([`output`]). The [`ledger`] accounts for every sample, [`shutdown`]
//! says when to end, and [`agent`] is the one file that knows all of them.
//!
//! A stage uses only what stands to its left, and [`config`], [`error`], [`ledger`] and
//! `profiler-common`. `docs/architecture.md` has the invariants.

pub mod agent;
pub mod bpf;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod error;
mod kernel;
pub mod ledger;
pub mod output;
pub mod perf;
pub mod process;
pub mod queue;
pub mod ring;
pub mod sample;
pub mod shutdown;
mod sigbus;
pub mod stderr;
pub mod symbolize;
mod units;
