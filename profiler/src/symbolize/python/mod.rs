//! What Python runs.
//!
//! [Attaching](attach) finds the interpreter in a file, and where its threads have their frames. [Names](names) are
//! read from the [memory] of its processes by the parser process, and kept here.

pub mod attach;
pub mod memory;
pub mod names;
