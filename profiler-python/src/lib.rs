//! CPython from outside.
//!
//! Given a file, it says whether that is an interpreter, and where its structures have what ([`image`], [`offsets`]).
//! Given the memory of a process that has it mapped, it finds where each thread keeps its state ([`slot`]), and what
//! code objects are called ([`code`]), with the lines of their instructions ([`lines`]).
//!
//! All of it is written by others, and may be rewritten while it is read. So each read and each number is bounded,
//! and a code object has a name only if it is, before and after reading, the one that was running: a wrong name is
//! worse than none.
//!
//! It opens nothing: files are given, and [memory](memory::Memory) is a trait.

pub mod code;
mod debug_offsets;
pub mod image;
pub mod lines;
pub mod memory;
pub mod offsets;
pub mod slot;
mod symbols;
mod tables;
pub mod text;
pub mod version;
