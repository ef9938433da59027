//! What the profiler can be told to do, a file each.

mod agent;
mod command;
mod completions;
mod convert;
mod destination;
mod diff;
mod doctor;
mod list;
mod manual;
mod privileges;
mod record;
mod recorded;
mod replacement;
mod report;
mod serve;
mod session;
mod stat;
mod stored;
mod stores;
mod stream;
mod top;
mod unwind_info;

use std::{
    io::{ErrorKind, IsTerminal as _, Write as _, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
};

use profiler_profile::{export::format::Format, printable::printable_lines};
use rustix::termios::tcgetwinsize;

use crate::{
    cli::{Cli, Command},
    error::{Error, Result},
    stderr,
};

/// Does what was typed.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Some(Command::Doctor { json }) => Ok(doctor::run(json)),
        Some(Command::UnwindInfo { file, at }) => unwind_info::run(&file, at),
        Some(Command::Completions { shell }) => Ok(completions::run(shell)),
        Some(Command::Man) => Ok(manual::page()),
        Some(Command::Report(args)) => report::run(&args),
        Some(Command::Convert(args)) => convert::run(args),
        Some(Command::Diff(args)) => diff::run(&args),
        Some(Command::Stat(args)) => stat::run(*args),
        Some(Command::List(args)) => Ok(list::run(&args)),
        Some(Command::Record(args)) => record::run(*args, cli.verbose),
        Some(Command::Top(args)) => top::run(*args, cli.verbose),
        Some(Command::Serve(args)) => serve::run(&args, cli.verbose).map(|()| ExitCode::SUCCESS),
        Some(Command::Agent(args)) => agent::run(&args, cli.verbose),
        None => stream::run(cli.stream, cli.verbose).map(|()| ExitCode::SUCCESS),
    }
}

/// The file that was named, or `None` for standard output, which is called `-`; a file of that name is `./-`.
fn file_of(path: PathBuf) -> Option<PathBuf> {
    Some(path).filter(|path| path.as_os_str() != "-")
}

/// Refuses to write what only programs can read to standard output, where that is a terminal.
fn refuse_terminal(format: &Format, path: Option<&Path>) -> Result<()> {
    if path.is_none() && format.is_binary && stdout().is_terminal() {
        let why = "a terminal can't show it; write it to a file: -o FILE";
        return Err(Error::Usage(format!("--format {}: {why}", format.name)));
    }
    Ok(())
}

/// How wide standard output is, if it is a terminal.
fn columns() -> Option<usize> {
    let size = if stdout().is_terminal() { tcgetwinsize(stdout()).ok() } else { None };
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Prints an answer, which nobody may want to read to its end.
fn answer(text: &str) -> ExitCode {
    match stdout().write_all(printable_lines(text).as_bytes()).and_then(|()| stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            stderr::say(&Error::write(Path::new("standard output"), &error).to_string());
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_standard_output() {
        assert_eq!(file_of("-".into()), None);
        assert_eq!(file_of("./-".into()), Some("./-".into()));
    }
}
