//! The Rust compiler that builds the eBPF program: found, or installed.
//!
//! Two kinds will do. A compiler with the source of `core` (rustup's component `rust-src`) builds
//! `core` along with the program. A compiler whose sysroot holds a `core` compiled for BPF, as
//! Debian's package has it, needs nothing more.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{apt, command};

/// The target that the eBPF program is compiled for: every machine we support is little-endian.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// A compiler that can build for BPF.
#[derive(Debug)]
pub(crate) struct Toolchain {
    /// The compiler.
    pub(crate) rustc: PathBuf,
    /// Major version of its LLVM.
    pub(crate) llvm: u32,
    /// Whether `core` has to be built along with the program.
    pub(crate) build_std: bool,
}

impl Toolchain {
    /// Finds a compiler, or installs one.
    pub(crate) fn find_or_install() -> Result<Self> {
        if let Some(rustc) = env::var_os("PROFILER_BPF_RUSTC").filter(|path| !path.is_empty()) {
            return Self::probe(Path::new(&rustc)).with_context(|| {
                format!(
                    "PROFILER_BPF_RUSTC names {}, which can't build for BPF: it has neither \
                     rust-src nor a compiled core for {TARGET}",
                    rustc.display()
                )
            });
        }
        if let Some(found) = Self::find() {
            return Ok(found);
        }
        install()?;
        Self::find().context(
            "the compiler that was just installed can't build for BPF; set PROFILER_BPF_RUSTC to \
             one that can",
        )
    }

    fn find() -> Option<Self> {
        let nightlies =
            rustup_compilers().into_iter().filter(|(name, _)| name.starts_with("nightly"));
        let with_source =
            nightlies.filter_map(|(_, rustc)| Self::probe(&rustc)).find(|found| found.build_std);
        with_source.or_else(|| {
            let system = ["/usr/bin/rustc", "/usr/local/bin/rustc"].map(PathBuf::from);
            command::on_path("rustc")
                .into_iter()
                .chain(system)
                .filter_map(|rustc| Self::probe(&rustc))
                .find(|found| !found.build_std)
        })
    }

    /// Looks at one compiler: `None` if it can't build for BPF.
    fn probe(rustc: &Path) -> Option<Self> {
        let sysroot = PathBuf::from(command::output(rustc, &["--print", "sysroot"])?);
        let rustlib = sysroot.join("lib/rustlib");
        let build_std = if has_compiled_core(&rustlib.join(TARGET).join("lib")) {
            false
        } else if rustlib.join("src/rust/library/core").is_dir() {
            true
        } else {
            return None;
        };
        let llvm = llvm_major(&command::output(rustc, &["-vV"])?)?;
        Some(Self { rustc: rustc.into(), llvm, build_std })
    }
}

/// rustup's toolchains: name and compiler.
fn rustup_compilers() -> Vec<(String, PathBuf)> {
    let listed = command::output("rustup", &["toolchain", "list"]).unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    names
        .filter_map(|name| {
            let rustc = command::output("rustup", &["which", "--toolchain", name, "rustc"])?;
            Some((name.to_owned(), rustc.into()))
        })
        .collect()
}

fn has_compiled_core(dir: &Path) -> bool {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.map(|entry| entry.file_name()).any(|name| {
        let name = name.to_string_lossy();
        name.starts_with("libcore-") && name.ends_with(".rlib")
    })
}

/// The major version in rustc's line `LLVM version: 22.1.8`.
fn llvm_major(version: &str) -> Option<u32> {
    let line = version.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    line.split('.').next()?.parse().ok()
}

/// Debian's names: the compiler that is kept current for its browsers, then the release's own.
const APT: [&[&str]; 2] = [
    &["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf"],
    &["rustc", "cargo", "libstd-rust-dev-bpf"],
];

fn install() -> Result<()> {
    let mut tried = Vec::new();
    for packages in APT {
        match apt::install(packages) {
            Ok(()) => return Ok(()),
            Err(error) => tried.push(format!("{error:#}")),
        }
    }
    if command::on_path("rustup").is_empty() {
        tried.push("rustup is not on PATH".into());
    } else {
        let mut rustup = Command::new("rustup");
        rustup.args(["toolchain", "install", "nightly", "--profile", "minimal"]);
        match command::run_shown(rustup.args(["--component", "rust-src"])) {
            Ok(()) => return Ok(()),
            Err(error) => tried.push(format!("{error:#}")),
        }
    }
    bail!(
        "no Rust compiler here can build for BPF, and none could be installed:\n  {}\nEither of \
         these brings one:\n  apt-get install {}\n  rustup toolchain install nightly --component \
         rust-src\nor set PROFILER_BPF_RUSTC to a rustc that has a compiled core for {TARGET}",
        tried.join("\n  "),
        APT[0].join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_llvm_version() {
        let printed = "rustc 1.96.0 (built from a source tarball)\nLLVM version: 22.1.8\n";
        assert_eq!(llvm_major(printed), Some(22));
        assert_eq!(llvm_major("rustc 1.96.0\n"), None);
    }

    #[test]
    fn a_compiled_core_is_an_rlib_of_core() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("libcompiler_builtins-1.rlib"), "").unwrap();
        fs::write(dir.path().join("libcore-1.rmeta"), "").unwrap();
        assert!(!has_compiled_core(dir.path()));
        fs::write(dir.path().join("libcore-1.rlib"), "").unwrap();
        assert!(has_compiled_core(dir.path()));
        assert!(!has_compiled_core(&dir.path().join("none")));
    }
}
