//! Walking a user stack from a sampled program counter to its outermost frame.
//!
//! For each address of a file's code there is a [`rule`](rule::Rule) that says where the frame of the
//! caller is: the agent makes it from the file's call frame information (`.eh_frame`), and packs the
//! rules of a file into a [`table`]. A [`step`](step::step) applies a rule to a frame's registers. All
//! of it is pure: memory and tables are handed in, so that the eBPF program and the tests run the same
//! code. What differs between machines stands in [`x86_64`] and [`aarch64`].
// A call costs the eBPF program more than most of these functions, and the verifier would check each
// of them apart, without what is known where it is called.
#![allow(clippy::inline_always)]

pub mod aarch64;
#[cfg(test)]
mod calls;
pub mod quick;
pub mod rule;
pub mod space;
pub mod step;
pub mod table;
pub mod x86_64;

/// The machine that this is built for.
#[cfg(any(target_arch = "aarch64", bpf_target_arch = "aarch64"))]
pub type Native = aarch64::Aarch64;
/// The machine that this is built for.
#[cfg(not(any(target_arch = "aarch64", bpf_target_arch = "aarch64")))]
pub type Native = x86_64::X86_64;
