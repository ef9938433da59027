//! Of the programs of a distribution stacks are whole, and tables find what perf finds.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    process::{Command, Stdio},
};

use profiler::stderr;
use serde_json::Value;

use crate::{
    every_kernel::unwinding::{SAMPLES, start, wait_for_tables},
    support::{Program, Run, fixture, has_tables, is_installed, symbols},
};

/// A line of `perf script`.
struct PerfFrame {
    name: String,
    place: Place,
}

/// A file's name, and an address in a page of it: perf's addresses are those of the file, ours those
/// of the process.
type Place = (String, u64);

fn place(file: &str, address: &str) -> Option<Place> {
    let name = file.rsplit('/').next()?;
    Some((name.to_owned(), u64::from_str_radix(address, 16).ok()? & 0xfff))
}

/// What perf finds of a program by DWARF in as many samples, while `beside` runs: the user half of
/// each sample, innermost first. `None`, and said, where there is no perf.
fn perf(program: &Program, beside: impl FnOnce()) -> Option<Vec<Vec<PerfFrame>>> {
    if !is_installed("perf") {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock:u", "-F", "499", "--call-graph", "dwarf,32768"]);
    record.args(["-p", &program.pid(), "-o"]).arg(&data).args(["--", "sleep", "3"]);
    let mut record = Program(record.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    beside();
    assert!(record.0.wait().unwrap().success());
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "-F", "ip,sym,dso", "-i"]).arg(&data);
    let output = script.stderr(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let stacks = text.split("\n\n").map(|block| {
        let frames = block.lines().filter_map(|line| {
            let (address, name) = line.trim().split_once(' ')?;
            let (name, file) = name.rsplit_once(" (")?;
            let place = place(file.trim_end_matches(')'), address)?;
            Some(PerfFrame { name: name.to_owned(), place })
        });
        frames.collect::<Vec<_>>()
    });
    Some(stacks.filter(|frames| !frames.is_empty()).collect())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_chains_are_those_that_perf_finds() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nofp.c", &[]);
    let mut ours = BTreeMap::<String, usize>::new();
    let add = |chains: &mut BTreeMap<String, usize>, names: &[&str]| {
        let main = names.iter().rposition(|name| *name == "main").unwrap_or(names.len() - 1);
        // How many there are below, since libc's functions have names here or there.
        let folded = format!("{};+{}", names[..=main].join(";"), names.len() - main - 1);
        *chains.entry(folded).or_default() += 1;
    };
    let theirs = perf(&program, || {
        let mut run = start(&program, &["--user-only"]);
        wait_for_tables(&mut run);
        for _ in 0..SAMPLES * 3 {
            add(&mut ours, &symbols(&run.sample(|_| true)["user"]));
        }
    });
    let Some(stacks) = theirs else { return };
    let mut theirs = BTreeMap::new();
    for stack in &stacks {
        add(&mut theirs, &stack.iter().map(|it| &*it.name).collect::<Vec<_>>());
    }
    stderr::say(&format!("ours: {ours:?}\nperf: {theirs:?}"));
    // The loop in main takes so little that one of the two may have no sample of it.
    let chains = |of: &BTreeMap<String, usize>| -> BTreeSet<String> {
        of.keys().filter(|chain| !chain.starts_with("main")).cloned().collect()
    };
    assert_eq!(chains(&ours), chains(&theirs));
    assert_eq!(chains(&ours).len(), 3);
}

/// What perf writes of mappings while the profiler runs is what it writes without.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn perf_record_has_its_records_beside_the_profiler() {
    if !is_installed("perf") {
        return;
    }
    let path = fixture("brief.c").canonicalize().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-a", "-e", "cpu-clock:u", "-F", "499", "-o"]).arg(&data);
    record.args(["--", "sleep", "3"]).stdin(Stdio::null());
    // The last event that was opened gets a record first.
    let mut record = Program(record.spawn().unwrap());
    let mut run = Run::start(&["-f", "json", "-F", "99"]);
    let program = Program(Command::new(&path).arg("10").spawn().unwrap());
    let parent = program.0.id();
    run.sample(|it| it["comm"] == "brief-c" && it["pid"] != parent);
    assert!(record.0.wait().unwrap().success());
    drop((program, run));
    let script = |arguments: &[&str]| {
        let mut script = Command::new("perf");
        script.args(["script", "--no-inline", "-i"]).arg(&data).args(arguments);
        let output = script.stderr(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let records = script(&["--show-mmap-events"]);
    let of_code = records.lines().filter(|it| it.contains("PERF_RECORD_MMAP2"));
    let own = of_code.filter(|it| it.ends_with(&format!("r-xp {}", path.display())));
    let own: Vec<_> = own.collect();
    let inode = format!(" {} ", fs::metadata(&path).unwrap().ino());
    assert!(!own.is_empty() && own.iter().all(|it| it.contains(&inode)), "{own:?}");
    let names = script(&["-F", "comm,ip,sym", "--comms", "brief-c"]);
    assert!(names.contains(" inner"), "{names}");
}

/// Chains that perf has in fewer samples are not asked for: they may be so rare that ours have none.
const FEW: usize = 10;

/// Starts a program of the distribution, and waits until it works; `None`, and said, where it is not
/// installed.
fn start_installed(command: &mut Command) -> Option<Program> {
    if !has_tables() {
        return None;
    }
    match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(child) => {
            let program = Program(child);
            program.wait_for_ticks(20);
            Some(program)
        }
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{command:?}: {error}");
            let name = command.get_program().display();
            stderr::say(&format!("skipped: {name} is not installed"));
            None
        }
    }
}

