//! Where things are: the workspace, its target folder, the user's cache.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

/// The workspace's folder.
pub(crate) fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Cargo's target folder of the workspace.
pub(crate) fn target() -> PathBuf {
    // Cargo resolves a relative path against the folder that it is called from, which for
    // `cargo xtask` is the one the user is in.
    env::var_os("CARGO_TARGET_DIR").map_or_else(
        || root().join("target"),
        |dir| env::current_dir().unwrap_or_else(|_| root().into()).join(dir),
    )
}

/// What is dear to fetch or build is kept here, so that the next clone has it: `$PROFILER_CACHE`,
/// else `$XDG_CACHE_HOME/profiler`, else `~/.cache/profiler`.
pub(crate) fn cache() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("PROFILER_CACHE").filter(|dir| !dir.is_empty()) {
        return Ok(dir.into());
    }
    if let Some(dir) = env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        return Ok(Path::new(&dir).join("profiler"));
    }
    let home = env::var_os("HOME")
        .context("no cache folder: set PROFILER_CACHE, XDG_CACHE_HOME or HOME")?;
    Ok(Path::new(&home).join(".cache/profiler"))
}

/// The cargo that runs this, in the workspace's folder.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).env("CARGO_TARGET_DIR", target());
    command
}
