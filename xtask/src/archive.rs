//! Debian's archive, read without touching this machine's own package lists: kernels and programs of
//! other releases and other architectures.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::{arch::Arch, command};

/// Where the kernels that people run come from: each of Debian's releases that is still cared for.
const SUITES: [&str; 7] = [
    "bullseye",
    "bullseye-security",
    "bookworm",
    "bookworm-security",
    "trixie",
    "trixie-security",
    "trixie-backports",
];

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The archive's packages of one architecture. Its lists are fetched when first asked for, and gone
/// when this is dropped.
pub(crate) struct Archive {
    arch: Arch,
    lists: Option<Lists>,
}

struct Lists {
    #[expect(dead_code, reason = "the lists stand in it")]
    dir: TempDir,
    options: Vec<String>,
}

impl Archive {
    /// Fetches nothing yet.
    pub(crate) fn new(arch: Arch) -> Self {
        Self { arch, lists: None }
    }

    /// The names of the packages that match an extended regular expression.
    pub(crate) fn search(&mut self, pattern: &str) -> Result<Vec<String>> {
        let mut command = self.tool("apt-cache")?;
        command.args(["search", "--names-only", pattern]);
        let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect())
    }

    /// What a package depends on, and what that depends on.
    pub(crate) fn dependencies(&mut self, package: &str) -> Result<Vec<String>> {
        let mut command = self.tool("apt-cache")?;
        command.args(["depends", "--recurse", "--important", package]);
        let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        // Packages stand at the beginning of a line; those that are only provided in brackets.
        let is_name = |line: &&str| line.starts_with(|letter: char| letter.is_ascii_lowercase());
        Ok(text.lines().filter(is_name).map(str::to_owned).collect())
    }

    /// Downloads a package (`name` or `name=version`) and unpacks it into a folder that goes when
    /// dropped.
    pub(crate) fn fetch(&mut self, package: &str) -> Result<TempDir> {
        self.fetch_all(&[package.to_owned()])
    }

    /// The same with several packages, into one folder. apt checks size and hash against the signed index; what
    /// fails is tried once more.
    pub(crate) fn fetch_all(&mut self, packages: &[String]) -> Result<TempDir> {
        let names = packages.join(" ");
        let dir = tempfile::tempdir().context("cannot make a folder to download to")?;
        let mut download = self.tool("apt-get")?;
        download.args(["--quiet=2", "download"]).args(packages).current_dir(dir.path());
        if let Err(first) = command::run_shown(&mut download) {
            eprintln!("{first:#}; once more");
            command::run(&mut download).with_context(|| {
                format!(
                    "cannot download {names} ({}) whole; is there a network, and space in {}?",
                    self.arch.debian(),
                    dir.path().display()
                )
            })?;
        }
        let files = fs::read_dir(dir.path())?.flatten().map(|entry| entry.path());
        let debs: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|it| it == "deb")).collect();
        if debs.len() < packages.len() {
            bail!("apt-get has downloaded {} of {}: {names}", debs.len(), packages.len());
        }
        let unpacked = tempfile::tempdir().context("cannot make a folder to unpack to")?;
        for deb in debs {
            command::run(Command::new("dpkg-deb").arg("--extract").arg(&deb).arg(unpacked.path()))
                .with_context(|| format!("cannot unpack {}", deb.display()))?;
        }
        Ok(unpacked)
    }

    /// apt with the lists of this archive.
    fn tool(&mut self, program: &str) -> Result<Command> {
        let lists = match self.lists.take() {
            Some(lists) => lists,
            None => Lists::fetch(self.arch)?,
        };
        let mut command = Command::new(program);
        command.args(&lists.options);
        self.lists = Some(lists);
        Ok(command)
    }
}

