//! Files that are made to end the agent, to fill its memory or to hold it up cost their own names only.

use std::{
    fs::{self, OpenOptions, Permissions},
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use object::{
    Endianness,
    elf::{FileHeader64, SHT_SYMTAB},
    read::elf::{FileHeader as _, SectionHeader as _},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Program, Run, fixture, parse_json, symbols, wait_until};

/// What the agent and its parser processes may take at most, each.
const MAX_KIB: u64 = 400 << 10;

/// A copy of a program, with sections that are changed.
fn changed(dir: &TempDir, name: &str, change: impl FnOnce(&Path)) -> PathBuf {
    let path = dir.path().join(name);
    fs::copy(fixture("nofp.c"), &path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    change(&path);
    path
}

/// Has the program's table of symbols claim so many bytes, of which none is on the disk.
fn claim(path: &Path, bytes: u64) {
    type Header = FileHeader64<Endianness>;
    let data = fs::read(path).unwrap();
    let header = Header::parse(&*data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.section_headers(endian, &*data).unwrap();
    let at = sections.iter().position(|it| it.sh_type(endian) == SHT_SYMTAB).unwrap();
    let end = sections[at].sh_offset(endian) + bytes;
    let size_at = header.e_shoff.get(endian) + at as u64 * 64 + 32;
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&bytes.to_le_bytes(), size_at).unwrap();
    file.set_len(end).unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20);
}

pub(crate) fn start(path: &Path) -> Program {
    Program(Command::new(path).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

/// The most memory that a process has had, in KiB.
pub(crate) fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The parser processes of a run.
pub(crate) fn parsers(run: &Run) -> Vec<u32> {
    let pid = run.child.id();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let children = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let children: String = children.map(Result::unwrap_or_default).collect();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: no preconditions; the process is a child of ours, or of a run of ours, which waits for it.
    assert_eq!(unsafe { libc::kill(pid.try_into().unwrap(), signal) }, 0);
}

/// Nothing was lost by us.
fn assert_delivered(summary: &Value) {
    for why in ["agent_behind", "undelivered"] {
        assert_eq!(summary["lost"][why], 0, "{summary:#}");
    }
    assert!(summary["delivered"].as_u64() > Some(0), "{summary:#}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_sparse_file_that_claims_terabytes_costs_its_names_only() {
    let dir = tempfile::tempdir().unwrap();
    let claims = [("twenty\x1b]0;gigabytes", 20 << 30), ("terabytes", 4 << 40)];
    let hostile = claims.map(|(name, bytes)| changed(&dir, name, |path| claim(path, bytes)));
    let hostile = hostile.map(|path| start(&path));
    let harmless = Program::start("nofp.c");
    let pids = [&hostile[0], &hostile[1], &harmless].map(Program::pid);
    let [one, two, three] = pids.each_ref().map(String::as_str);
    let mut run = Run::start(&["-f", "json", "-F", "499", "-p", one, "-p", two, "-p", three]);
    let reason = "file can't be parsed within its limits";
    for program in &hostile {
        let pid: u64 = program.pid().parse().unwrap();
        let sample = run.sample(|it| it["pid"] == pid && it["user"][0]["origin"] == reason);
        assert_eq!(symbols(&sample["user"])[0], "?");
    }
    // The others keep their names.
    let pid: u64 = harmless.pid().parse().unwrap();
    run.sample(|it| it["pid"] == pid && symbols(&it["user"]).contains(&"main"));
    for process in parsers(&run).into_iter().chain([run.child.id()]) {
        assert!(peak_kib(process) < MAX_KIB, "{} KiB", peak_kib(process));
    }
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (_, summary) = parse_json(&ended.stdout);
    assert_delivered(&summary);
    assert_eq!(summary["parsing"]["barred"], 2, "{summary:#}");
    let notices: Vec<&str> = ended.stderr.lines().filter(|it| it.contains("can't parse")).collect();
    assert_eq!(notices.len(), 2, "{}", ended.stderr);
    assert!(!ended.stderr.contains('\x1b') && ended.stderr.contains("it claims more than"));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_parser_process_that_is_killed_is_started_again_and_costs_nothing() {
    let (program, other) = (Program::start("nofp.c"), Program::start("chain.c"));
    signal(other.0.id(), libc::SIGSTOP);
    let (one, two) = (program.pid(), other.pid());
    let mut run = Run::start(&["-f", "json", "-F", "499", "-p", &one, "-p", &two]);
    run.sample(|it| symbols(&it["user"]).contains(&"main"));
    let before = parsers(&run);
    assert!(!before.is_empty(), "there is one");
    for pid in before {
        signal(pid, libc::SIGKILL);
    }
    // Its file has not been asked about yet.
    signal(other.0.id(), libc::SIGCONT);
    let pid: u64 = other.pid().parse().unwrap();
    run.sample(|it| it["pid"] == pid && symbols(&it["user"]).contains(&"main"));
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (_, summary) = parse_json(&ended.stdout);
    assert_delivered(&summary);
    assert_eq!(summary["parsing"]["barred"], 0, "{summary:#}");
    assert!(summary["parsing"]["restarts"].as_u64() > Some(0), "{summary:#}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_run_leaves_no_parser_process() {
    let run = Run::start(&["-f", "json", "-F", "99"]);
    wait_until("there are parser processes", || parsers(&run).len() >= 2);
    let children = parsers(&run);
    drop(run);
    let is_there = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "profiler-parser"
    };
    wait_until("they have ended", || !children.iter().any(is_there));
}
