//! What a command prints while a screen has the terminal: lines that are told as others are.

use std::{fs::File, io::Read as _, thread, time::Duration};

use rustix::pipe::fcntl_setpipe_size;

use crate::{
    error::{Error, Result},
    hardening::capabilities,
    stderr,
};

/// What is read at once at most, and how often: a command that prints all the time shall not keep us from sampling, nor
/// have to wait for us.
const BYTES: usize = 1 << 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Of what was read at once, as many lines are told: the last ones.
const LINES: usize = 50;
/// As much of a line is told.
const LINE_BYTES: usize = 4096;

/// Has a thread tell the lines until the command, and all that has its output, has closed it.
pub(super) fn tell(mut output: File) -> Result<()> {
    // Where the kernel refuses, it holds less.
    let _ = fcntl_setpipe_size(&output, BYTES);
    let run = move || {
        // It reads what the command chooses, and needs none.
        if let Err(error) = capabilities::give_up() {
            stderr::notice(&format!("the command's output is left out: {error}"));
            return;
        }
        let (mut buffer, mut lines) = (vec![0; BYTES], Lines::default());
        while let Ok(length @ 1..) = output.read(&mut buffer) {
            lines.take(buffer.get(..length).unwrap_or_default());
            lines.tell();
            thread::sleep(PAUSE);
        }
        lines.take(b"\n");
        lines.tell();
    };
    let thread = thread::Builder::new().name("printed".into()).spawn(run);
    thread.map(|_| ()).map_err(|error| Error::system("cannot start a thread", error))
}

/// What was read and not told yet.
#[derive(Debug, Default)]
struct Lines {
    last: Vec<String>,
    /// Lines before these.
    left_out: usize,
    /// The beginning of the next.
    rest: Vec<u8>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8]) {
        let Some(end) = bytes.iter().rposition(|it| *it == b'\n') else {
            self.rest.extend(bytes);
            self.rest.truncate(LINE_BYTES);
            return;
        };
        let (whole, rest) = bytes.split_at_checked(end).unwrap_or_default();
        let lines = whole.split(|it| *it == b'\n').count();
        self.left_out += lines.saturating_sub(LINES);
        for line in whole.split(|it| *it == b'\n').skip(lines.saturating_sub(LINES)) {
            let mut begun = std::mem::take(&mut self.rest);
            begun.extend(line);
            self.last.push(shown(&begun));
        }
        self.rest = rest.iter().skip(1).take(LINE_BYTES).copied().collect();
    }

    fn tell(&mut self) {
        stderr::leave_out(std::mem::take(&mut self.left_out));
        for line in self.last.drain(..).filter(|it| !it.is_empty()) {
            stderr::write(&format!("{line}\n"));
        }
    }
}

/// What is seen of a line, also of one that is drawn over.
fn shown(line: &[u8]) -> String {
    let line = line.trim_ascii_end();
    let line = line.rsplit(|it| *it == b'\r').next().unwrap_or(line);
    String::from_utf8_lossy(line.get(..LINE_BYTES).unwrap_or(line)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_as_they_are_seen_last() {
        let mut lines = Lines::default();
        lines.take(b"one\n\r10 %");
        lines.take(b"\r20 %\r\nla");
        lines.take(b"st");
        assert_eq!((lines.last.join("|"), lines.left_out), ("one|20 %".to_owned(), 0));
        lines.take(b"\n");
        lines.take(&[b'x'; 3 * LINE_BYTES]);
        lines.take(b"y\n");
        assert_eq!(lines.last.get(2).map(String::as_str), Some("last"));
        assert_eq!(lines.last.get(3).map(String::len), Some(LINE_BYTES));
    }

    #[test]
    fn of_many_lines_the_last_are_told() {
        let mut lines = Lines::default();
        let text: Vec<String> = (0..=1000).map(|it| it.to_string()).collect();
        lines.take(text.join("\n").as_bytes());
        assert_eq!((lines.last.len(), lines.left_out), (LINES, 1000 - LINES));
        assert_eq!((&*lines.last[0], &*lines.last[LINES - 1]), ("950", "999"));
    }
}
