//! `cargo xtask test`: all checks, each run to its end, with a line each at the end.

use std::{fmt, process::Command};

use anyhow::{Result, bail};

use crate::{command, ebpf, toolchain, workspace};

enum Outcome {
    Passed,
    Failed(String),
    Skipped(&'static str),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
        }
    }
}

/// Runs the checks; with a filter, only the kernel tests whose name contains it.
pub(crate) fn run(filter: Option<&str>) -> Result<()> {
    ebpf::build(std::env::consts::ARCH)?;
    let mut outcomes = Vec::new();
    if filter.is_none() {
        outcomes.push(("formatting", component("fmt", &["--all", "--check"])));
        let clippy = ["--all-targets", "--quiet", "--", "-Dwarnings"];
        outcomes.push(("clippy", component("clippy", &clippy)));
        outcomes.push(("unit tests", outcome(workspace::cargo().args(["test", "--quiet"]))));
    }
    outcomes.push(("kernel tests", kernel_tests(filter)));

    println!();
    for (name, outcome) in &outcomes {
        println!("{name:<14}{outcome}");
    }
    if outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_))) {
        bail!("not all checks passed");
    }
    Ok(())
}

/// The tests that load the program into the kernel are marked `#[ignore]`, so that a plain
/// `cargo test` works for everyone.
fn kernel_tests(filter: Option<&str>) -> Outcome {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--package", "profiler", "--test", "kernel", "--"]);
    // One after another: each looks at what the whole machine does.
    cargo.args(["--ignored", "--test-threads=1"]).args(filter);
    if let Err(why) = as_root(&mut cargo) {
        return Outcome::Skipped(why);
    }
    if let Err(error) = bpftool() {
        eprintln!("xtask: {error:#}");
        return Outcome::Failed("bpftool, which the tests look into the kernel with".into());
    }
    outcome(&mut cargo)
}

/// Has cargo run what it builds as root.
pub(crate) fn as_root(cargo: &mut Command) -> Result<(), &'static str> {
    if command::is_root() {
        return Ok(());
    }
    let Some(sudo) = command::on_path("sudo").into_iter().next() else {
        return Err("needs root, and sudo is not on PATH");
    };
    let triple = format!("{}_UNKNOWN_LINUX_GNU", std::env::consts::ARCH.to_uppercase());
    cargo
        .env(format!("CARGO_TARGET_{triple}_RUNNER"), format!("{} --preserve-env", sudo.display()));
    Ok(())
}

fn bpftool() -> Result<()> {
    let found = !command::on_path("bpftool").is_empty()
        || std::path::Path::new("/usr/sbin/bpftool").exists();
    if found { Ok(()) } else { toolchain::apt_install(&["bpftool"]) }
}

/// A check by one of rustup's components, which need not be there.
fn component(name: &str, arguments: &[&str]) -> Outcome {
    let mut cargo = workspace::cargo();
    if !cargo.args([name, "--version"]).output().is_ok_and(|output| output.status.success()) {
        return Outcome::Skipped("not installed: rustup component add rustfmt clippy");
    }
    outcome(workspace::cargo().arg(name).args(arguments))
}

fn outcome(command: &mut Command) -> Outcome {
    eprintln!("+ {}", command::words(command));
    match command::run(command) {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}
