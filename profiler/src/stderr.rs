//! Lines for the person at the terminal. A standard error that is closed or full stops nothing.

use std::io::{Write as _, stderr};

/// Writes text as it is.
pub fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

/// Writes a line that names the program.
pub fn say(text: &str) {
    write(&format!("profiler: {text}\n"));
}