/// Takes samples of a program, of its native frames, which are all that perf knows. Of a hundred at most one may
/// not be whole.
fn assert_whole(program: &Program, mut take: impl FnMut(&Value)) {
    let mut run = start(program, &["--python", "native"]);
    wait_for_tables(&mut run);
    let mut ends = BTreeMap::<String, usize>::new();
    for _ in 0..SAMPLES * 3 {
        let sample = run.sample(|it| it["user_end"] != "no_user_memory");
        *ends.entry(sample["user_end"].as_str().unwrap().to_owned()).or_default() += 1;
        take(&sample);
    }
    assert!(ends["complete"] * 100 >= SAMPLES * 3 * 99, "{ends:?}");
}

/// Where perf and we differ, elsewhere: perf takes a copy of the top of the stack, of 64 KiB at most, and
/// so ends where that does; it shows 127 frames at most; where code has no symbol it names the nearest
/// before, so that places are compared here, and not names.
fn assert_as_perf(program: &Program) {
    let mut ours = BTreeSet::new();
    let theirs = perf(program, || {
        assert_whole(program, |sample| {
            let frames = sample["user"].as_array().unwrap().iter();
            let callers = frames.skip(1).map(|it| {
                let address = it["addr"].as_str().unwrap().trim_start_matches("0x");
                place(it["module"].as_str().unwrap_or("?"), address).unwrap()
            });
            ours.insert(callers.collect::<Vec<_>>());
        });
    });
    let Some(stacks) = theirs else { return assert_whole(program, |_| {}) };
    // Of a caller, perf gives the call's last byte, others what is behind it.
    let callers: BTreeSet<&Place> = ours.iter().flatten().collect();
    let mut theirs = BTreeMap::<Vec<Place>, usize>::new();
    for stack in &stacks {
        let caller = |frame: &PerfFrame| {
            let (file, address) = frame.place.clone();
            let behind = (file, (address + 1) & 0xfff);
            if callers.contains(&behind) { behind } else { frame.place.clone() }
        };
        *theirs.entry(stack.iter().skip(1).map(caller).collect()).or_default() += 1;
    }
    let is_common = |times: usize| times >= FEW && times * 100 >= stacks.len();
    let common: Vec<_> = theirs.iter().filter(|(_, times)| is_common(**times)).collect();
    let missing: Vec<_> = common.iter().filter(|(chain, _)| !ours.contains(*chain)).collect();
    let (all, common) = (theirs.len(), common.len());
    stderr::say(&format!("{} chains; perf {all}, of which {common} are common", ours.len()));
    assert!(common > 0 && missing.is_empty(), "{missing:?}");
}

const PYTHON: &str = "
import json
def encode(depth):
    return encode(depth - 1) if depth else json.dumps([{'a': [1, 2.5, None]}] * 20)
while True:
    encode(5)
";

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_stacks_of_python_are_those_that_perf_finds() {
    if let Some(program) = start_installed(Command::new("python3").args(["-c", PYTHON])) {
        assert_as_perf(&program);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_stacks_of_openssl_are_those_that_perf_finds() {
    let mut speed = Command::new("openssl");
    speed.args(["speed", "-seconds", "600", "-bytes", "1024", "-evp", "sha256"]);
    if let Some(program) = start_installed(&mut speed) {
        assert_as_perf(&program);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_stacks_of_xz_are_those_that_perf_finds() {
    if !is_installed("xz") {
        return;
    }
    let mut xz = Command::new("xz");
    xz.args(["--threads=1", "--stdout"]).stdin(File::open("/dev/urandom").unwrap());
    if let Some(program) = start_installed(&mut xz) {
        assert_as_perf(&program);
    }
}

/// Not of what is linked statically and not to any address: it has no `.eh_frame_hdr`, by which perf finds
/// the description of a frame, so that it has one frame of each stack.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_stacks_of_other_programs_are_those_that_perf_finds() {
    if !has_tables() || !is_installed("perf") {
        return;
    }
    for name in
        ["nofp.rs", "nofp_static_pie.c", "nofp_stripped.c", "noreturn.c", "plt.c", "threads.c"]
    {
        assert_as_perf(&Program::ready(name, &[]));
    }
}

/// It goes from one phase to the next, so that chains at one time are not those at another.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_stacks_of_gcc_are_whole() {
    if !is_installed("gcc") {
        return;
    }
    let path = Command::new("gcc").arg("-print-prog-name=cc1").output().unwrap();
    let path = String::from_utf8(path.stdout).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("long.c");
    let functions = (0..20_000).map(|it| {
        format!("int f{it}(int *a) {{ for (int i = 0; i < a[1]; i++) a[i] += a[i] / ({it} + 1); return *a; }}\n")
    });
    fs::write(&source, functions.collect::<String>()).unwrap();
    let mut compiler = Command::new(path.trim());
    compiler.args(["-quiet", "-O2", "-w", "-o", "/dev/null"]).arg(&source);
    if let Some(program) = start_installed(&mut compiler) {
        assert_whole(&program, |_| {});
    }
}
