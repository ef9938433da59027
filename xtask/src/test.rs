//! `cargo xtask test`: all checks, each run to its end, with a line each at the end.

use std::{fmt, process::Command};

use anyhow::{Result, bail};

use crate::{arch::Arch, command, cross::Cross, ebpf, fixtures, vm, workspace};

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

/// Runs the checks; with a filter, only the kernel tests whose name contains it. With `vm` the kernel
/// tests also on emulated machines.
pub(crate) fn run(vm: bool, filter: Option<&str>) -> Result<()> {
    ebpf::build(Arch::HOST)?;
    let mut outcomes = Vec::new();
    if filter.is_none() {
        outcomes.push(("formatting", component("fmt", &["--all", "--check"])));
        let clippy = ["--all-targets", "--quiet", "--", "-Dwarnings"];
        outcomes.push(("clippy", component("clippy", &clippy)));
        outcomes.push(("unit tests", outcome(workspace::cargo().args(["test", "--quiet"]))));
    }
    outcomes.push(("kernel tests", kernel_tests(filter)));
    if vm {
        let done = vm::run(&vm::Options::with_filter(filter));
        let outcome =
            done.map_or_else(|it| Outcome::Failed(format!("{it:#}")), |()| Outcome::Passed);
        outcomes.push(("emulated", outcome));
    }

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
    match Cross::find_or_install(Arch::HOST).and_then(|cross| fixtures::build(&cross)) {
        Ok(programs) => cargo.env("PROFILER_TEST_FIXTURES", programs),
        Err(error) => return Outcome::Failed(format!("no programs to profile: {error:#}")),
    };
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
