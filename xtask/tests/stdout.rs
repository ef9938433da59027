//! Standard output is the chore's own: what it runs to build and install prints to standard error.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

/// Puts a shell script where PATH finds it.
fn program(dir: &Path, name: &str, script: &str) {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the chore on a machine that has a compiler, but neither bpf-linker nor the LLVM to build it with.
fn run_without_packages() -> Output {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // Its sysroot has the source of `core`.
    fs::create_dir_all(dir.join("lib/rustlib/src/rust/library/core")).unwrap();
    let sysroot = dir.display();
    program(
        dir,
        "rustc",
        &format!("test \"$1\" = -vV && echo 'LLVM version: 4321.0' || echo '{sysroot}'"),
    );
    program(dir, "sudo", "exec \"$@\"");
    program(dir, "apt-cache", "echo Package: llvm-4321-dev");
    program(dir, "apt-get", "echo apt-get says \"$1\"");
    program(dir, "cargo", "echo cargo says \"$1\"; exit 1");
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["run", "--", "-f", "json"])
        .env("PATH", dir)
        .env("CARGO", dir.join("cargo"))
        .env("PROFILER_BPF_RUSTC", dir.join("rustc"))
        .env("PROFILER_CACHE", dir.join("cache"))
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .output()
        .unwrap()
}

#[test]
fn what_installs_packages_prints_to_standard_error() {
    let output = run_without_packages();
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Both the packages and the linker were asked for, and the build has failed.
    for said in ["apt-get says update", "apt-get says install", "cargo says install"] {
        assert!(stderr.contains(&format!("\n{said}\n")), "{said}: {stderr}");
    }
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{stderr}");
}
