//! Debian's `perf` for emulated machines, to compare counts with: the program and the libraries that it
//! needs, kept in the user's cache.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use object::read::elf::{Dyn as _, FileHeader as _};

use crate::{arch::Arch, archive::Archive, workspace};

/// The newest release that has it has the newest libraries, too, so the guest's own would not do.
const PACKAGE: &str = "linux-perf";

/// A folder with `perf` and each library that it needs, also the linker that starts it.
pub(crate) fn find(archive: &mut Archive, arch: Arch) -> Result<PathBuf> {
    let kept = workspace::cache()?.join(format!("vm/perf-{arch}"));
    if kept.is_dir() {
        return Ok(kept);
    }
    eprintln!("downloading Debian's perf for {arch}, with its libraries");
    let mut packages = archive.dependencies(PACKAGE)?;
    // Of the others it needs none to count.
    packages.retain(|it| it.starts_with("lib") || it.starts_with("zlib"));
    packages.push(PACKAGE.to_owned());
    let unpacked = archive.fetch_all(&packages)?;
    let program = unpacked.path().join("usr/bin/perf");
    let mut libraries = BTreeMap::new();
    list_libraries(unpacked.path(), &mut libraries)?;
    let scratch = kept.with_extension("new");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let keep = |from: &Path, name: &str| {
        fs::copy(from, scratch.join(name)).with_context(|| format!("cannot keep {name}"))
    };
    keep(&program, "perf")?;
    for (name, path) in needed(&program, &libraries)? {
        keep(path, name)?;
    }
    fs::rename(&scratch, &kept).with_context(|| format!("cannot write {}", kept.display()))?;
    Ok(kept)
}

/// The shared libraries below a folder, by their names. Links are followed within it.
fn list_libraries(dir: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if entry.file_type()?.is_dir() {
            list_libraries(&path, found)?;
        } else if name.contains(".so") && path.is_file() {
            found.insert(name, path);
        }
    }
    Ok(())
}

/// What a program needs, and what that needs, by name.
fn needed<'a>(
    program: &Path,
    libraries: &'a BTreeMap<String, PathBuf>,
) -> Result<BTreeMap<&'a str, &'a Path>> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![program.to_owned()];
    while let Some(path) = waiting.pop() {
        for name in needed_by(&path)? {
            let Some((name, library)) = libraries.get_key_value(&name) else {
                bail!("{} needs {name}, which no package of {PACKAGE} has", path.display());
            };
            if all.insert(&**name, &**library).is_none() {
                waiting.push(library.clone());
            }
        }
    }
    Ok(all)
}

/// The names that a file's dynamic section says it needs.
fn needed_by(path: &Path) -> Result<Vec<String>> {
    let what = || format!("cannot read {}", path.display());
    let bytes = fs::read(path).with_context(what)?;
    let bytes = bytes.as_slice();
    let header =
        object::elf::FileHeader64::<object::Endianness>::parse(bytes).with_context(what)?;
    let endian = header.endian().with_context(what)?;
    let sections = header.sections(endian, bytes).with_context(what)?;
    let Some((dynamic, strings)) = sections.dynamic(endian, bytes).with_context(what)? else {
        return Ok(Vec::new());
    };
    let strings = sections.strings(endian, bytes, strings).with_context(what)?;
    let needed = dynamic.iter().filter(|it| it.tag(endian) == object::elf::DT_NEEDED).map(|it| {
        let name = it.string(endian, strings).with_context(what)?;
        Ok(String::from_utf8_lossy(name).into_owned())
    });
    needed.collect()
}
