//! Making unwind tables: how fast, how large, and with how much memory.

use std::{
    env,
    fmt::Write as _,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use profiler_unwind::{Rules, Table};
use serde::Serialize;

use crate::{Bench, Result, agent::Agent, lowest};

const ROUNDS: usize = 5;
/// From here on a file is large.
const LARGE_BYTES: u64 = 100 << 20;

#[derive(Serialize)]
pub(crate) struct Tables {
    rows: Vec<Row>,
    /// What was looked for and is not on this machine.
    missing: Vec<&'static str>,
}

#[derive(Serialize)]
struct Row {
    file: String,
    file_bytes: u64,
    rows: u64,
    table_rows: u64,
    table_bytes: usize,
    rules: usize,
    lowest_ms: f64,
    ms: Vec<f64>,
    /// Of a process that makes this one table.
    peak_kib: i64,
}

impl Tables {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        eprintln!("making unwind tables ...");
        let mut found = Self { rows: Vec::new(), missing: Vec::new() };
        for (path, name) in [
            (libc_file(), "libc"),
            (on_path("node"), "node"),
            (largest(), "a program or library of at least 100 MiB"),
        ] {
            match path {
                Some(path) => found.rows.push(Row::measure(bench, &path)?),
                None => found.missing.push(name),
            }
        }
        Ok(found)
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nunwind tables, lowest of {ROUNDS} rounds\n  {:<30}{:>9}{:>12}{:>10}{:>15}{:>11}{:>13}\
             {:>7}{:>10}",
            "",
            "file MiB",
            "rows of it",
            "ms",
            "million rows/s",
            "table KiB",
            "bytes a row",
            "rules",
            "peak MiB"
        )?;
        for it in &self.rows {
            let name = it.file.rsplit('/').next().unwrap_or(&it.file);
            let rows = it.rows as f64;
            writeln!(
                text,
                "  {:<30}{:>9.1}{:>12}{:>10.1}{:>15.1}{:>11}{:>13.2}{:>7}{:>10.1}",
                name.chars().take(29).collect::<String>(),
                it.file_bytes as f64 / f64::from(1 << 20),
                it.rows,
                it.lowest_ms,
                rows / it.lowest_ms / 1e3,
                it.table_bytes >> 10,
                it.table_bytes as f64 / rows,
                it.rules,
                it.peak_kib as f64 / 1024.0
            )?;
        }
        for name in &self.missing {
            writeln!(text, "  {name}: not on this machine")?;
        }
        Ok(())
    }
}

impl Row {
    fn measure(bench: &Bench, path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let make = || {
            let mut rules = Rules::new();
            let begin = Instant::now();
            let table = Table::of_file(&file, &mut rules)
                .map_err(|why| format!("no table of {}: {why}", path.display()))?;
            Result::Ok((table, rules.len(), 1e3 * begin.elapsed().as_secs_f64()))
        };
        // The first one brings the file into memory.
        let (table, rules, _) = make()?;
        let ms = (0..ROUNDS).map(|_| Ok(make()?.2)).collect::<Result<Vec<_>>>()?;
        let mut command = Command::new(&bench.agent);
        command.arg("unwind-info").arg(path);
        let ended = Agent::spawn(&mut command, Stdio::null())?.wait()?;
        let facts = table.facts();
        Ok(Self {
            file: path.display().to_string(),
            file_bytes: file.metadata()?.len(),
            rows: facts.counts.rows,
            table_rows: facts.packed.rows,
            table_bytes: size_of_val(table.chunks()),
            rules,
            lowest_ms: lowest(&ms),
            ms,
            peak_kib: ended.peak_kib,
        })
    }
}

/// The libc that this program uses.
fn libc_file() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..)));
    paths.map(PathBuf::from).find(|path| {
        let name = path.file_name().map(|it| it.to_string_lossy());
        name.is_some_and(|name| name.starts_with("libc.so") || name.starts_with("libc-"))
    })
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let file = env::split_paths(&path).map(|dir| dir.join(program)).find(|file| is_elf(file))?;
    fs::canonicalize(file).ok()
}

/// The largest program or library among those that the machine has where such are, and the
/// compiler's.
fn largest() -> Option<PathBuf> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().ok();
    let sysroot = sysroot.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned());
    let libraries = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    let dirs = ["/usr/bin", "/usr/lib", "/usr/lib64", &libraries].map(PathBuf::from);
    let dirs = dirs.into_iter().chain(sysroot.map(|it| Path::new(&it).join("lib")));
    let files = dirs.filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let mut large: Vec<(u64, PathBuf)> = files
        .filter_map(|file| {
            let bytes = fs::metadata(file.path()).ok().filter(fs::Metadata::is_file)?.len();
            (bytes >= LARGE_BYTES).then(|| (bytes, file.path()))
        })
        .collect();
    large.sort_unstable();
    large.into_iter().rev().map(|(_, path)| path).find(|path| is_elf(path))
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}
