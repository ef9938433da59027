//! `cargo xtask dist`: the agent as one file that needs nothing on the machine it is copied to.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use object::{
    Endianness, elf,
    read::elf::{ElfFile64, ProgramHeader as _},
};

use crate::{arch::Arch, command, cross::Cross, ebpf, workspace};

/// Builds the agent for each architecture; says where each is.
pub(crate) fn run(archs: &[Arch]) -> Result<()> {
    for &arch in archs {
        let agent = build(&Cross::find_or_install(arch)?)?;
        println!("{}", agent.display());
    }
    Ok(())
}

/// Builds the static agent with the object for its architecture inside; says where it is.
pub(crate) fn build(cross: &Cross) -> Result<PathBuf> {
    let arch = cross.arch;
    ebpf::build(arch)?;
    let mut cargo = cross.cargo();
    cargo.args(["build", "--quiet", "--profile", "static", "--package", "profiler"]);
    command::run(cargo.args(["--target", &arch.target()]))?;
    let built = workspace::target().join(arch.target()).join("static/profiler");
    assert_static(&built)?;
    let dist = workspace::target().join("dist");
    fs::create_dir_all(&dist).with_context(|| format!("cannot make {}", dist.display()))?;
    let agent = dist.join(format!("profiler-{arch}"));
    fs::copy(&built, &agent).with_context(|| format!("cannot write {}", agent.display()))?;
    Ok(agent)
}

/// A program that asks for a dynamic linker would not start where there is none.
pub(crate) fn assert_static(program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let file = ElfFile64::<Endianness>::parse(&*bytes).context("cargo has built no ELF file")?;
    let types = file.elf_program_headers().iter().map(|header| header.p_type(file.endian()));
    if types.into_iter().any(|kind| kind == elf::PT_INTERP) {
        bail!("{} is not static: it asks for a dynamic linker", program.display());
    }
    Ok(())
}
