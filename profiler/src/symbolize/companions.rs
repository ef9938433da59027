//! The files that a program's debug info refers to: what several share, and what was split off.

use std::{ffi::OsStr, fs::File, os::unix::ffi::OsStrExt as _, path::Path};

use profiler_symbols::{AltLink, DwoWanted};

use super::{
    debug_file::{self, DEBUG_DIR},
    roots::Roots,
};

/// The file that a program, or its debug file, shares debug info in with others: where the link says, by its
/// name where distributions put it, or by build id. It has the build id that the link gives.
pub(super) fn supplementary(link: &AltLink, program: &Path, roots: &Roots) -> Option<File> {
    let named = Path::new(OsStr::from_bytes(&link.path));
    let folder = program.parent()?;
    let name = named.file_name()?;
    let places = [
        // One that is relative is so to the file that has the link: the program, or its debug file.
        folder.join(named),
        Path::new("/").join(DEBUG_DIR).join(folder.strip_prefix("/").ok()?).join(named),
        Path::new("/").join(DEBUG_DIR).join(".dwz").join(name),
    ];
    let is_it = |file: &File| profiler_elf::build_id(file) == Some(link.build_id);
    roots.find(&places, is_it).or_else(|| debug_file::by_id(link.build_id, roots))
}

/// The package of a program's `.dwo` files, beside it.
pub(super) fn package(program: &Path, roots: &Roots) -> Option<File> {
    let mut name = program.file_name()?.to_owned();
    name.push(".dwp");
    let beside = program.with_file_name(&name);
    let installed = Path::new("/").join(DEBUG_DIR).join(beside.strip_prefix("/").ok()?);
    roots.find(&[beside, installed], |_| true)
}

/// A `.dwo` file: where the compiler wrote it, or beside the program.
pub(super) fn dwo(wanted: &DwoWanted, program: &Path, roots: &Roots) -> Option<File> {
    let path = |bytes| Path::new(OsStr::from_bytes(bytes));
    let name = path(&wanted.name);
    let beside = program.with_file_name(name.file_name()?);
    roots.find(&[path(&wanted.directory).join(name), beside], |_| true)
}
