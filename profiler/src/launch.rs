//! A command that is started for a run, and sampled from its first instruction on.
//!
//! Our own program is started in its place first, so that the process is there when the run begins to follow it. It
//! waits until the events are enabled, and then executes the command. The run's raised limits and dropped
//! capabilities come later, and are not the command's.

mod printed;

use std::{
    ffi::{OsStr, OsString},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::{fs::PermissionsExt as _, process::CommandExt as _, process::ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio, exit},
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, getpgrp, kill_process, setsid},
    termios::tcgetpgrp,
};

use crate::{
    error::{Error, Result},
    hardening::capabilities::{self, SIGNALS_TO_OTHERS},
    invoker::Invoker,
    stderr,
};

/// The argument that makes our program the one that waits.
const ARGUMENT: &str = "--execute-when-told";
/// The same of one that has no terminal.
const ARGUMENT_APART: &str = "--execute-apart-when-told";
/// What shells exit with where a command can't be executed, and where there is none.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// A command that was started, or will be.
#[derive(Debug)]
pub struct Launch {
    child: Child,
    /// Has it executed when something is written, and exit when it is closed.
    told: Option<std::fs::File>,
    /// The terminal that the run was started from, if there is one.
    terminal: Option<std::fs::File>,
    /// Whether a signal was left to it.
    was_signaled: bool,
    /// The signal that came before it was executed.
    cancelled: Option<i32>,
}

impl Launch {
    /// Starts what will be the command, as this user if one is given.
    ///
    /// # Errors
    ///
    /// The command doesn't exist or isn't executable.
    pub fn prepare(command: &[OsString], user: Option<&Invoker>) -> Result<Self> {
        let terminal = std::fs::File::open("/dev/tty").ok();
        Ok(Self { terminal, ..Self::start(command, user, ARGUMENT, |_| ())? })
    }

    /// The same of a command without a terminal, which a screen has: it reads nothing, and what it prints is told as lines.
    ///
    /// # Errors
    ///
    /// The command doesn't exist or isn't executable.
    pub fn prepare_apart(command: &[OsString], user: Option<&Invoker>) -> Result<Self> {
        let failed = |error: io::Error| Error::system("cannot start a process", error);
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|it| failed(it.into()))?;
        let other = write.try_clone().map_err(failed)?;
        let launch = Self::start(command, user, ARGUMENT_APART, |waiting| {
            waiting.stdin(Stdio::null()).stdout(write).stderr(other);
        })?;
        printed::tell(read.into())?;
        Ok(launch)
    }

    fn start(
        command: &[OsString],
        user: Option<&Invoker>,
        argument: &str,
        place: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let name = command.first().map_or(OsStr::new(""), |it| it);
        find(name, &std::env::var_os("PATH").unwrap_or_default())?;
        let failed = |error: io::Error| Error::system("cannot start a process", error);
        // The end that is written to must not be the command's, too.
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|it| failed(it.into()))?;
        rustix::io::fcntl_setfd(&read, rustix::io::FdFlags::empty())
            .map_err(|it| failed(it.into()))?;
        let mut waiting = Command::new("/proc/self/exe");
        waiting.arg(argument).arg(read.as_raw_fd().to_string());
        waiting.arg(Invoker::argument_of(user)).args(command);
        place(&mut waiting);
        let child = waiting.spawn().map_err(failed)?;
        let told = Some(write.into());
        Ok(Self { child, told, terminal: None, was_signaled: false, cancelled: None })
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it execute the command.
    pub fn execute(&mut self) -> Result<()> {
        let Some(mut told) = self.told.take() else { return Ok(()) };
        told.write_all(&[0]).map_err(|error| Error::system("the command has ended early", error))
    }

    /// Gives it a signal that has come while it runs. Whether the run goes on: it ends with the second, and when the
    /// command can't be given one.
    ///
    /// What a terminal sends by Ctrl-C and Ctrl-\ all of its foreground gets. Nobody can tell whether another process
    /// has sent it, so in the foreground they are not given once more.
    pub fn signal(&mut self, signal: i32) -> bool {
        let is_first = !std::mem::replace(&mut self.was_signaled, true);
        let is_of_keyboard = matches!(signal, libc::SIGINT | libc::SIGQUIT);
        let terminal = self.terminal.as_ref().filter(|_| is_of_keyboard);
        if terminal.is_some_and(|it| tcgetpgrp(it).is_ok_and(|group| group == getpgrp())) {
            return is_first;
        }
        let Some(signal) = Signal::from_named_raw(signal) else { return false };
        let pid = Pid::from_child(&self.child);
        let given = capabilities::having(SIGNALS_TO_OTHERS, || kill_process(pid, signal));
        is_first && given.is_ok()
    }

    /// Leaves it out: this signal came before it was executed.
    pub fn cancel(&mut self, signal: i32) {
        self.told = None;
        self.cancelled = Some(signal);
    }

    /// Whether it was left out.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_some()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits until it has ended; its exit code, or 128 and the signal that ended it.
    pub fn wait(mut self) -> Result<u8> {
        drop(self.told.take());
        let failed = |error| Error::system("cannot wait for the command", error);
        let status = self.child.wait().map_err(failed)?;
        let of_signal = |signal| 128 + signal;
        let cancelled = self.cancelled.map(of_signal);
        let code = cancelled.or_else(|| status.code()).or_else(|| status.signal().map(of_signal));
        Ok(code.and_then(|it| u8::try_from(it).ok()).unwrap_or(1))
    }
}

