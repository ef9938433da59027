//! From addresses to names.

mod cache;
pub mod debug_data;
mod debug_file;
mod debug_package;
pub mod debuginfod;
mod elf;
pub mod frame;
mod functions;
mod growing;
pub mod jitdump;
mod kernel_code;
mod kernel_modules;
mod made;
pub mod naming;
mod owner;
pub mod perf_map;
pub mod symbolizer;
pub mod worker;
