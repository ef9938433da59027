//! The program, as tests run it that need no privileges.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
};

/// Runs it in a folder, with this on standard input.
pub(crate) fn run(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    command.args(arguments).current_dir(folder);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may have said already what is wrong.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}
