//! The programs that the kernel tests profile.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{command, cross::Cross, workspace};

/// Compiles each file of `profiler/tests/fixtures` that has changed, or shares a header with others;
/// returns the folder with the programs. They are linked dynamically, as most of what people profile.
pub(crate) fn build(cross: &Cross) -> Result<PathBuf> {
    let sources = workspace::root().join("profiler/tests/fixtures");
    let programs = workspace::target().join("fixtures").join(cross.arch.name());
    fs::create_dir_all(&programs).with_context(|| format!("cannot make {}", programs.display()))?;
    let entries = fs::read_dir(&sources);
    let entries = entries.with_context(|| format!("cannot read {}", sources.display()))?;
    let files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    let is_header = |file: &PathBuf| file.extension().is_some_and(|it| it == "h");
    let (headers, sources): (Vec<_>, Vec<_>) = files.into_iter().partition(is_header);
    for source in sources {
        let name = source.file_name().unwrap_or_default().to_string_lossy().replace('.', "-");
        let program = programs.join(name);
        if headers.iter().chain([&source]).any(|file| is_newer(file, &program)) {
            compile(cross, &source, &program)?;
        }
    }
    Ok(programs)
}

/// Whether the source, or this program with what it tells the compiler, is newer than what was built.
fn is_newer(source: &Path, program: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let own = env::current_exe().ok().and_then(|path| time(&path));
    time(source).max(own) > time(program)
}

fn compile(cross: &Cross, source: &Path, program: &Path) -> Result<()> {
    let text =
        fs::read_to_string(source).with_context(|| format!("cannot read {}", source.display()))?;
    // What one needs beyond the rest, or in its place, stands in its first line.
    let first = text.lines().next().unwrap_or_default();
    let own = |tool: &str| first.strip_prefix(tool).into_iter().flat_map(str::split_whitespace);
    let mut compiler;
    if source.extension().is_some_and(|it| it == "rs") {
        compiler = cross.rustc();
        compiler.args(["-O", "-g", "-Cforce-frame-pointers=yes", "--edition=2024"]);
        compiler.args(own("// rustc: "));
    } else {
        let is_cpp = source.extension().is_some_and(|it| it == "cpp");
        compiler = if is_cpp { cross.cxx()? } else { cross.cc() };
        // Optimized, gcc leaves the frame pointer out of a leaf on x86-64 whatever it is told.
        compiler.args(["-O0", "-g", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"]);
        compiler.args(own("// cc: "));
    }
    command::run(compiler.arg("-o").arg(program).arg(source))
}
