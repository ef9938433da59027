//! The programs that the kernel tests profile.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{arch::Arch, command, cross::Cross, workspace};

/// Compiles each file of `profiler/tests/fixtures` that has changed, or shares a header with others;
/// returns the folder with the programs. They are linked dynamically, as most of what people profile.
/// Where the compiler that one needs is not installed, or there is none for the architecture, it is left
/// out, and the tests that need it say so.
pub(crate) fn build(cross: &Cross) -> Result<PathBuf> {
    let sources = workspace::root().join("profiler/tests/fixtures");
    let programs = workspace::target().join("fixtures").join(cross.arch.name());
    fs::create_dir_all(&programs).with_context(|| format!("cannot make {}", programs.display()))?;
    let entries = fs::read_dir(&sources);
    let entries = entries.with_context(|| format!("cannot read {}", sources.display()))?;
    let files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    let is_header = |file: &PathBuf| file.extension().is_some_and(|it| it == "h");
    let mut lacking = BTreeSet::new();
    let (headers, sources): (Vec<_>, Vec<_>) = files.into_iter().partition(is_header);
    for source in sources {
        let name = source.file_name().unwrap_or_default().to_string_lossy().replace('.', "-");
        let program = programs.join(name);
        if headers.iter().chain([&source]).any(|file| is_newer(file, &program))
            && let Some(missing) = compile(cross, &source, &program)?
        {
            lacking.insert(missing);
        }
    }
    for missing in lacking {
        eprintln!("left out: programs that need {missing}, which is not installed");
    }
    Ok(programs)
}

/// Whether the source, or this program with what it tells the compiler, is newer than what was built.
fn is_newer(source: &Path, program: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let own = env::current_exe().ok().and_then(|path| time(&path));
    time(source).max(own) > time(program)
}

/// Compiles a program; gives what is not installed, where it needs that.
fn compile(cross: &Cross, source: &Path, program: &Path) -> Result<Option<&'static str>> {
    let text =
        fs::read_to_string(source).with_context(|| format!("cannot read {}", source.display()))?;
    // What one needs beyond the rest, or in its place, stands in its first line.
    let first = text.lines().next().unwrap_or_default();
    let own = |tool: &str| first.strip_prefix(tool).into_iter().flat_map(str::split_whitespace);
    let only = format!("// cc {}: ", cross.arch.name());
    let is_for_other = first.starts_with("// cc ") && !first.starts_with(&only);
    let is_musl = first.starts_with("// musl-gcc: ");
    if is_for_other || is_musl && cross.arch != Arch::HOST {
        return Ok(None);
    }
    let mut compiler;
    if source.extension().is_some_and(|it| it == "rs") {
        compiler = cross.rustc();
        compiler.args(["-O", "-g", "-Cforce-frame-pointers=yes", "--edition=2024"]);
        compiler.args(own("// rustc: "));
    } else if source.extension().is_some_and(|it| it == "go") {
        if command::on_path("go").is_empty() {
            return Ok(Some("go"));
        }
        compiler = Command::new("go");
        // Files that it is made of besides are beside it.
        compiler
            .arg("build")
            .current_dir(source.parent().unwrap_or(source))
            .env("GOOS", "linux")
            .env("GOARCH", cross.arch.debian());
        compiler.env("CGO_ENABLED", "0").env("GOCACHE", workspace::target().join("go-cache"));
    } else if is_musl {
        if command::on_path("musl-gcc").is_empty() {
            return Ok(Some("musl-gcc"));
        }
        compiler = Command::new("musl-gcc");
        compiler.arg("-g").args(own("// musl-gcc: "));
    } else {
        let is_cpp = source.extension().is_some_and(|it| it == "cpp");
        compiler = if is_cpp { cross.cxx()? } else { cross.cc() };
        // Optimized, gcc leaves the frame pointer out of a leaf on x86-64 whatever it is told.
        compiler.args(["-O0", "-g", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"]);
        compiler.args(own("// cc: ")).args(own(&only));
    }
    // Go takes files of one folder by one name of it only.
    let is_go = source.extension().is_some_and(|it| it == "go");
    let source = if is_go { source.file_name().unwrap_or_default().as_ref() } else { source };
    compiler.arg("-o").arg(program);
    command::run(compiler.args(own("// go: ")).arg(source)).map(|()| None)
}
