//! What builds programs for machines of an architecture, this one's or the other: found, or installed.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{apt, arch::Arch, archive::Archive, command, workspace};

/// A C compiler and a Rust standard library for an architecture.
pub(crate) struct Cross {
    /// The architecture of what is built.
    pub(crate) arch: Arch,
    cc: String,
    rust: Rust,
}

/// A Rust compiler that has the standard library of the architecture.
struct Rust {
    /// The compiler; that of the toolchain in use if there is none.
    rustc: Option<PathBuf>,
    /// Where its libraries are, if not where it looks itself.
    sysroot: Option<PathBuf>,
}

impl Cross {
    /// Finds what is needed, or installs it.
    pub(crate) fn find_or_install(arch: Arch) -> Result<Self> {
        let native = arch == Arch::HOST;
        let cc = if native { "cc".to_owned() } else { format!("{}-gcc", arch.gnu()) };
        if command::on_path(&cc).is_empty() {
            let gcc = format!("gcc-{}", arch.gnu().replace('_', "-"));
            let libc = format!("libc6-dev-{}-cross", arch.debian());
            let packages = if native { ["gcc", "libc6-dev"] } else { [&*gcc, &*libc] };
            apt::install(&packages).with_context(|| {
                format!("no {cc} on PATH; on Debian, apt-get install {}", packages.join(" "))
            })?;
        }
        Ok(Self { arch, cc, rust: Rust::find_or_install(arch)? })
    }

    /// cargo, set up for static programs of the architecture when called with `--target`.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = workspace::cargo();
        let target = self.arch.target().replace('-', "_").to_uppercase();
        let mut flags = "-Ctarget-feature=+crt-static".to_owned();
        if let Some(sysroot) = &self.rust.sysroot {
            flags = format!("{flags} --sysroot {}", sysroot.display());
        }
        cargo
            .env(format!("CARGO_TARGET_{target}_LINKER"), &self.cc)
            .env(format!("CARGO_TARGET_{target}_RUSTFLAGS"), flags);
        if let Some(rustc) = &self.rust.rustc {
            cargo.env("RUSTC", rustc).env_remove("RUSTC_WRAPPER").env_remove("RUSTUP_TOOLCHAIN");
        }
        cargo
    }

    /// The C compiler.
    pub(crate) fn cc(&self) -> Command {
        Command::new(&self.cc)
    }

    /// The C++ compiler, which is installed if need be.
    pub(crate) fn cxx(&self) -> Result<Command> {
        let native = self.arch == Arch::HOST;
        let cxx = if native { "c++".to_owned() } else { format!("{}-g++", self.arch.gnu()) };
        if command::on_path(&cxx).is_empty() {
            let cross = format!("g++-{}", self.arch.gnu().replace('_', "-"));
            let package = if native { "g++" } else { &cross };
            apt::install(&[package]).with_context(|| {
                format!("no {cxx} on PATH; on Debian, apt-get install {package}")
            })?;
        }
        Ok(Command::new(cxx))
    }

    /// The Rust compiler, for dynamic programs of the architecture.
    pub(crate) fn rustc(&self) -> Command {
        let mut rustc = Command::new(self.rust.rustc.as_deref().unwrap_or(Path::new("rustc")));
        rustc.current_dir(workspace::root()).args(["--target", &self.arch.target()]);
        if let Some(sysroot) = &self.rust.sysroot {
            rustc.arg("--sysroot").arg(sysroot);
        }
        rustc.arg(format!("-Clinker={}", self.cc));
        rustc
    }

    /// Where the C compiler links this library from.
    pub(crate) fn library(&self, name: &str) -> Result<PathBuf> {
        let found = command::output(&self.cc, &[&format!("-print-file-name={name}")]);
        let found = found.map(PathBuf::from).filter(|path| path.is_absolute());
        found.with_context(|| format!("{} has no {name}", self.cc))
    }
}

impl Rust {
    fn find_or_install(arch: Arch) -> Result<Self> {
        let of_toolchain = || {
            let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
            let sysroot = command::output(rustc, &["--print", "sysroot"])?;
            let std = Path::new(&sysroot).join("lib/rustlib").join(arch.target()).join("lib");
            std.is_dir().then_some(Self { rustc: None, sysroot: None })
        };
        if let Some(found) = of_toolchain() {
            return Ok(found);
        }
        let mut tried = Vec::new();
        if command::on_path("rustup").is_empty() {
            tried.push("rustup is not on PATH".to_owned());
        } else {
            let mut rustup = Command::new("rustup");
            rustup.args(["target", "add", &arch.target()]).current_dir(workspace::root());
            match command::run_shown(&mut rustup) {
                Ok(()) => match of_toolchain() {
                    Some(found) => return Ok(found),
                    None => tried.push("rustup has added it to another toolchain".into()),
                },
                Err(error) => tried.push(format!("{error:#}")),
            }
        }
        match Self::debian(arch) {
            Ok(found) => return Ok(found),
            Err(error) => tried.push(format!("{error:#}")),
        }
        bail!(
            "no Rust standard library for {}, and none could be installed:\n  {}\nThis brings it: \
             rustup target add {}",
            arch.target(),
            tried.join("\n  "),
            arch.target()
        )
    }

    /// Debian's compiler with the library of the other architecture, which dpkg could not install
    /// beside this one's.
    fn debian(arch: Arch) -> Result<Self> {
        let rustc = PathBuf::from("/usr/bin/rustc");
        // As `rustc-web: /usr/bin/rustc`; the file itself may be a link.
        let file = fs::canonicalize(&rustc).context("no /usr/bin/rustc")?;
        let owner = command::output("dpkg", &["--search", &file.to_string_lossy()])
            .context("/usr/bin/rustc is not of a Debian package")?;
        let package = owner.split([':', ',']).next().unwrap_or_default().trim();
        let version =
            command::output("dpkg-query", &["--show", "--showformat=${Version}", package])
                .with_context(|| format!("dpkg knows no version of {package}"))?;
        let library = format!("libstd-{}-dev", package.replacen("rustc", "rust", 1));
        let sysroot = workspace::cache()?.join(format!("vm/{library}-{version}-{arch}"));
        if !sysroot.is_dir() {
            let unpacked = Archive::new(arch).fetch(&format!("{library}={version}"))?;
            let own = command::output(&rustc, &["--print", "sysroot"])
                .context("/usr/bin/rustc does not run")?;
            let scratch = sysroot.with_extension("new");
            let _ = fs::remove_dir_all(&scratch);
            let rustlib = scratch.join("lib/rustlib");
            fs::create_dir_all(&rustlib)
                .with_context(|| format!("cannot make {}", rustlib.display()))?;
            for entry in fs::read_dir(Path::new(&own).join("lib/rustlib"))?.flatten() {
                symlink(entry.path(), rustlib.join(entry.file_name()))?;
            }
            let (from, to) = (rustlib_of(unpacked.path(), arch)?, rustlib.join(arch.target()));
            command::run(Command::new("cp").arg("--recursive").args([&from, &to]))?;
            fs::rename(&scratch, &sysroot)?;
        }
        Ok(Self { rustc: Some(rustc), sysroot: Some(sysroot) })
    }
}

/// Where an unpacked package has the library of an architecture.
fn rustlib_of(unpacked: &Path, arch: Arch) -> Result<PathBuf> {
    let dir = unpacked.join("usr/lib/rustlib").join(arch.target());
    if dir.is_dir() { Ok(dir) } else { bail!("the package has no rustlib/{}", arch.target()) }
}
