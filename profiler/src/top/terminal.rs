//! The terminal: taken, drawn to, and given back as it was.

use std::{
    io::{self, BufWriter, Stdout, Write as _, stdout},
    mem::MaybeUninit,
    ptr,
};

use crossterm::{
    cursor::{Hide, Show},
    event::DisableMouseCapture,
    execute, queue,
    style::{Print, ResetColor},
    terminal::{
        BeginSynchronizedUpdate, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
        EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
    },
};
use ratatui_core::{
    backend::{Backend, ClearType},
    buffer::Buffer,
    layout::Rect,
};
use ratatui_crossterm::CrosstermBackend;
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    process::{Pid, Signal, getpgrp, kill_process_group},
};

use crate::stderr;

/// How much is written at once at most: a whole screen.
const BUFFER_BYTES: usize = 256 << 10;

/// Has the terminal tell of buttons and the wheel, not of each move: xterm's control sequences 1000 and 1006.
const MOUSE_BUTTONS: &str = "\x1b[?1000h\x1b[?1006h";

/// The most that is drawn: a terminal may claim any size.
const LARGEST: (u16, u16) = (1000, 500);

/// What is drawn on a terminal that tells this size.
fn area(told: (u16, u16), default: (u16, u16)) -> Rect {
    let (width, height) = if told.0 == 0 || told.1 == 0 { default } else { told };
    Rect::new(0, 0, width.min(LARGEST.0), height.min(LARGEST.1))
}

/// What a terminal has that tells no size, as over a serial line: what the environment says, or what they all once had.
fn default_size(columns: Option<u16>, lines: Option<u16>) -> (u16, u16) {
    (columns.unwrap_or(80), lines.unwrap_or(24))
}

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
    /// The size of a terminal that does not tell its own.
    default: (u16, u16),
}

impl<B: Backend> Painter<B> {
    pub(super) fn new(backend: B) -> Self {
        Self { backend, shown: None, default: (0, 0) }
    }

    /// Whatever is there is drawn over.
    pub(super) fn forget(&mut self) {
        self.shown = None;
    }

    /// Draws a screen of the size that the terminal has now.
    pub(super) fn paint(&mut self, draw: impl FnOnce(&mut Buffer)) -> Result<(), B::Error> {
        let size = self.backend.size()?;
        let area = area((size.width, size.height), self.default);
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
        let number = |name: &str| std::env::var(name).ok()?.parse().ok().filter(|it| *it > 0);
        let default = default_size(number("COLUMNS"), number("LINES"));
        let painter = Painter { default, ..Painter::new(CrosstermBackend::new(to)) };
        let terminal = Self { painter };
        stderr::hold();
        // What fails from here on is undone when it is dropped.
        take()?;
        Ok(terminal)
    }

    /// Draws a screen. A terminal that can shows it when all of it is there, also where that takes a while.
    pub(super) fn paint(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        queue!(self.painter.backend, BeginSynchronizedUpdate)?;
        self.painter.paint(draw)?;
        execute!(self.painter.backend, EndSynchronizedUpdate)
    }

    /// Draws all of it the next time.
    pub(super) fn forget(&mut self) {
        self.painter.forget();
    }

    /// Stops the process as Ctrl-Z does, with all of its group, and has the terminal again when it goes on.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        stop();
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
    execute!(stdout(), EnterAlternateScreen, DisableLineWrap, Print(MOUSE_BUTTONS), Hide)
}

/// Stops the process group, and returns when it goes on. Where nobody could let it go on, the kernel does not stop it.
fn stop() {
    let mut stops = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // Another thread may get the group's signal, and this one go on until the process is stopped. So it has one of its own
    // to wait for; what is left of both goes when the process goes on.
    // SAFETY: both sets are written before they are read, and outlive the calls; the rest takes numbers.
    unsafe {
        libc::sigemptyset(stops.as_mut_ptr());
        libc::sigaddset(stops.as_mut_ptr(), libc::SIGTSTP);
        libc::pthread_sigmask(libc::SIG_BLOCK, stops.as_ptr(), before.as_mut_ptr());
        libc::raise(libc::SIGTSTP);
    }
    let group: Pid = getpgrp();
    let _ = kill_process_group(group, Signal::TSTP);
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
}

