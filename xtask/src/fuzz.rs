//! `cargo xtask fuzz`: each fuzz target for a bounded time.

use std::fs;

use anyhow::{Context as _, Result};

use crate::{arch::Arch, command, ebpf, workspace};

const VERSION: &str = "0.13.2";

pub(crate) fn run(seconds: u32) -> Result<()> {
    let objects = ebpf::build(Arch::HOST)?;
    let home = workspace::cache()?.join(format!("cargo-fuzz-{VERSION}"));
    let cargo_fuzz = home.join("bin/cargo-fuzz");
    if !cargo_fuzz.exists() {
        let mut install = workspace::cargo();
        install.args(["install", "cargo-fuzz", "--locked", "--version", VERSION]);
        command::run_shown(
            install
                .arg("--root")
                .arg(&home)
                .env("CARGO_TARGET_DIR", workspace::target().join("cargo-fuzz")),
        )
        .context("cannot build cargo-fuzz, which needs the network or a filled cargo registry")?;
    }
    let dir = workspace::root().join("profiler/fuzz");
    let targets = fs::read_dir(dir.join("fuzz_targets"))
        .with_context(|| format!("cannot read {}", dir.display()))?;
    for target in targets {
        let path = target?.path();
        let name = path.file_stem().unwrap_or_default();
        let mut fuzz = std::process::Command::new(&cargo_fuzz);
        fuzz.arg("run")
            .arg("--fuzz-dir")
            .arg(&dir)
            .arg(name)
            .args(["--", &format!("-max_total_time={seconds}")])
            .current_dir(workspace::root())
            // Sanitizers are behind an unstable flag of the compiler.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("PROFILER_EBPF_OBJECT", &objects.profiler);
        command::run_shown(&mut fuzz)?;
    }
    Ok(())
}
