//! `cargo xtask package`: the static agent as people install it.

mod container;
mod deb;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{arch::Arch, command, cross::Cross, dist, generate, workspace};

/// What a tarball has beside the agent, its man page and its completions.
const BESIDE: [&str; 5] =
    ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "LICENSE-GPL2"];

/// An agent for an architecture.
struct Agent {
    arch: Arch,
    path: PathBuf,
}

/// Packs the agent for each architecture; says where everything is.
pub(crate) fn run(archs: &[Arch]) -> Result<()> {
    let dir = workspace::target().join("package");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let generated = generate::write()?;
    let mut agents = Vec::new();
    for &arch in archs {
        let path = dist::build(&Cross::find_or_install(arch)?)?;
        agents.push(Agent { arch, path });
    }
    for agent in &agents {
        let deb = deb::build(agent.arch, &dir)?;
        deb::check(&deb, agent.arch)?;
        println!("{}", deb.display());
        println!("{}", tarball(agent, &generated, &dir)?.display());
    }
    println!("{}", container::build(&agents, &dir)?.display());
    Ok(())
}

/// The agent with its man page and completions as `profiler-VERSION-ARCH.tar.gz`.
fn tarball(agent: &Agent, generated: &[PathBuf], dir: &Path) -> Result<PathBuf> {
    let name = format!("profiler-{}-{}", env!("CARGO_PKG_VERSION"), agent.arch);
    let scratch = tempfile::tempdir().context("cannot make a folder")?;
    let inside = scratch.path().join(&name);
    fs::create_dir(&inside)?;
    let copy = |from: &Path, name: &str| {
        let done = fs::copy(from, inside.join(name)).map(|_| ());
        done.with_context(|| format!("cannot copy {}", from.display()))
    };
    copy(&agent.path, "profiler")?;
    for file in generated {
        copy(file, &file.file_name().unwrap_or_default().to_string_lossy())?;
    }
    for file in BESIDE {
        copy(&workspace::root().join(file), file)?;
    }
    let packed = dir.join(format!("{name}.tar.gz"));
    let mut tar = reproducible_tar(scratch.path());
    // Without a name and a time.
    let packer = "--use-compress-program=gzip -n";
    command::run(tar.arg(packer).arg("--file").arg(&packed).arg(&name))?;
    Ok(packed)
}

/// tar that makes the same archive of the same files of a folder, whoever runs it when.
fn reproducible_tar(folder: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .args(["--mtime=@0", "--mode=go=rX,u+rw,a-s", "--directory"])
        .arg(folder);
    tar
}
