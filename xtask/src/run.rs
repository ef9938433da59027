//! `cargo xtask run`: the profiler, from source to its first sample.

use std::{ffi::OsString, os::unix::process::CommandExt as _, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::{arch::Arch, command, ebpf, workspace};

/// Builds the agent with its object inside; returns where it is.
pub(crate) fn build_agent() -> Result<PathBuf> {
    ebpf::build(Arch::HOST)?;
    let mut cargo = workspace::cargo();
    command::run(cargo.args(["build", "--quiet", "--release", "--package", "profiler"]))?;
    Ok(workspace::target().join("release/profiler"))
}

/// Builds the agent and becomes it, so that signals and the exit code are its own.
pub(crate) fn run(args: &[OsString]) -> Result<()> {
    let agent = build_agent()?;
    let agent = agent.to_str().context("the target folder's path is not UTF-8")?;
    let mut command = command::as_root(agent).with_context(|| {
        format!("the profiler needs root, and sudo is not on PATH; as root, run {agent}")
    })?;
    command.args(args);
    if !command::is_root() {
        eprintln!("+ {}", command::words(&command));
    }
    Err(command.exec()).with_context(|| format!("cannot run {agent}"))
}
