//! Debian's kernels, kept in the user's cache.
//!
//! The `cloud` flavour has all that is needed built in, so that the kernel image is all of it. Pinned
//! versions make a run repeatable; the archive drops them in time, and then the newest one of the
//! series takes the place.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{arch::Arch, archive::Archive, workspace};

/// A kernel series with the version that is tested on each architecture.
struct Pin {
    series: &'static str,
    x86_64: &'static str,
    aarch64: &'static str,
}

/// From old to new; the last is the newest series that Debian has for its stable release.
const PINNED: [Pin; 4] = [
    Pin { series: "5.10", x86_64: "5.10.0-46", aarch64: "5.10.0-32" },
    Pin { series: "6.1", x86_64: "6.1.0-56", aarch64: "6.1.0-56" },
    Pin { series: "6.12", x86_64: "6.12.117+deb13", aarch64: "6.12.117+deb13" },
    Pin { series: "7.2", x86_64: "7.2.12+deb13", aarch64: "7.2.12+deb13" },
];

/// How many versions of a series are tried: some in the index are not in the archive any more.
const TRIES: usize = 4;

/// A kernel that can be booted.
pub(crate) struct Kernel {
    /// The image.
    pub(crate) image: PathBuf,
    /// What it calls itself: `uname -r`.
    pub(crate) release: String,
}

/// The series that are tested when none is named.
pub(crate) fn all_series() -> Vec<String> {
    PINNED.iter().map(|pin| pin.series.to_owned()).collect()
}

/// The kernel of a series: from the cache, else from the archive.
pub(crate) fn find(series: &str, archive: &mut Archive, arch: Arch) -> Result<Kernel> {
    let pinned = PINNED.iter().find(|pin| pin.series == series).map(|pin| match arch {
        Arch::X86_64 => pin.x86_64,
        Arch::Aarch64 => pin.aarch64,
    });
    let home = workspace::cache()?.join("vm/kernels");
    // What stands for a pin that is gone has the pin's name, too.
    let name = format!("{}-cloud-{}", pinned.unwrap_or(series), arch.debian());
    if let Some(cached) = Kernel::cached(&home.join(&name)) {
        return Ok(cached);
    }
    let found = candidates(archive, series, pinned, arch)?;
    let mut tried = Vec::new();
    for package in found.iter().take(TRIES) {
        match download(archive, package, &home) {
            Ok(path) => {
                if path != home.join(&name) {
                    eprintln!("{} stands for {name}, which is not in the archive", path.display());
                    let _ = fs::remove_file(home.join(&name));
                    symlink(&path, home.join(&name))?;
                }
                return Kernel::cached(&path).context("the kernel was not kept");
            }
            Err(error) => tried.push(format!("{error:#}")),
        }
    }
    if tried.is_empty() {
        bail!("Debian has no kernel of the series {series} for {arch}");
    }
    bail!("no kernel of the series {series} for {arch} can be had:\n  {}", tried.join("\n  "))
}

impl Kernel {
    fn cached(dir: &Path) -> Option<Self> {
        let dir = fs::canonicalize(dir).ok()?;
        let image = dir.join("vmlinuz");
        let release = dir.file_name()?.to_str()?.to_owned();
        image.is_file().then_some(Self { image, release })
    }
}

/// The packages that may have a kernel image of the series: the pinned one, then from new to old.
fn candidates(
    archive: &mut Archive,
    series: &str,
    pinned: Option<&str>,
    arch: Arch,
) -> Result<Vec<String>> {
    let pattern = format!(
        "^linux-(image|binary)-{}[.][0-9].*-cloud-{}$",
        series.replace('.', "[.]"),
        arch.debian()
    );
    let mut packages = archive.search(&pattern)?;
    // Newer series have the image in `binary`, and beside it an `image` that only points there.
    packages.sort_by_key(|package| (numbers(package), package.starts_with("linux-binary")));
    packages.reverse();
    // It was the first place before.
    packages.sort_by_key(|package| !pinned.is_some_and(|pin| is_version(package, pin)));
    Ok(packages)
}

fn is_version(package: &str, version: &str) -> bool {
    let rest = package.trim_start_matches("linux-image-").trim_start_matches("linux-binary-");
    rest.strip_prefix(version).is_some_and(|rest| rest.starts_with("-cloud-"))
}

/// The numbers in a name, which order versions.
fn numbers(name: &str) -> Vec<u64> {
    let digits = name.split(|letter: char| !letter.is_ascii_digit());
    digits.filter_map(|digits| digits.parse().ok()).collect()
}

/// Keeps the image of a package in a folder with the release's name.
fn download(archive: &mut Archive, package: &str, home: &Path) -> Result<PathBuf> {
    let unpacked = archive.fetch(package)?;
    let release = package.trim_start_matches("linux-image-").trim_start_matches("linux-binary-");
    let places = [format!("boot/vmlinuz-{release}"), format!("usr/lib/modules/{release}/vmlinuz")];
    let image = places.iter().map(|place| unpacked.path().join(place)).find(|path| path.is_file());
    let image = image.with_context(|| format!("{package} has no kernel image"))?;
    let dir = home.join(release);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    // Only a whole file gets the name that is looked for.
    let (scratch, kept) = (dir.join("vmlinuz.new"), dir.join("vmlinuz"));
    fs::copy(&image, &scratch)
        .and_then(|_| fs::rename(&scratch, &kept))
        .with_context(|| format!("cannot write {}", kept.display()))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_have_larger_numbers() {
        let mut names = [
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-0.deb11.52-cloud-amd64",
        ];
        names.sort_by_key(|name| numbers(name));
        assert!(names[0].contains("deb11") && names[2].contains("-56-"), "{names:?}");
    }

    #[test]
    fn a_pin_is_a_whole_version() {
        assert!(is_version("linux-image-6.1.0-5-cloud-arm64", "6.1.0-5"));
        assert!(is_version("linux-binary-7.2.12+deb13-cloud-amd64", "7.2.12+deb13"));
        assert!(!is_version("linux-image-6.1.0-56-cloud-arm64", "6.1.0-5"));
    }
}
