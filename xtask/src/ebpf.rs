//! Building the eBPF objects: the one way, which every other chore uses.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use object::build::elf::{Builder, SectionData};

use crate::{arch::Arch, command, linker, toolchain, toolchain::Toolchain, workspace};

/// The objects of one architecture.
pub(crate) struct Objects {
    /// The agent's program.
    pub(crate) profiler: PathBuf,
    /// The one that the benchmark compares with.
    pub(crate) fixed_record: PathBuf,
}

/// Builds the objects for machines of this architecture. The instructions are the same for all; the
/// layout of `pt_regs`, and so what the bindings hold, is not.
pub(crate) fn build(arch: Arch) -> Result<Objects> {
    let toolchain = Toolchain::find_or_install()?;
    let linker = linker::find_or_build(toolchain.llvm)?;
    let build_dir = workspace::target().join("ebpf/build").join(arch.name());

    let flags = [
        "-Cdebuginfo=2".to_owned(),
        // The verifier wants BTF for callbacks, and people for what they see in bpftool.
        "-Clink-arg=--btf".to_owned(),
        // The newer instruction sets are refused by some kernels that we support.
        "-Ctarget-cpu=v2".to_owned(),
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Dwarnings".to_owned(),
    ];
    let mut cargo = workspace::cargo();
    cargo
        .args(["build", "--quiet", "--release", "--package", "profiler-ebpf"])
        .args(["--target", toolchain::TARGET]);
    if toolchain.build_std {
        cargo.args(["-Z", "build-std=core"]);
    }
    cargo
        .env("RUSTC", &toolchain.rustc)
        // aya-ebpf uses `asm_experimental_arch`; a compiler with a compiled core is a stable one.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", &build_dir)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &linker)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_RUSTFLAGS", flags.join(" "))
        // They belong to the toolchain that runs this.
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS");
    command::run(&mut cargo).context("cannot build the eBPF program")?;

    let built = build_dir.join(toolchain::TARGET).join("release");
    let place = |name: &str, as_name: &str| -> Result<PathBuf> {
        let object = workspace::target().join(format!("ebpf/{as_name}-{arch}.bpf.o"));
        copy_if_changed(&built.join(name), &object)?;
        Ok(object)
    };
    Ok(Objects {
        profiler: place("profiler-ebpf", "profiler")?,
        fixed_record: place("fixed-record", "fixed-record")?,
    })
}

/// An object that did not change keeps its time, so that the agent is not built again. What cargo
/// built is newer than any source, so an edit that changes nothing still gives the object a new time:
/// the agent's build warns of an object that is older than its source.
fn copy_if_changed(from: &Path, to: &Path) -> Result<()> {
    let time = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    if time(to).is_some() && time(to) >= time(from) {
        return Ok(());
    }
    let object = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    let object = without_debug_info(&object)
        .with_context(|| format!("cannot leave debug information out of {}", from.display()))?;
    // Only a whole object gets the name that is looked for.
    let scratch = to.with_extension("new");
    fs::write(&scratch, object)
        .and_then(|()| fs::rename(&scratch, to))
        .with_context(|| format!("cannot write {}", to.display()))
}

/// The object without its DWARF, which BTF was made of: nine parts of ten, which the agent would have in it and read
/// at each start.
fn without_debug_info(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object)?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete = name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    }
    builder.delete_orphans();
    // The linker keeps names of sections and of symbols in one section.
    let names = builder.sections.add();
    names.name = ".shstrtab".into();
    names.sh_type = object::elf::SHT_STRTAB;
    names.data = SectionData::SectionString;
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}
