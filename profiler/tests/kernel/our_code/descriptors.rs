//! Open files: what others map does not use them up, and a run goes on and is accounted for where none is left.

use std::{
    fs::{self, Permissions},
    io::Read as _,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
};

use profiler::stderr;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    every_kernel::ledger::assert_identity,
    oldest_and_newest::limits::{least_files, limit_files},
    support::{Ended, Program, Run, fixture, now_ns, parse_json, profiler, symbols},
};

/// The agent's limit, which is what most systems have by default.
const LIMIT: u64 = 1024;
/// More than that.
const FILES: u32 = 1100;
/// So many that the records of mapping them don't fit into the rings.
const FLOOD: u32 = 8000;
/// Two users who are not root.
const USERS: [u32; 2] = [65534, 65533];

/// Maps so many files of a folder as this user.
fn map_many(user: u32, files: u32, dir: &Path) -> Program {
    let own = dir.join(user.to_string());
    fs::create_dir(&own).unwrap();
    chown(&own, Some(user), Some(user)).unwrap();
    let copy = dir.join("many_files");
    fs::copy(fixture("many_files.c"), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.arg(&own).arg(files.to_string()).uid(user).gid(user).current_dir("/");
    let mut program = Program(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    program.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    program
}

/// A folder that every user can enter.
fn open_folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A profiler that runs until it is ended.
fn start(command: &mut Command) -> Run {
    command.args(["-d", "180s", "-f", "json", "-F", "499"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Run::of(child.spawn().unwrap())
}

/// The account of a run that has ended as it should.
fn assert_settled(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (_, summary) = parse_json(&ended.stdout);
    assert_identity(&summary);
    for of_cpu in summary["per_cpu"].as_array().unwrap() {
        assert_identity(of_cpu);
    }
    assert!(summary["fired"].as_u64().unwrap() > 0, "{summary}");
    assert!(summary["memory"]["agent"]["anon_bytes"].as_u64().unwrap() > 0, "{summary}");
    summary
}

/// How many files below a folder a process has open.
fn held(pid: u32, dir: &Path) -> usize {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = links.filter_map(|it| fs::read_link(it.unwrap().path()).ok());
    links.filter(|it| it.starts_with(dir)).count()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_users_map_leaves_files_for_others_and_for_the_end() {
    if std::env::var_os("PROFILER_TEST_EMULATED").is_some() {
        return stderr::say("skipped: opening so many files takes minutes on an emulated machine");
    }
    let dir = open_folder();
    // One is there before the run, the other begins while it samples.
    let _before = map_many(USERS[0], FILES, dir.path());
    let mut command = profiler();
    limit_files(&mut command, LIMIT);
    let mut run = start(&mut command);
    let agent = run.child.id();
    run.sample(|_| true);
    let one = dir.path().join(USERS[0].to_string());
    let before = held(agent, &one);
    assert!(before > 100 && before <= 512, "{before}");
    fs::remove_file(dir.path().join("many_files")).unwrap();
    let during = map_many(USERS[1], FILES, dir.path());
    run.sample(|it| it["pid"] == during.0.id());
    let all = held(agent, dir.path());
    assert!(all <= 768, "{all}");
    // What root begins now has names, from a file that nobody has mapped before.
    let copy = dir.path().join("chain");
    fs::copy(fixture("chain.c"), &copy).unwrap();
    let later = Program(Command::new(&copy).stdin(Stdio::null()).spawn().unwrap());
    run.sample(|it| {
        let chain = ["inner", "middle", "outer", "main"];
        it["pid"] == later.0.id() && symbols(&it["user"]).starts_with(&chain)
    });
    let ended = run.end_by(libc::SIGINT);
    assert!(!ended.stderr.contains("os error 24"), "{}", ended.stderr);
    assert_settled(&ended);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn with_the_fewest_files_that_it_starts_with_all_is_accounted_for() {
    let dir = open_folder();
    let mut command = profiler();
    let least = least_files();
    limit_files(&mut command, least);
    let mut run = start(&mut command);
    run.sample(|_| true);
    let many = map_many(USERS[0], FILES, dir.path());
    run.sample(|it| it["pid"] == many.0.id());
    // What begins now is sampled, too, with names or without.
    let later = Program::start("chain.c");
    run.sample(|it| it["pid"] == later.0.id() && !it["user"].as_array().unwrap().is_empty());
    let held = fs::read_dir(format!("/proc/{}/fd", run.child.id())).unwrap().count() as u64;
    assert!(held <= least, "{held}");
    assert_settled(&run.end_by(libc::SIGINT));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_run_that_can_open_no_more_files_goes_on_with_what_it_knows() {
    let known = Program::start("chain.c");
    let mut run = start(&mut profiler());
    let chain = ["inner", "middle", "outer", "main"];
    let is_named =
        |it: &Value| it["pid"] == known.0.id() && symbols(&it["user"]).starts_with(&chain);
    run.sample(is_named);
    let in_kernel = Program::start("syscalls.c");
    let is_in_kernel = |it: &Value| {
        let symbols = symbols(&it["kernel"]);
        it["pid"] == in_kernel.0.id() && !symbols.is_empty() && !symbols.contains(&"?")
    };
    run.sample(is_in_kernel);
    run.exhaust_files();
    let later = Program::start("nofp.c");
    let since_ns = now_ns();
    let is_since = |it: &Value| it["time_ns"].as_u64().unwrap() > since_ns;
    run.sample(|it| it["pid"] == later.0.id() && !it["user"].as_array().unwrap().is_empty());
    // Longer than it takes until modules of the kernel are looked for again.
    let end_ns = since_ns + 3_000_000_000;
    run.sample(|it| it["time_ns"].as_u64().unwrap() > end_ns);
    run.sample(|it| is_since(it) && is_named(it));
    run.sample(|it| is_since(it) && is_in_kernel(it));
    assert_settled(&run.end_by(libc::SIGINT));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn children_stay_followed_where_no_file_can_be_opened() {
    if std::env::var_os("PROFILER_TEST_EMULATED").is_some() {
        return stderr::say("skipped: making so many files takes minutes on an emulated machine");
    }
    let dir = open_folder();
    let mut command = Command::new(fixture("family.c"));
    let mut family = Program(command.stdin(Stdio::piped()).spawn().unwrap());
    let _input = family.0.stdin.take();
    let mut command = profiler();
    command.args(["-p", &family.pid(), "--children"]);
    let mut run = start(&mut command);
    run.sample(|it| symbols(&it["user"]).contains(&"in_child"));
    run.exhaust_files();
    // Records that were lost have all processes looked for.
    run.signal(libc::SIGSTOP);
    let flood = map_many(USERS[0], FLOOD, dir.path());
    drop(flood);
    run.signal(libc::SIGCONT);
    let since_ns = now_ns();
    let end_ns = since_ns + 3_000_000_000;
    run.sample(|it| it["time_ns"].as_u64().unwrap() > end_ns);
    let summary = assert_settled(&run.end_by(libc::SIGINT));
    assert!(summary["sideband_lost"].as_u64().unwrap() > 0, "{summary}");
}
