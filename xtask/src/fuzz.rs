//! `cargo xtask fuzz`: each fuzz target for a bounded time.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, anyhow, bail};
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

/// No sanitizer. What is fuzzed is safe Rust, apart from a memory map, so what there is to find is panics,
/// overflows, aborts, endless loops and memory without bound: libFuzzer and debug assertions see these by
/// themselves. AddressSanitizer would see little more, at a third of the inputs per second and several times
/// the build time.
const SANITIZER: &str = "none";
/// A parser process may take 512 MiB; libFuzzer's own corpus and tables come on top.
const RSS_LIMIT: &str = "-rss_limit_mb=1024";
/// Seconds for one input.
const TIMEOUT: &str = "-timeout=20";

/// Writes what a target begins with into a folder.
type Seed = fn(&Path) -> std::io::Result<()>;

pub(crate) fn run(seconds: u32, only: &[String]) -> Result<()> {
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
    let targets = targets(&dir.join("fuzz_targets"), only)?;
    let seeds: [(_, Seed); 2] = [("corpus/cfi", seed_cfi), ("corpus/elf", seed_elf)];
    for (corpus, seed) in seeds {
        let corpus = dir.join(corpus);
        fs::create_dir_all(&corpus)
            .and_then(|()| seed(&corpus))
            .with_context(|| format!("cannot write to {}", corpus.display()))?;
    }
    for name in targets {
        let mut fuzz = std::process::Command::new(&cargo_fuzz);
        fuzz.arg("run")
            .args(["--sanitizer", SANITIZER, "--fuzz-dir"])
            .arg(&dir)
            .arg(&name)
            .args(["--", &format!("-max_total_time={seconds}"), RSS_LIMIT, TIMEOUT])
            .current_dir(workspace::root())
            // Its flags for the compiler are unstable ones.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("PROFILER_EBPF_OBJECT", &objects.profiler);
        command::run_shown(&mut fuzz)?;
    }
    Ok(())
}

/// Checks that all targets compile, without what they are linked with. `None` if what they depend on can't be had:
/// they have a lock file of their own, and are not in the workspace.
pub(crate) fn check(objects: &ebpf::Objects) -> Option<Result<()>> {
    let dir = workspace::root().join("profiler/fuzz");
    let cargo = |arguments: &[&str]| {
        let mut cargo = workspace::cargo();
        cargo.args(arguments).current_dir(&dir);
        cargo
    };
    let fetched = cargo(&["fetch", "--quiet", "--locked"]).output().ok()?;
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stderr);
        let is_stale = said.contains("lock file");
        return is_stale.then(|| Err(anyhow!("{}: `cargo update --workspace` there", said.trim())));
    }
    let mut check = cargo(&["check", "--quiet", "--locked", "--bins"]);
    check
        .env("CARGO_TARGET_DIR", workspace::target().join("fuzz-check"))
        // As cargo-fuzz does: some code is there for the targets alone.
        .env("RUSTFLAGS", "--cfg fuzzing")
        // Nothing is linked, so libFuzzer need not be compiled.
        .env("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a")
        .env("PROFILER_EBPF_OBJECT", &objects.profiler);
    Some(command::run_shown(&mut check))
}

/// The names of the targets that are asked for, or of all.
fn targets(dir: &Path, only: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        all.extend(path.file_stem().map(|it| it.to_string_lossy().into_owned()));
    }
    all.sort();
    if let Some(unknown) = only.iter().find(|it| !all.contains(it)) {
        bail!("there is no fuzz target {unknown}; there are {}", all.join(", "));
    }
    Ok(if only.is_empty() { all } else { only.to_vec() })
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

/// Has the target `elf` begin with real programs, small ones of each kind of debug info. Where there is no C
/// compiler it begins with those that are installed.
fn seed_elf(corpus: &Path) -> std::io::Result<()> {
    const SOURCE: &str = "static inline int inner(int x) { return x * x; }
        int outer(int x) { return inner(x) + 1; }
        int main(void) { return outer(2); }";
    const KINDS: [&[&str]; 6] = [
        &["-g"],
        &["-x", "c++"],
        &["-g", "-gz"],
        &["-gdwarf-4", "-gsplit-dwarf"],
        &["-gdwarf-5", "-gsplit-dwarf"],
        &["-s", "-x", "c++"],
    ];
    let dir = workspace::target().join("fuzz-seeds");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("source.c"), SOURCE)?;
    for kind in KINDS {
        let mut gcc = std::process::Command::new("gcc");
        let name = kind.concat();
        gcc.args(["-O1", "-o", &name]).args(kind).arg("source.c").current_dir(&dir);
        if gcc.output().is_ok_and(|it| it.status.success()) {
            let _ = std::process::Command::new("objcopy")
                .args(["--compress-debug-sections=zstd", &name, &format!("{name}-zstd")])
                .current_dir(&dir)
                .output();
        }
    }
    let made = fs::read_dir(&dir)?.filter_map(|it| Some(it.ok()?.path()));
    for path in made.chain(["/bin/true".into()]) {
        let (Ok(bytes), Some(name)) = (fs::read(&path), path.file_name()) else { continue };
        // The target's switches: whether lines are wanted, what else the file is taken for, and where to begin.
        for switches in [[0, 0, 0, 0], [1, 15, 0, 0]] {
            let mut seed = switches.to_vec();
            seed.extend(&bytes);
            let [lines, ..] = switches;
            fs::write(corpus.join(format!("seed-{}-{lines}", name.display())), seed)?;
        }
    }
    fs::remove_dir_all(&dir)
}
