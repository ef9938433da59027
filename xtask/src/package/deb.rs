//! A Debian package by cargo-deb, whose content is declared in `profiler/Cargo.toml`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{arch::Arch, command, workspace};

const VERSION: &str = "3.8.0";

/// Packs the agent that was built for an architecture, with what was [generated](crate::generate).
pub(super) fn build(arch: Arch, dir: &Path) -> Result<PathBuf> {
    let packed = dir.join(format!("profiler_{}_{}.deb", env!("CARGO_PKG_VERSION"), arch.debian()));
    let mut cargo = workspace::cargo();
    cargo.env("PATH", with_cargo_deb()?);
    cargo.args(["deb", "--quiet", "--package", "profiler", "--no-build", "--no-strip"]);
    cargo.args(["--target", &arch.target(), "--profile", "static", "--output"]);
    command::run(cargo.arg(&packed))?;
    Ok(packed)
}

/// `PATH` with a cargo-deb that is in the cache, or built into it.
fn with_cargo_deb() -> Result<std::ffi::OsString> {
    let home = workspace::cache()?.join(format!("cargo-deb-{VERSION}"));
    let bin = home.join("bin");
    if command::output(bin.join("cargo-deb"), &["--version"]).is_none() {
        let mut install = workspace::cargo();
        install
            .args(["install", "cargo-deb", "--locked", "--version", VERSION, "--force", "--root"])
            .arg(&home)
            .env("CARGO_TARGET_DIR", home.with_extension("build"));
        eprintln!("cargo-deb {VERSION} is built once, into {}", home.display());
        let built = command::run_shown(&mut install);
        let _ = fs::remove_dir_all(home.with_extension("build"));
        built.context(
            "cannot build cargo-deb, which needs the network or a filled cargo registry",
        )?;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path)))?)
}

/// Installs a package with dpkg in an empty root, runs what it installs where this machine can, upgrades it to
/// itself, and purges it: nothing may be left. Needs root; without, it says that this was left out.
pub(super) fn check(deb: &Path, arch: Arch) -> Result<()> {
    if !command::is_root() || command::on_path("dpkg").is_empty() {
        eprintln!("xtask: not root, or no dpkg: {} was not installed to check it", deb.display());
        return Ok(());
    }
    let scratch = tempfile::tempdir().context("cannot make a folder")?;
    let root = scratch.path();
    fs::create_dir_all(root.join("var/lib/dpkg/updates"))?;
    fs::create_dir_all(root.join("var/lib/dpkg/info"))?;
    fs::write(root.join("var/lib/dpkg/status"), "")?;
    fs::write(root.join("var/lib/dpkg/arch"), format!("{}\n", arch.debian()))?;
    let dpkg = |action: &str, what: &Path| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("--root").arg(root).arg("--force-architecture").arg(action).arg(what);
        command::run(&mut dpkg)
    };
    dpkg("--install", deb)?;
    let agent = root.join("usr/bin/profiler");
    if arch == Arch::HOST {
        let said = command::output(&agent, &["--version"]).unwrap_or_default();
        if said.trim() != concat!("profiler ", env!("CARGO_PKG_VERSION")) {
            bail!("{} installs a profiler that says {said:?}", deb.display());
        }
    }
    dpkg("--install", deb)?;
    dpkg("--purge", Path::new("profiler"))?;
    if agent.exists() || root.join("usr/share/doc/profiler").exists() {
        bail!("{} leaves files behind when it is purged", deb.display());
    }
    Ok(())
}
