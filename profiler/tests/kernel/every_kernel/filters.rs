//! Whose samples are delivered: what passes all filters. The rest is in the ledger under the filter's name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use profiler::stderr;
use serde_json::Value;

use super::ledger::assert_sound;
use crate::support::{Program, Run, fixture, parse_json, run, wait_until};

/// Samples that are looked at, at least.
const SAMPLES: usize = 60;

/// Threads that work, by name.
struct Threads {
    program: Program,
    ids: BTreeMap<String, String>,
}

impl Threads {
    fn start() -> Self {
        let mut command = Command::new(fixture("named.c"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Program(command.spawn().unwrap());
        let lines = BufReader::new(program.0.stdout.as_mut().unwrap()).lines().take(3);
        let id = |line: std::io::Result<String>| {
            let line = line.unwrap();
            let (name, id) = line.split_once(' ').unwrap();
            (name.to_owned(), id.to_owned())
        };
        let ids: BTreeMap<_, _> = lines.map(id).collect();
        assert_eq!(ids.len(), 3);
        Self { program, ids }
    }
}

/// The names of the threads that samples of a run are of, in which all of these come, and its summary.
fn sampled(arguments: &[&str], wanted: &[&str]) -> (BTreeSet<String>, Value) {
    let mut run = Run::start(&[&["-f", "json", "-F", "499"], arguments].concat());
    let mut samples: Vec<Value> = (0..SAMPLES).map(|_| run.sample(|_| true)).collect();
    while !wanted.iter().all(|name| samples.iter().any(|it| it["comm"] == *name)) {
        samples.push(run.sample(|_| true));
    }
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (rest, summary) = parse_json(&ended.stdout);
    samples.extend(rest);
    assert_sound(&samples, &summary);
    let names = samples.iter().map(|it| it["comm"].as_str().unwrap().to_owned());
    (names.collect(), summary)
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|it| (*it).to_owned()).collect()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn threads_are_kept_by_name_and_id() {
    let threads = Threads::start();
    let (sampled_names, summary) = sampled(&["--comm", "alpha-?"], &["alpha-1", "alpha-2"]);
    assert_eq!(sampled_names, names(&["alpha-1", "alpha-2"]));
    assert_eq!(summary["filters"], serde_json::json!(["--comm alpha-?"]));
    assert!(summary["filtered"]["comm"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(summary["filtered"]["tid"], 0, "{summary}");

    let ids = format!("{},{}", threads.ids["alpha-2"], threads.ids["beta"]);
    let (sampled_names, summary) =
        sampled(&["-t", &ids, "--comm", "alpha*", "--comm", "b?ta"], &["alpha-2", "beta"]);
    assert_eq!(sampled_names, names(&["alpha-2", "beta"]));
    assert!(summary["filtered"]["tid"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_run_ends_with_the_threads_that_were_asked_for() {
    let mut threads = Threads::start();
    let id = threads.ids["beta"].clone();
    let mut run = Run::start(&["-f", "json", "-F", "499", "-t", &id]);
    let sample = run.sample(|_| true);
    assert_eq!((sample["comm"].as_str(), sample["tid"].to_string()), (Some("beta"), id.clone()));
    // The process goes on.
    threads.program.0.stdin.as_mut().unwrap().write_all(b"2").unwrap();
    let ended = run.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("thread {id} has ended")), "{}", ended.stderr);
    assert!(threads.program.0.try_wait().unwrap().is_none());
}

/// A cgroup of version 2 with one below it; removed when dropped, with the mount if there was none.
pub(crate) struct Cgroup {
    pub(crate) folder: PathBuf,
    mounted: Option<PathBuf>,
}

impl Cgroup {
    /// `None`, and the reason printed, where none can be made.
    pub(crate) fn new() -> Option<Self> {
        let name = format!("profiler-test-{}", std::process::id());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let known = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let known = known.map(|line| PathBuf::from(line.split(' ').nth(4).unwrap()));
        let mounted = known.is_none().then(|| std::env::temp_dir().join(&name));
        if let Some(folder) = &mounted {
            fs::create_dir_all(folder).unwrap();
            let mut mount = Command::new("mount");
            mount.args(["-t", "cgroup2", "none"]).arg(folder);
            if !mount.status().is_ok_and(|it| it.success()) {
                stderr::say("skipped: cgroups of version 2 can't be mounted");
                return None;
            }
            // Before anything was enabled, cgroups below the root count no events either.
            let controllers = fs::read_to_string(folder.join("cgroup.controllers")).unwrap();
            let enable = |it: &str| {
                fs::write(folder.join("cgroup.subtree_control"), format!("+{it}")).is_ok()
            };
            let _ = ["pids", "io", "memory"]
                .into_iter()
                .filter(|it| controllers.split_whitespace().any(|known| known == *it))
                .any(enable);
        }
        let folder = mounted.clone().or(known).unwrap().join(name);
        fs::create_dir_all(folder.join("below")).unwrap();
        Some(Self { folder, mounted })
    }

    /// Moves the program into the one below.
    pub(crate) fn take(&self, program: &Program) {
        fs::write(self.folder.join("below/cgroup.procs"), program.pid()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let is_gone = |folder: &Path| fs::remove_dir(folder).is_ok() || !folder.exists();
        let folders = [self.folder.join("below"), self.folder.clone()];
        wait_until("the cgroup is empty", || folders.iter().all(|it| is_gone(it)));
        if let Some(mounted) = &self.mounted {
            let _ = Command::new("umount").arg(mounted).status();
            let _ = fs::remove_dir(mounted);
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn users_and_cgroups_are_kept() {
    let Some(cgroup) = Cgroup::new() else { return };
    let _others = Threads::start();
    let program = Program::start("chain.c");
    cgroup.take(&program);
    let comm = names(&["chain-c"]);
    // With everything below.
    let by_path =
        sampled(&["--cgroup", cgroup.folder.to_str().unwrap(), "--uid", "root"], &["chain-c"]);
    assert_eq!(by_path.0, comm);
    let filtered = &by_path.1["filtered"];
    assert!(filtered["cgroup"].as_u64().unwrap() > 0, "{}", by_path.1);
    assert_eq!((&filtered["uid"], &filtered["pid"]), (&0.into(), &0.into()));
    // From the root of the hierarchy on; one of several is enough.
    let name = cgroup.folder.file_name().unwrap().to_str().unwrap();
    let below = format!("/{name}/below");
    sampled(&["--cgroup", &below, "--cgroup", "/"], &["beta", "chain-c"]);

    let none = run(&["-d", "300ms", "-f", "json", "--uid", "4000000000", "--cgroup", &below]);
    let (samples, summary) = parse_json(&String::from_utf8(none.stdout).unwrap());
    assert_eq!(samples.len(), 0);
    assert!(summary["filtered"]["uid"].as_u64().unwrap() > 0, "{summary}");

    let missing = run(&["-d", "1", "--cgroup", "/none/such"]);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert_eq!((missing.status.code(), said.contains("no such cgroup")), (Some(2), true), "{said}");
    drop(program);
}
