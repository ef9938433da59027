//! The processes that samples come from.

pub mod config;
pub mod executing;
pub mod family;
pub mod file;
pub mod files;
pub mod fingerprint;
pub(crate) mod headless;
mod identity;
pub mod interpreters;
pub mod manager;
pub mod metadata;
pub mod space;
pub mod table;
pub mod tracker;
mod watchdog_pool;
pub mod watched;
