//! `cargo xtask bench`: measures on this machine.

use anyhow::{Result, anyhow};

use crate::{arch::Arch, command, cross::Cross, ebpf, fixtures, run, test, workspace};

pub(crate) fn run() -> Result<()> {
    let agent = run::build_agent()?;
    let objects = ebpf::build(Arch::HOST)?;
    let mut cargo = workspace::cargo();
    cargo
        .args(["bench", "--quiet", "--package", "profiler", "--bench", "sampling"])
        .env("PROFILER_AGENT", agent)
        .env("PROFILER_FIXED_RECORD", objects.fixed_record)
        .env("PROFILER_TEST_FIXTURES", fixtures::build(&Cross::find_or_install(Arch::HOST)?)?)
        .env("PROFILER_BENCH_JSON", workspace::target().join("bench.json"));
    test::as_root(&mut cargo).map_err(|why| anyhow!("the benchmark {why}"))?;
    command::run(&mut cargo)
}
