//! What an emulated machine has in its memory when it starts: busybox, the agent, the tests and the
//! programs that they profile.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use cpio::{NewcBuilder, newc};
use serde_json::Value;

use crate::{arch::Arch, archive::Archive, command, cross::Cross, dist, ebpf, fixtures, workspace};

const BUSYBOX: &str = "busybox-static";

/// Types and permissions, as stat(2) has them.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const PLAIN: u32 = 0o100_644;
const CONSOLE: u32 = 0o020_600;

/// Builds what is tested, static, and packs it up; returns the file for QEMU.
pub(crate) fn build(archive: &mut Archive, arch: Arch, filter: Option<&str>) -> Result<PathBuf> {
    let cross = Cross::find_or_install(arch)?;
    ebpf::build(arch)?;
    let (agent, tests) = agent_and_tests(&cross)?;
    let programs = fixtures::build(&cross)?;
    let busybox = busybox(archive, arch)?;

    let path = workspace::target().join(format!("vm/{arch}.cpio"));
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut image = Image { file: Some(BufWriter::new(file)), inode: 0 };
    for dir in ["bin", "dev", "fixtures", "lib", "lib64", "proc", "sys"] {
        image.add(dir, DIRECTORY, b"")?;
    }
    // Without it the first process has no output; the rest comes with devtmpfs.
    image.add("dev/console", CONSOLE, b"")?;
    image.add("init", PROGRAM, include_bytes!("init.sh"))?;
    image.add("filter", PLAIN, filter.unwrap_or_default().as_bytes())?;
    image.add_file("bin/busybox", &busybox)?;
    image.add_file("profiler", &agent)?;
    image.add_file("kernel-tests", &tests)?;
    for program in fs::read_dir(&programs)?.flatten() {
        let name = program.file_name().to_string_lossy().into_owned();
        image.add_file(&format!("fixtures/{name}"), &program.path())?;
    }
    let linker = match arch {
        Arch::X86_64 => ("lib64/ld-linux-x86-64.so.2", "ld-linux-x86-64.so.2"),
        Arch::Aarch64 => ("lib/ld-linux-aarch64.so.1", "ld-linux-aarch64.so.1"),
    };
    image.add_file(linker.0, &cross.library(linker.1)?)?;
    for library in ["libc.so.6", "libgcc_s.so.1"] {
        image.add_file(&format!("lib/{library}"), &cross.library(library)?)?;
    }
    image.finish().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The image with perf in it as well: `perf-stat` is `perf stat`. There is no `perf`, which tests of stacks would take
/// for one that can read debug information in time.
pub(crate) fn add_perf(image: &Path, perf: &Path) -> Result<PathBuf> {
    let path = image.with_extension("perf.cpio");
    fs::copy(image, &path).with_context(|| format!("cannot write {}", path.display()))?;
    // The kernel reads one archive after another.
    let file = File::options().append(true).open(&path)?;
    let mut image = Image { file: Some(BufWriter::new(file)), inode: 0 };
    image.add("perf", DIRECTORY, b"")?;
    let mut linker = None;
    for file in fs::read_dir(perf).with_context(|| format!("cannot read {}", perf.display()))? {
        let name = file?.file_name().to_string_lossy().into_owned();
        image.add_file(&format!("perf/{name}"), &perf.join(&name))?;
        linker = linker.or(name.starts_with("ld-linux").then_some(name));
    }
    let linker = linker.context("perf came without its linker")?;
    let start = format!("exec /perf/{linker} --library-path /perf /perf/perf stat \"$@\"");
    image.add("bin/perf-stat", PROGRAM, format!("#!/bin/busybox sh\n{start}\n").as_bytes())?;
    image.finish().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The agent and the kernel tests as static programs. cargo builds the first for the second.
fn agent_and_tests(cross: &Cross) -> Result<(PathBuf, PathBuf)> {
    let mut cargo = cross.cargo();
    cargo
        .args(["test", "--no-run", "--quiet", "--profile", "emulated", "--package", "profiler"])
        .args(["--test", "kernel", "--message-format", "json-render-diagnostics"])
        .args(["--target", &cross.arch.target()]);
    let output = cargo.stderr(std::process::Stdio::inherit()).output()?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    let (mut agent, mut tests) = (None, None);
    for message in messages {
        let message: Value = message;
        let executable = message.pointer("/executable").and_then(Value::as_str);
        let is_test = message.pointer("/profile/test").and_then(Value::as_bool);
        let (Some(executable), Some(is_test)) = (executable, is_test) else { continue };
        *(if is_test { &mut tests } else { &mut agent }) = Some(PathBuf::from(executable));
    }
    let built = agent.zip(tests).filter(|_| output.status.success());
    let (agent, tests) = built.with_context(|| {
        format!("cannot build the agent and the kernel tests: `{}`", command::words(&cargo))
    })?;
    dist::assert_static(&agent)?;
    Ok((agent, tests))
}

fn busybox(archive: &mut Archive, arch: Arch) -> Result<PathBuf> {
    let kept = workspace::cache()?.join(format!("vm/busybox-{arch}"));
    if !kept.exists() {
        let unpacked = archive.fetch(BUSYBOX)?;
        let places = ["bin/busybox", "usr/bin/busybox"];
        let found = places.iter().map(|it| unpacked.path().join(it)).find(|path| path.is_file());
        let scratch = kept.with_extension("new");
        fs::create_dir_all(kept.parent().unwrap_or(&kept))?;
        fs::copy(found.with_context(|| format!("{BUSYBOX} has no busybox"))?, &scratch)
            .and_then(|_| fs::rename(&scratch, &kept))
            .with_context(|| format!("cannot write {}", kept.display()))?;
    }
    Ok(kept)
}

/// A cpio archive that is being written. It is not compressed: to unpack would take an emulated
/// machine longer than to read.
struct Image {
    /// `None` after a write has failed.
    file: Option<BufWriter<File>>,
    inode: u32,
}

impl Image {
    fn add_file(&mut self, name: &str, path: &Path) -> Result<()> {
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.add(name, PROGRAM, &content)
    }

    fn add(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.inode += 1;
        let mut entry = NewcBuilder::new(name).ino(self.inode).mode(mode).nlink(1);
        if mode == CONSOLE {
            entry = entry.rdev_major(5).rdev_minor(1);
        }
        let file = self.file.take().context("the archive is broken off")?;
        let size = u32::try_from(content.len()).with_context(|| format!("{name} is too large"))?;
        let mut writer = entry.write(file, size);
        writer.write_all(content)?;
        self.file = Some(writer.finish()?);
        Ok(())
    }

    fn finish(mut self) -> std::io::Result<()> {
        self.file.take().map_or(Ok(()), |file| newc::trailer(file)?.flush())
    }
}
