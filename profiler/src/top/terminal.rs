//! The terminal: taken, drawn to, and given back as it was.

use std::io::{self, BufWriter, Stdout, Write as _, stdout};

use crossterm::{
    cursor::{Hide, Show},
    event::{DisableMouseCapture, EnableMouseCapture},
    execute,
    style::ResetColor,
    terminal::{
        DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
        disable_raw_mode, enable_raw_mode,
    },
};
use ratatui_core::{
    backend::{Backend, ClearType},
    buffer::Buffer,
    layout::Rect,
};
use ratatui_crossterm::CrosstermBackend;
use rustix::process::{Pid, Signal, getpgrp, kill_process_group};

use crate::stderr;

/// How much is written at once at most: a whole screen.
const BUFFER_BYTES: usize = 256 << 10;

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Looks {
    /// Whether colours are wanted: <https://no-color.org>.
    pub(super) colours: bool,
}

impl Looks {
    /// What the environment says.
    pub(super) fn of_environment() -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
        Self { colours: !no_colour }
    }
}

/// What is on a terminal, so that only what has changed is drawn.
pub(super) struct Painter<B> {
    backend: B,
    shown: Option<Buffer>,
}

impl<B: Backend> Painter<B> {
    pub(super) fn new(backend: B) -> Self {
        Self { backend, shown: None }
    }

    /// Whatever is there is drawn over.
    pub(super) fn forget(&mut self) {
        self.shown = None;
    }

    /// Draws a screen of the size that the terminal has now.
    pub(super) fn paint(&mut self, draw: impl FnOnce(&mut Buffer)) -> Result<(), B::Error> {
        let size = self.backend.size()?;
        let area = Rect::new(0, 0, size.width, size.height);
        let mut next = Buffer::empty(area);
        draw(&mut next);
        let before = match self.shown.take().filter(|it| it.area == area) {
            Some(before) => before,
            None => {
                self.backend.clear_region(ClearType::All)?;
                Buffer::empty(area)
            }
        };
        self.backend.draw(before.diff(&next).into_iter())?;
        self.shown = Some(next);
        self.backend.flush()
    }

    #[cfg(test)]
    pub(super) fn backend(&self) -> &B {
        &self.backend
    }
}

/// The terminal of this process while a screen has it.
pub(super) struct Terminal {
    painter: Painter<CrosstermBackend<BufWriter<Stdout>>>,
}

impl Terminal {
    /// Takes it: from here on lines for the user are held.
    pub(super) fn enter() -> io::Result<Self> {
        let to = BufWriter::with_capacity(BUFFER_BYTES, stdout());
        let terminal = Self { painter: Painter::new(CrosstermBackend::new(to)) };
        stderr::hold();
        // What fails from here on is undone when it is dropped.
        take()?;
        Ok(terminal)
    }

    /// Draws a screen.
    pub(super) fn paint(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        self.painter.paint(draw)
    }

    /// Draws all of it the next time.
    pub(super) fn forget(&mut self) {
        self.painter.forget();
    }

    /// Stops the process as Ctrl-Z does, with all of its group, and has the terminal again when it goes on.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        // Where nobody could let it go on, the kernel does not stop it.
        let group: Pid = getpgrp();
        let _ = kill_process_group(group, Signal::TSTP);
        take()?;
        self.painter.forget();
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
        stderr::release();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, DisableLineWrap, EnableMouseCapture, Hide)
}

/// As much as can be given back.
fn give_back() {
    let mut to = stdout();
    let _ =
        execute!(to, ResetColor, DisableMouseCapture, EnableLineWrap, LeaveAlternateScreen, Show);
    let _ = to.flush();
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::{backend::TestBackend, style::Style};

    #[test]
    fn a_terminal_that_changes_its_size_is_drawn_anew() {
        let mut painter = Painter::new(TestBackend::new(8, 2));
        let draw = |text: &'static str| {
            move |buffer: &mut Buffer| {
                buffer.set_string(0, 0, text, Style::default());
            }
        };
        painter.paint(draw("one")).unwrap();
        painter.paint(draw("two 数x")).unwrap();
        painter.backend.assert_buffer_lines(["two 数x ", ""]);
        painter.backend.resize(4, 1);
        painter.paint(draw("three")).unwrap();
        painter.backend.assert_buffer_lines(["thre"]);
    }
}
