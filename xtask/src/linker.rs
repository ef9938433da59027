//! bpf-linker: it links LLVM bitcode, so its LLVM has to be the compiler's.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{apt, command, workspace};

const VERSION: &str = "0.13.0";

/// A bpf-linker with this major version of LLVM: on PATH, in the cache, or built into the cache.
pub(crate) fn find_or_build(llvm: u32) -> Result<PathBuf> {
    let home = workspace::cache()?.join(format!("bpf-linker-{VERSION}-llvm{llvm}"));
    let cached = home.join("bin/bpf-linker");
    // A copy whose LLVM library has since been removed does not start.
    if command::output(&cached, &["--version"]).is_some() {
        return Ok(cached);
    }
    let on_path = command::on_path("bpf-linker");
    if let Some(found) = on_path.into_iter().find(|linker| links_llvm(linker, llvm)) {
        return Ok(found);
    }
    build(llvm, &home)?;
    Ok(cached)
}

/// Whether the program is linked with this LLVM. One that has LLVM inside doesn't say which, and is
/// passed over.
fn links_llvm(linker: &Path, llvm: u32) -> bool {
    let libraries = command::output("ldd", &[&linker.to_string_lossy()]).unwrap_or_default();
    libraries.contains(&format!("libLLVM.so.{llvm}."))
        || libraries.contains(&format!("libLLVM-{llvm}."))
}

fn build(llvm: u32, home: &Path) -> Result<()> {
    let prefix = PathBuf::from(format!("/usr/lib/llvm-{llvm}"));
    if !prefix.join("bin/llvm-config").exists() {
        let package = format!("llvm-{llvm}-dev");
        apt::install(&[&package]).with_context(|| {
            format!(
                "bpf-linker has to be built against LLVM {llvm}, which is not at {}; install it, \
                 on Debian with `apt-get install {package}`",
                prefix.display()
            )
        })?;
    }
    let scratch = home.with_extension("build");
    let mut install = workspace::cargo();
    install
        .args(["install", "bpf-linker", "--locked", "--version", VERSION])
        .args(["--no-default-features", "--features", &format!("llvm-{llvm}"), "--force"])
        .arg("--root")
        .arg(home)
        // Without it the build script looks where Debian has no LLVM.
        .env("LLVM_PREFIX", &prefix)
        .env("CARGO_TARGET_DIR", &scratch);
    eprintln!("bpf-linker {VERSION} for LLVM {llvm} is built once, into {}", home.display());
    let built = command::run_shown(&mut install);
    // Only what it leaves in `home` is wanted; a folder that stays costs space, nothing else.
    let _ = fs::remove_dir_all(&scratch);
    built.context("cannot build bpf-linker, which needs the network or a filled cargo registry")
}