impl Lists {
    fn fetch(arch: Arch) -> Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a folder for apt's lists")?;
        let mut options = private_apt(dir.path(), &SUITES.map(str::to_owned))?;
        let status = dir.path().join("status");
        fs::write(&status, "")?;
        options.push(format!("-oDir::State::status={}", status.display()));
        options.push(format!("-oAPT::Architecture={}", arch.debian()));
        options.push(format!("-oAPT::Architectures={}", arch.debian()));
        eprintln!("reading the index of Debian's {} packages", arch.debian());
        command::run(Command::new("apt-get").args(&options).args(["--quiet=2", "update"]))
            .context("cannot read Debian's package index")?;
        Ok(Self { dir, options })
    }
}

/// Where the archive is to be had: from where this machine has it, too.
#[derive(Debug, PartialEq, Eq)]
struct Mirror {
    main: String,
    security: String,
}

impl Mirror {
    fn find() -> Result<Self> {
        if let Some(base) = env::var("PROFILER_DEBIAN_MIRROR").ok().filter(|it| !it.is_empty()) {
            let base = base.trim_end_matches('/');
            let (main, security) = (format!("{base}/debian"), format!("{base}/debian-security"));
            return Ok(Self { main, security });
        }
        let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
        let files = parts.map(|entry| entry.path()).chain(["/etc/apt/sources.list".into()]);
        let text: Vec<String> = files.filter_map(|path| fs::read_to_string(path).ok()).collect();
        Self::in_sources(&text.join("\n")).context(
            "apt's sources here name no archive of Debian: set PROFILER_DEBIAN_MIRROR to a server \
             that has /debian and /debian-security",
        )
    }

    /// From lines of `sources.list(5)`, in both formats.
    fn in_sources(text: &str) -> Option<Self> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let words = lines.flat_map(str::split_whitespace);
        let uris = words.filter(|word| word.starts_with("http")).map(|it| it.trim_end_matches('/'));
        let ending = |end: &str| uris.clone().find(|uri| uri.ends_with(end)).map(str::to_owned);
        Some(Self { main: ending("/debian")?, security: ending("/debian-security")? })
    }
}

/// Options that have apt read these suites, with all that it keeps in `dir`.
pub(crate) fn private_apt(dir: &Path, suites: &[String]) -> Result<Vec<String>> {
    for program in ["apt-get", "dpkg-deb"] {
        if command::on_path(program).is_empty() {
            bail!("{program} is not on PATH: Debian's packages need a Debian or Ubuntu here");
        }
    }
    if !Path::new(KEYRING).exists() {
        bail!("no {KEYRING}: apt-get install debian-archive-keyring");
    }
    let mirror = Mirror::find()?;
    let line = |suite: &String| {
        let uri = if suite.ends_with("-security") { &mirror.security } else { &mirror.main };
        format!("deb [signed-by={KEYRING}] {uri} {suite} main\n")
    };
    let sources: PathBuf = dir.join("sources.list");
    let text: String = suites.iter().map(line).collect();
    fs::write(&sources, text).with_context(|| format!("cannot write {}", sources.display()))?;
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(dir.join(part))?;
    }
    Ok(vec![
        format!("-oDir::Etc::SourceList={}", sources.display()),
        "-oDir::Etc::SourceParts=/dev/null".into(),
        format!("-oDir::State::Lists={}", dir.join("lists").display()),
        format!("-oDir::Cache={}", dir.join("cache").display()),
        "-oAcquire::Languages=none".into(),
        // The folder is ours alone, and apt's own user can't write there.
        "-oAPT::Sandbox::User=root".into(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_that_apt_has() {
        let old = "# deb http://old/debian x\ndeb [arch=amd64] http://m/debian a main\n\
                   deb http://m/debian-security/ a-security main\ndeb http://m/other b main\n";
        let new =
            "Types: deb\nURIs: http://m/debian\nSuites: a\n\nURIs: http://m/debian-security\n";
        let mirror =
            Mirror { main: "http://m/debian".into(), security: "http://m/debian-security".into() };
        assert_eq!(Mirror::in_sources(old).as_ref(), Some(&mirror));
        assert_eq!(Mirror::in_sources(new), Some(mirror));
        assert_eq!(Mirror::in_sources("deb http://m/ubuntu a main"), None);
    }
}
