//! What the agent and the eBPF program share.
//!
//! Both sides are built from this crate, so the layout of a record and the meaning of a counter are
//! written down once. There is no logic here that only one side needs.
#![no_std]

pub mod counter;
pub mod sample;
pub mod settings;
pub mod unwind;
