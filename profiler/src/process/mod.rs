//! The processes that samples come from.

pub mod cgroup;
pub mod file;
pub mod maps;
pub mod metadata;
pub mod space;
pub mod table;
pub mod tracker;
