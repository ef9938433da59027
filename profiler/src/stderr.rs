//! Lines for the person at the terminal. A standard error that is closed or full stops nothing.
//!
//! Names of files and functions are chosen by others, so whatever is written here is made
//! [printable](profiler_profile::printable) here.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    collections::VecDeque,
    io::{self, IsTerminal as _, Write as _, stderr},
    panic,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use profiler_profile::printable::{printable, printable_lines};
use rustix::{
    process::getpgrp,
    termios::{tcgetpgrp, tcgetwinsize},
};

/// Moves to the start of the line, and clears it: ECMA-48.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Whether the last line is a [status].
static HAS_STATUS: AtomicBool = AtomicBool::new(false);

/// Whether there are no [notices](notice).
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// How many lines are held at most: the last ones.
const MAX_HELD: usize = 1000;

/// What is held while a screen has the terminal; `None` while none has.
static HELD: Mutex<Option<Held>> = Mutex::new(None);

/// Lines that were not written yet.
#[derive(Debug, Default)]
struct Held {
    lines: VecDeque<String>,
    /// How many there were in all.
    count: usize,
}

impl Held {
    fn push(&mut self, text: &str) {
        for line in text.lines() {
            self.lines.push_back(line.to_owned());
            self.count += 1;
        }
        self.lines.drain(..self.lines.len().saturating_sub(MAX_HELD));
    }
}

/// From here on nothing is written, since a screen has the terminal: it shows what is [held](held).
pub fn hold() {
    clear_status();
    HELD.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
}

/// How many lines were held so far, and the last of them.
pub fn held() -> (usize, Vec<String>) {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.as_ref().map_or((0, Vec::new()), |it| (it.count, it.lines.iter().cloned().collect()))
}

/// So many lines were not even held, since too many came at once.
pub fn leave_out(lines: usize) {
    if let Some(held) = HELD.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        held.count = held.count.saturating_add(lines);
    }
}

/// Writes what was held: no screen has the terminal any more.
pub fn release() {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    let before = held.count.saturating_sub(held.lines.len());
    if before > 0 {
        put(&format!("profiler: {before} lines before these were not kept\n"));
    }
    for line in held.lines {
        put(&format!("{line}\n"));
    }
}

/// Writes text that is printable, or holds it.
fn put(text: &str) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    match held.as_mut() {
        Some(held) => held.push(text),
        None => {
            let _ = stderr().write_all(text.as_bytes());
        }
    }
}

/// From here on only errors and losses are said.
pub fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Whether only errors and losses are said.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Writes lines, in the place of the status.
pub fn write(text: &str) {
    clear_status();
    put(&printable_lines(text));
}

/// Writes lines of fields with tabs between.
pub fn write_fields(text: &str) {
    clear_status();
    put(&printable_fields(text));
}

/// Text that is printable but for the ends of lines and tabs.
pub fn printable_fields(text: &str) -> String {
    let fields: Vec<_> = text.split('\t').map(printable_lines).collect();
    fields.join("\t")
}

/// Whether it is a terminal that this process may write to at any time: it is not in the background.
pub fn has_foreground() -> bool {
    stderr().is_terminal() && tcgetpgrp(stderr()).is_ok_and(|group| group == getpgrp())
}

/// Shows a line that the next one takes the place of. Standard error must be a terminal.
pub fn status(line: &str) {
    let size = tcgetwinsize(stderr()).map(|size| usize::from(size.ws_col));
    // Some terminals don't say, or say 0.
    let columns = size.ok().filter(|it| *it > 0).unwrap_or(80);
    // One that fills the last column is two lines for some terminals.
    let line: String = printable(line).chars().take(columns.saturating_sub(1)).collect();
    HAS_STATUS.store(true, Ordering::Relaxed);
    let _ = stderr().write_all(format!("{CLEAR_LINE}{line}").as_bytes());
}

/// Removes the status.
pub fn clear_status() {
    if HAS_STATUS.swap(false, Ordering::Relaxed) {
        let _ = stderr().write_all(CLEAR_LINE.as_bytes());
    }
}

/// Says what is neither an error nor a loss of samples, unless nobody wants to know.
pub fn notice(text: &str) {
    if !is_quiet() {
        say(text);
    }
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
        clear_status();
        put(&log_line(event));
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
    fn what_is_held_is_shown_by_a_screen() {
        let mut held = Held::default();
        held.push("c\nd\n");
        assert_eq!(
            (held.count, &*held.lines.make_contiguous()),
            (2, &["c".into(), "d".into()][..])
        );
        (0..2 * MAX_HELD).for_each(|_| held.push("e\n"));
        assert_eq!((held.count, held.lines.len()), (2 + 2 * MAX_HELD, MAX_HELD));
    }

    #[test]
    fn tabs_are_between_fields() {
        assert_eq!(printable_fields("a\tb\x1b[2J\nc\n"), "a\tb\\x1b[2J\nc\n");
    }

    #[test]
    fn an_event_of_the_log_is_one_line() {
        assert_eq!(log_line(b" INFO a\x1b[2J\nprofiler: b\n"), " INFO a\\x1b[2J\\nprofiler: b\n");
    }
}
