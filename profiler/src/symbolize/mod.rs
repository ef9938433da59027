//! From addresses to names.

mod cache;
mod files;
pub mod frame;
pub mod perf_map;
pub mod symbolizer;
pub mod worker;
