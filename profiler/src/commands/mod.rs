//! What the profiler can be told to do, a file each.

mod doctor;
mod privileges;
mod sample;
mod unwind_info;

use std::{
    io::{Write as _, stdout},
    process::ExitCode,
};

use profiler_profile::printable::printable_lines;

use crate::{
    cli::{Cli, Command},
    error::Result,
};

/// Does what was typed.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Some(Command::Doctor { json }) => Ok(doctor::run(json)),
        Some(Command::UnwindInfo { file, at }) => unwind_info::run(&file, at),
        None => sample::run(cli.sampling, cli.verbose).map(|()| ExitCode::SUCCESS),
    }
}

/// Prints an answer, which nobody may want to read.
fn answer(text: &str) -> ExitCode {
    let printed = stdout().write_all(printable_lines(text).as_bytes());
    if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
