//! Open files: what others map does not use them up.

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

use crate::{
    every_kernel::ledger::assert_identity,
    oldest_and_newest::limits::limit_files,
    support::{Program, Run, fixture, parse_json, profiler, symbols},
};

/// The agent's limit, which is what most systems have by default.
const LIMIT: u64 = 1024;
/// More than that.
const FILES: &str = "1100";
/// Two users who are not root.
const USERS: [u32; 2] = [65534, 65533];

/// Maps that many files of a folder as this user.
fn map_many(user: u32, dir: &Path) -> Program {
    let own = dir.join(user.to_string());
    fs::create_dir(&own).unwrap();
    chown(&own, Some(user), Some(user)).unwrap();
    let copy = dir.join("many_files");
    fs::copy(fixture("many_files.c"), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.arg(&own).arg(FILES).uid(user).gid(user).current_dir("/");
    let mut program = Program(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    program.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    program
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
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = profiler();
    limit_files(&mut command, LIMIT);
    command.args(["-d", "180s", "-f", "json", "-F", "499"]);
    // One is there before the run, the other begins while it samples.
    let _before = map_many(USERS[0], dir.path());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Run::of(child.spawn().unwrap());
    let agent = run.child.id();
    run.sample(|_| true);
    let one = dir.path().join(USERS[0].to_string());
    let before = held(agent, &one);
    assert!(before > 100 && before <= 512, "{before}");
    fs::remove_file(dir.path().join("many_files")).unwrap();
    let during = map_many(USERS[1], dir.path());
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
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("os error 24"), "{}", ended.stderr);
    let (_, summary) = parse_json(&ended.stdout);
    assert_identity(&summary);
}
