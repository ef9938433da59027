//! `cargo xtask fuzz`: each fuzz target for a bounded time.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use object::{Architecture, Object as _, ObjectSection as _};

use crate::{arch::Arch, command, ebpf, workspace};

const VERSION: &str = "0.13.2";
/// Programs and libraries that say what compilers and linkers say of frames, where they are.
const PROGRAMS: [&str; 5] = [
    "/proc/self/exe",
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/aarch64-linux-gnu/libc.so.6",
    "/usr/aarch64-linux-gnu/lib/libc.so.6",
    "/usr/aarch64-linux-gnu/lib/libgcc_s.so.1",
];
/// Bytes of a section that the target `cfi` begins with: none of its inputs gets longer.
const SEED_BYTES: usize = 16 << 10;

pub(crate) fn run(seconds: u32) -> Result<()> {
    let objects = ebpf::build(Arch::HOST)?;
    let home = workspace::cache()?.join(format!("cargo-fuzz-{VERSION}"));
    let cargo_fuzz = home.join("bin/cargo-fuzz");
    if !cargo_fuzz.exists() {
        let mut install = workspace::cargo();
        install.args(["install", "cargo-fuzz", "--locked", "--version", VERSION]);
        command::run_shown(
            install
                .arg("--root")
                .arg(&home)
                .env("CARGO_TARGET_DIR", workspace::target().join("cargo-fuzz")),
        )
        .context("cannot build cargo-fuzz, which needs the network or a filled cargo registry")?;
    }
    let dir = workspace::root().join("profiler/fuzz");
    let targets = fs::read_dir(dir.join("fuzz_targets"))
        .with_context(|| format!("cannot read {}", dir.display()))?;
    let corpus = dir.join("corpus/cfi");
    fs::create_dir_all(&corpus)
        .and_then(|()| seed_cfi(&corpus))
        .with_context(|| format!("cannot write to {}", corpus.display()))?;
    for target in targets {
        let path = target?.path();
        let name = path.file_stem().unwrap_or_default();
        let mut fuzz = std::process::Command::new(&cargo_fuzz);
        fuzz.arg("run")
            .arg("--fuzz-dir")
            .arg(&dir)
            .arg(name)
            .args(["--", &format!("-max_total_time={seconds}")])
            .current_dir(workspace::root())
            // Sanitizers are behind an unstable flag of the compiler.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("PROFILER_EBPF_OBJECT", &objects.profiler);
        command::run_shown(&mut fuzz)?;
    }
    Ok(())
}

/// Has the target `cfi` begin with real call frame information: random bytes hardly ever have an entry that
/// refers to what it shares with others.
fn seed_cfi(corpus: &Path) -> std::io::Result<()> {
    for (number, program) in PROGRAMS.iter().enumerate() {
        let Ok(bytes) = fs::read(program) else { continue };
        let Ok(elf) = object::File::parse(&*bytes) else { continue };
        for (is_debug, name) in [(0, ".eh_frame"), (1, ".debug_frame")] {
            let Some(section) = elf.section_by_name(name) else { continue };
            let Ok(section) = section.data() else { continue };
            let is_arm = u8::from(elf.architecture() == Architecture::Aarch64);
            // The target's two switches, of a byte each, and the section.
            let begin = section.iter().take(SEED_BYTES);
            let seed: Vec<u8> = [is_debug, is_arm].iter().chain(begin).copied().collect();
            fs::write(corpus.join(format!("seed-{number}{name}")), seed)?;
        }
    }
    Ok(())
}
