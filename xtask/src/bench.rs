//! `cargo xtask bench`: measures on this machine.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};

use crate::{arch::Arch, command, cross::Cross, ebpf, fixtures, run, test, workspace};

/// A profiler that is measured beside ours. It brings its eBPF object, so that stable cargo builds it.
const PROFILE_BEE: &str = "0.3.13";

/// What to measure.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Build profile-bee, a profiler to compare with, if it is not there: once, into the cache.
    #[arg(long)]
    with_profile_bee: bool,
    /// For how many seconds each of the two runs of `soak` goes on; 15 by default.
    #[arg(long, value_name = "SECONDS")]
    soak_seconds: Option<u32>,
    /// Only these parts: programs, kernel, whole, short, slowdown, switches, agent, recording, losses,
    /// overload, start, tables, names, top, soak.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let agent = run::build_agent()?;
    let objects = ebpf::build(Arch::HOST)?;
    let mut cargo = workspace::cargo();
    cargo
        .args(["bench", "--quiet", "--package", "profiler", "--bench", "sampling", "--"])
        .args(&options.parts)
        .env("PROFILER_AGENT", agent)
        .env("PROFILER_FIXED_RECORD", objects.fixed_record)
        .env("PROFILER_TEST_FIXTURES", fixtures::build(&Cross::find_or_install(Arch::HOST)?)?)
        .env("PROFILER_BENCH_JSON", workspace::target().join("bench.json"));
    if let Some(seconds) = options.soak_seconds {
        cargo.env("PROFILER_SOAK_SECONDS", seconds.to_string());
    }
    if let Some(program) = profile_bee(options.with_profile_bee)? {
        cargo.env("PROFILER_PROFILE_BEE", program);
    }
    test::as_root(&mut cargo).map_err(|why| anyhow!("the benchmark {why}"))?;
    command::run_printing(&mut cargo)
}

/// Where profile-bee is: in the cache, or built into it if that is asked for.
fn profile_bee(build: bool) -> Result<Option<PathBuf>> {
    let home = workspace::cache()?.join(format!("profile-bee-{PROFILE_BEE}"));
    let program = home.join("bin/probee");
    if program.is_file() {
        return Ok(Some(program));
    }
    if !build {
        return Ok(None);
    }
    let scratch = home.join("build");
    let mut install = workspace::cargo();
    install
        .args(["install", "profile-bee", "--locked", "--version", PROFILE_BEE])
        // The rest talks to services, or draws.
        .args(["--no-default-features", "--root"])
        .arg(&home)
        .env("CARGO_TARGET_DIR", &scratch);
    let built = command::run_shown(&mut install);
    // Only what it leaves in `home` is wanted; a folder that stays costs space, nothing else.
    let _ = std::fs::remove_dir_all(&scratch);
    built
        .context("cannot build profile-bee, which needs the network or a filled cargo registry")?;
    Ok(Some(program))
}
