//! What the agent and the eBPF program share, and the plain types that all crates of the agent share.
//!
//! Both sides are built from this crate, so the layout of a record and the meaning of a counter are
//! written down once. There is no logic here that only one side needs.
#![no_std]

pub mod build_id;
pub mod comm_patterns;
pub mod counter;
pub mod hit_filter;
pub mod kernel_name;
pub mod python;
pub mod sample;
pub mod settings;
pub mod unwind;
