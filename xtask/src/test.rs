//! `cargo xtask test`: all checks, each run to its end, with a line each at the end.

use std::{
    fmt,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::{
    apt,
    arch::Arch,
    command,
    cross::Cross,
    ebpf, fixtures, fuzz,
    harness::{self, Tally},
    vm, workspace,
};

enum Outcome {
    Passed,
    Failed(String),
    Skipped(&'static str),
}

impl From<Result<()>> for Outcome {
    fn from(done: Result<()>) -> Self {
        done.map_or_else(|error| Self::Failed(format!("{error:#}")), |()| Self::Passed)
    }
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

/// The checks that were run, in their order.
#[derive(Default)]
struct Stages {
    done: Vec<(&'static str, Duration, Outcome)>,
    tally: Tally,
}

impl Stages {
    fn run(&mut self, name: &'static str, check: impl FnOnce() -> (Tally, Outcome)) {
        let start = Instant::now();
        let (tally, outcome) = check();
        self.done.push((name, start.elapsed(), outcome));
        self.tally.add(tally);
    }

    fn have_failed(&self) -> bool {
        self.done.iter().any(|(_, _, outcome)| matches!(outcome, Outcome::Failed(_)))
    }
}

/// A line a stage with its minutes, then how many tests ended how.
impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14}{:>7}", "stage", "minutes")?;
        for (name, took, outcome) in &self.done {
            writeln!(f, "{name:<14}{:>7.1}  {outcome}", took.as_secs_f64() / 60.0)?;
        }
        let total: Duration = self.done.iter().map(|(_, took, _)| *took).sum();
        writeln!(f, "{:<14}{:>7.1}\n", "all", total.as_secs_f64() / 60.0)?;
        write!(f, "{}", self.tally)
    }
}

/// Runs the checks; with a filter, only the kernel tests whose name contains it. With `vm` the kernel
/// tests also on emulated machines.
pub(crate) fn run(vm: bool, filter: Option<&str>) -> Result<()> {
    let mut stages = Stages::default();
    let plain = |outcome: Outcome| (Tally::default(), outcome);
    stages.run("eBPF program", || plain(ebpf::build(Arch::HOST).map(drop).into()));
    if stages.have_failed() {
        bail!("{stages}");
    }
    if filter.is_none() {
        stages.run("formatting", || plain(component("fmt", &["--all", "--check"])));
        let clippy = ["--all-targets", "--quiet", "--", "-Dwarnings"];
        stages.run("clippy", || plain(component("clippy", &clippy)));
        stages.run("fuzz targets", || plain(fuzz_targets()));
        stages.run("unit tests", || counted(workspace::cargo().args(["test", "--quiet"])));
    }
    stages.run("kernel tests", || kernel_tests(filter));
    if vm {
        stages.run("emulated", || {
            let (tally, done) = vm::run_counted(&vm::Options::with_filter(filter));
            (tally, done.into())
        });
    }
    println!("\n{stages}");
    if stages.have_failed() {
        bail!("not all checks passed");
    }
    Ok(())
}

/// The tests that load the program into the kernel are marked `#[ignore]`, so that a plain
/// `cargo test` works for everyone.
fn kernel_tests(filter: Option<&str>) -> (Tally, Outcome) {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--package", "profiler", "--test", "kernel", "--"]);
    // One after another: each looks at what the whole machine does.
    cargo.args(["--ignored", "--test-threads=1"]).args(filter);
    if let Err(why) = as_root(&mut cargo) {
        return (Tally::default(), Outcome::Skipped(why));
    }
    // The terminal of the tests that look at a screen, which say so where there is none.
    if command::on_path("tmux").is_empty()
        && let Err(error) = apt::install(&["tmux"])
    {
        eprintln!("tmux can't be installed: {error:#}");
    }
    match Cross::find_or_install(Arch::HOST).and_then(|cross| fixtures::build(&cross)) {
        Ok(programs) => cargo.env("PROFILER_TEST_FIXTURES", programs),
        Err(error) => {
            let why = format!("no programs to profile: {error:#}");
            return (Tally::default(), Outcome::Failed(why));
        }
    };
    counted(&mut cargo)
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
    command::run_shown(workspace::cargo().arg(name).args(arguments)).into()
}

/// That the fuzz targets compile, which are a workspace of their own.
fn fuzz_targets() -> Outcome {
    let checked = ebpf::build(Arch::HOST).map(|objects| fuzz::check(&objects));
    match checked {
        Ok(Some(done)) => done.into(),
        Ok(None) => Outcome::Skipped("what they depend on can't be downloaded"),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Runs tests, and counts them.
fn counted(command: &mut Command) -> (Tally, Outcome) {
    eprintln!("+ {}", command::words(command));
    let (harness, done) = harness::run(command);
    (harness.tally(), done.into())
}
