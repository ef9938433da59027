//! From addresses to names.

mod companions;
pub mod config;
mod debug_file;
pub(crate) mod debug_package;
pub mod debuginfod;
mod elf;
mod found;
pub mod interpreted;
mod jit;
mod kernel_code;
mod kernel_modules;
mod kernel_symbols;
mod names;
pub mod naming;
mod owner;
pub mod python;
mod roots;
pub(crate) mod stacks;
pub mod symbolizer;
