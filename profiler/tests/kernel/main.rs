//! What we promise, against the running kernel with real programs.
//!
//! The tests need root and look at the whole machine, so they are ignored by a plain `cargo test`;
//! `cargo xtask test` runs them one after another. None asserts a time: each waits for what must
//! come, within a limit that is far away.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod interrupts;
mod support;
mod tracefs;

/// What kernels differ in: the program and its verifier, records, events, sandboxes. On every machine of the
/// matrix.
mod every_kernel {
    pub(crate) mod bad_input;
    pub(crate) mod events;
    pub(crate) mod filters;
    pub(crate) mod ledger;
    pub(crate) mod parsing;
    pub(crate) mod pmu;
    pub(crate) mod sideband;
    pub(crate) mod sources;
    pub(crate) mod stat;
    pub(crate) mod stat_pmu;
    pub(crate) mod tasks;
    pub(crate) mod traces;
    pub(crate) mod unwinding;
    pub(crate) mod walks;
}

/// What a kernel may change, but seldom does, and then on all architectures. On the oldest of one and the newest of the
/// other.
mod oldest_and_newest {
    pub(crate) mod dither;
    pub(crate) mod end;
    pub(crate) mod foreign_files;
    pub(crate) mod hotplug;
    pub(crate) mod kernel_names;
    pub(crate) mod limits;
    pub(crate) mod processes;
    pub(crate) mod realtime;
    pub(crate) mod selection;
    pub(crate) mod tables;
}

/// What only our own code decides, with instructions, registers and tables that each architecture has of its own. On the
/// machine that runs `cargo xtask test`, and on one of the other architecture.
mod each_architecture {
    pub(crate) mod compat;
    pub(crate) mod crossings;
    pub(crate) mod stacks;
    pub(crate) mod stat;
    pub(crate) mod toolchains;
    pub(crate) mod written;
}

/// What only our own code decides, on all architectures alike. On the machine that runs `cargo xtask test`.
mod our_code {
    pub(crate) mod agent;
    pub(crate) mod children;
    pub(crate) mod descriptors;
    pub(crate) mod escapes;
    pub(crate) mod idle;
    pub(crate) mod memory;
    pub(crate) mod monitoring;
    pub(crate) mod output;
    pub(crate) mod parser_names;
    pub(crate) mod perf;
    pub(crate) mod python;
    pub(crate) mod rates;
    pub(crate) mod record;
    pub(crate) mod same_build_id;
    pub(crate) mod serve;
    pub(crate) mod stores;
    pub(crate) mod stuck;
    pub(crate) mod sums;
    pub(crate) mod top;
    pub(crate) mod unanswering;
}