/// Gives the terminal back for a thread that may be stuck writing to it: lines are lines again, and as much of the rest as
/// it takes without waiting.
pub(super) fn abandon() {
    let _ = disable_raw_mode();
    if let Ok(flags) = fcntl_getfl(stdout()) {
        let _ = fcntl_setfl(stdout(), flags | OFlags::NONBLOCK);
        give_back();
        let _ = fcntl_setfl(stdout(), flags);
    }
}

/// As much as can be given back. How lines are read comes first, which needs nobody to take what is written.
fn give_back() {
    let _ = disable_raw_mode();
    let mut to = stdout();
    let _ = execute!(
        to,
        EndSynchronizedUpdate,
        ResetColor,
        DisableMouseCapture,
        EnableLineWrap,
        LeaveAlternateScreen,
        Show
    );
    let _ = to.flush();
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        fs::File,
        io::Read as _,
        os::fd::{FromRawFd as _, OwnedFd},
        process::{Command, Stdio},
    };

    use super::*;
    use ratatui_core::{backend::TestBackend, style::Style};
    use rustix::termios::tcgetattr;

    /// Of a process that takes its terminal, and panics.
    const PANICS: &str = "PROFILER_TEST_PANICS";

    /// A terminal: what reads from it, and what is written to.
    fn pseudo_terminal() -> (OwnedFd, OwnedFd) {
        let (mut outer, mut inner) = (-1, -1);
        // SAFETY: both numbers are written, and outlive the call; the rest may be null.
        let opened = unsafe {
            let (name, modes, size) = (ptr::null_mut(), ptr::null(), ptr::null());
            libc::openpty(&raw mut outer, &raw mut inner, name, modes, size)
        };
        assert_eq!(opened, 0, "{}", io::Error::last_os_error());
        // SAFETY: the call has just given us both, and nobody else has them.
        unsafe { (OwnedFd::from_raw_fd(outer), OwnedFd::from_raw_fd(inner)) }
    }

    #[test]
    fn a_panic_leaves_the_terminal_as_it_was() {
        if env::var_os(PANICS).is_some() {
            let _terminal = Terminal::enter().unwrap();
            panic!("on purpose");
        }
        let (outer, inner) = pseudo_terminal();
        let modes = || {
            let of = tcgetattr(&inner).unwrap();
            (of.input_modes, of.output_modes, of.control_modes, of.local_modes)
        };
        let before = modes();
        let mut again = Command::new(env::current_exe().unwrap());
        again.args(["--exact", "top::terminal::tests::a_panic_leaves_the_terminal_as_it_was"]);
        again.args(["--nocapture", "--test-threads=1"]).env(PANICS, "1").stderr(Stdio::null());
        again.stdin(inner.try_clone().unwrap()).stdout(inner.try_clone().unwrap());
        let status = again.status().unwrap();
        assert_eq!(status.code(), Some(101));
        assert_eq!(modes(), before);
        drop((again, inner));
        // That the cursor is shown again comes last.
        let (mut outer, mut written, mut buffer) = (File::from(outer), String::new(), [0; 4096]);
        while !written.contains("\x1b[?25h")
            && let Ok(read @ 1..) = outer.read(&mut buffer)
        {
            written += &String::from_utf8_lossy(&buffer[..read]);
        }
        let at =
            |what: &str| written.rfind(what).unwrap_or_else(|| panic!("{what:?}: {written:?}"));
        for (taken, back) in [("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")] {
            assert!(at(taken) < at(back), "{written:?}");
        }
    }

    #[test]
    fn a_terminal_without_a_size_has_that_of_the_environment() {
        assert_eq!(area((0, 0), default_size(None, None)), Rect::new(0, 0, 80, 24));
        assert_eq!(area((0, 9), default_size(Some(132), None)), Rect::new(0, 0, 132, 24));
        assert_eq!(area((100, 9), default_size(None, None)), Rect::new(0, 0, 100, 9));
        assert_eq!(area((9999, 9999), default_size(None, None)), Rect::new(0, 0, 1000, 500));
    }

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
