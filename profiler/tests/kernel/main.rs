//! What we promise, against the running kernel with real programs.
//!
//! The tests need root and look at the whole machine, so they are ignored by a plain `cargo test`;
//! `cargo xtask test` runs them one after another. None asserts a time: each waits for what must
//! come, within a limit that is far away.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod bad_input;
mod crossings;
mod end;
mod hotplug;
mod interrupts;
mod ledger;
mod perf;
mod processes;
mod sideband;
mod stacks;
mod stuck;
mod support;
mod tables;
mod toolchains;
mod unanswering;
mod unwinding;
mod walks;
