//! Lines for the person at the terminal. A standard error that is closed or full stops nothing.
//!
//! Names of files and functions are chosen by others, so whatever is written here is made
//! [printable](profiler_profile::printable) here.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, Write as _, stderr},
    panic,
};

use profiler_profile::printable::{printable, printable_lines};

/// Writes lines.
pub fn write(text: &str) {
    let _ = stderr().write_all(printable_lines(text).as_bytes());
}

/// Writes a line that names the program. Line breaks in the text are escaped.
pub fn say(text: &str) {
    write(&format!("profiler: {}\n", printable(text)));
}

/// Has panics say what they have to say as a line like others: their messages may hold what was read.
pub fn say_panics() {
    panic::set_hook(Box::new(|info| {
        say(&format!("internal error: {info}"));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            write(&format!("{backtrace}\n"));
        }
    }));
}

/// Where the log goes: each event is one write, and becomes one line.
#[derive(Clone, Copy, Debug)]
pub struct Log;

impl io::Write for Log {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let _ = stderr().write_all(log_line(event).as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log_line(event: &[u8]) -> String {
    let event = String::from_utf8_lossy(event);
    format!("{}\n", printable(event.strip_suffix('\n').unwrap_or(&event)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_the_log_is_one_line() {
        assert_eq!(log_line(b" INFO a\x1b[2J\nprofiler: b\n"), " INFO a\\x1b[2J\\nprofiler: b\n");
    }
}
