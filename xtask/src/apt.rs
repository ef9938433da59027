//! Installing Debian packages on this machine.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{archive, command};

/// Installs packages, after a look at whether they are known at all. Other packages are never removed
/// for them: where that would be needed, they are taken from the release's backports.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if command::on_path("apt-get").is_empty() {
        bail!("apt-get is not on PATH");
    }
    // A fresh machine may have no package lists, or old ones with versions that are gone.
    command::run_shown(root()?.args(["update", "--quiet=2"]))?;
    let known = |package: &&str| {
        command::output("apt-cache", &["show", "--no-all-versions", package])
            .is_some_and(|text| !text.is_empty())
    };
    if !packages.iter().all(known) {
        bail!("apt knows no {}", packages.join(", "));
    }
    let mut install = vec!["install", "--yes", "--quiet=2", "--no-install-recommends"];
    install.extend(packages);
    let dry_run = command::output("apt-get", &[&install[..], &["--dry-run"]].concat());
    if dry_run.is_some_and(|plan| !plan.lines().any(|line| line.starts_with("Remv "))) {
        return command::run_shown(root()?.args(&install));
    }
    from_backports(&install)
}

fn root() -> Result<Command> {
    command::as_root("apt-get").context("not root, and sudo is not on PATH")
}

/// Reads the backports by a configuration of its own, so that the machine's stays as it is.
fn from_backports(install: &[&str]) -> Result<()> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.context("/etc/os-release has no VERSION_CODENAME")?;
    let backports = format!("{codename}-backports");
    let dir = tempfile::tempdir().context("cannot make a folder for apt's lists")?;
    let suites = [codename, &backports, &format!("{codename}-security")].map(str::to_owned);
    let options = archive::private_apt(dir.path(), &suites)?;
    command::run_shown(root()?.args(&options).args(["update", "--quiet=2"]))?;
    command::run_shown(root()?.args(&options).args(["--target-release", &backports]).args(install))
}
