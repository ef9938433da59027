//! Processes, and which file is mapped where in them.

pub mod maps;
pub mod table;
