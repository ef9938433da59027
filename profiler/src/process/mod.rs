//! The processes that samples come from.

pub mod cgroup;
mod crew;
pub mod file;
pub mod files;
mod headless;
pub mod maps;
pub mod metadata;
pub mod mounts;
pub mod space;
pub mod table;
pub mod tracker;