/// The file of a command, looked for as `execvp` does.
fn find(name: &OsStr, path: &OsStr) -> Result<PathBuf> {
    let shown = name.display();
    let refused = |code, why: &str| Error::Command { code, why: format!("{shown}: {why}") };
    let is_path = name.as_encoded_bytes().contains(&b'/');
    let candidates: Vec<PathBuf> = if is_path {
        vec![name.into()]
    } else {
        std::env::split_paths(path).map(|folder| folder.join(name)).collect()
    };
    let is_file = |it: &&PathBuf| it.is_file();
    if let Some(found) = candidates.iter().filter(is_file).find(|it| is_executable(it)) {
        return Ok(found.clone());
    }
    if candidates.iter().any(|it| it.is_file()) {
        return Err(refused(NOT_EXECUTABLE, "is not executable: chmod +x"));
    }
    if is_path && candidates.iter().any(|it| it.exists()) {
        return Err(refused(NOT_EXECUTABLE, "is not a program"));
    }
    Err(refused(NOT_FOUND, "there is no such command"))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.permissions().mode() & 0o111 != 0)
}

/// If this program was started to become a command, waits until it is told, and does. Otherwise does nothing.
pub fn run_if_requested() {
    let mut arguments = std::env::args_os().skip(1);
    let Some(argument) = arguments.next().filter(|it| it == ARGUMENT || it == ARGUMENT_APART)
    else {
        return;
    };
    let number = arguments.next().and_then(|it| it.to_str()?.parse::<RawFd>().ok());
    let user = arguments.next().unwrap_or_default();
    let Some((number, name)) = number.filter(|it| *it > 2).zip(arguments.next()) else {
        exit(NOT_FOUND);
    };
    // SAFETY: whoever started us has opened it for us, and nothing else of this process knows it.
    let told = unsafe { OwnedFd::from_raw_fd(number) };
    // Closed: the run has not begun.
    if std::fs::File::from(told).read_exact(&mut [0]).is_err() {
        exit(0);
    }
    if argument == ARGUMENT_APART {
        // A session of its own has no terminal. It can't fail: whoever has just begun leads no group.
        let _ = setsid();
    }
    let user = Invoker::become_named(&user).unwrap_or_else(|error| {
        stderr::say(&format!("cannot become the user who typed sudo: {error}"));
        exit(NOT_EXECUTABLE);
    });
    let mut command = Command::new(&name);
    command.args(arguments);
    if let Some(user) = &user {
        command.envs(user.environment());
    }
    let error = command.exec();
    stderr::say(&format!("cannot run {}: {error}", name.display()));
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    exit(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(name: &str, path: &str) -> Result<PathBuf, u8> {
        find(name.as_ref(), path.as_ref()).map_err(|error| error.exit_code())
    }

    #[test]
    fn a_command_is_found_as_a_shell_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let (program, text) = (dir.path().join("program"), dir.path().join("text"));
        for (file, mode) in [(&program, 0o755), (&text, 0o644)] {
            std::fs::write(file, "").unwrap();
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = format!("/nowhere:{}", dir.path().display());
        assert_eq!(code("program", &path), Ok(program.clone()));
        assert_eq!(code(program.to_str().unwrap(), ""), Ok(program));
        assert_eq!(code("text", &path), Err(126));
        assert_eq!(code(text.to_str().unwrap(), ""), Err(126));
        assert_eq!(code("/", ""), Err(126));
        assert_eq!(code("none", &path), Err(127));
        assert_eq!(code("/nowhere/none", &path), Err(127));
        assert_eq!(code("", &path), Err(127));
    }
}
