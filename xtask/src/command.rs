//! Running other programs.

use std::{
    env,
    ffi::OsStr,
    io,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// Runs a command that builds, fetches or installs something; an error names it. What it prints goes to
/// standard error, since standard output belongs to what the chore prints itself, such as the samples of
/// `cargo xtask run`.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    run_printing(command.stdout(io::stderr()))
}

/// Runs a command whose output is what the chore is for, and leaves it on standard output.
pub(crate) fn run_printing(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run `{}`", words(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", words(command));
    }
    Ok(())
}

/// Prints the command, then runs it: for what changes the machine or takes long.
pub(crate) fn run_shown(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", words(command));
    run(command)
}

/// The command's standard output, trimmed; nothing if it can't be run or fails.
pub(crate) fn output(program: impl AsRef<OsStr>, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Where a program stands on PATH: all places, the first first.
pub(crate) fn on_path(program: &str) -> Vec<PathBuf> {
    env::var_os("PATH")
        .iter()
        .flat_map(env::split_paths)
        .map(|dir| dir.join(program))
        .filter(|path| path.is_file())
        .collect()
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// The command that runs `program` as root: itself where this is root already, else by sudo. `None`
/// where there is no sudo.
pub(crate) fn as_root(program: &str) -> Option<Command> {
    if is_root() {
        return Some(Command::new(program));
    }
    on_path("sudo").first().map(|sudo| {
        let mut command = Command::new(sudo);
        command.arg(program);
        command
    })
}

/// The command as one would type it.
pub(crate) fn words(command: &Command) -> String {
    let environment = command.get_envs().filter_map(|(name, value)| {
        // What `workspace::cargo` sets each time says nothing.
        (name != "CARGO_TARGET_DIR").then_some(())?;
        Some(format!("{}='{}'", name.display(), value?.display()))
    });
    let program = std::iter::once(command.get_program().display().to_string());
    let arguments = command.get_args().map(|argument| argument.display().to_string());
    environment.chain(program).chain(arguments).collect::<Vec<_>>().join(" ")
}
