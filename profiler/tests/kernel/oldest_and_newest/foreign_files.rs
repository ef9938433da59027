//! Files that an unprivileged user has made, to hold up, blind or mislead whoever opens them.

use std::{
    fs::{self, Permissions},
    io::Read as _,
    os::unix::{
        fs::{PermissionsExt as _, chown, symlink},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use profiler::stderr;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Program, Run, fixture, is_installed, symbols};

/// The user who does it: nobody.
const USER: u32 = 65534;

/// A jump to itself: all that the file of a program needs to hold to be run when it is mapped.
#[cfg(target_arch = "x86_64")]
const CODE: &[u8] = &[0xeb, 0xfe];
#[cfg(target_arch = "aarch64")]
const CODE: &[u8] = &[0x00, 0x00, 0x00, 0x14];

/// A folder that everybody may enter.
fn open_folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A fixture, copied to where the user may run it.
fn copied(name: &str, dir: &Path) -> PathBuf {
    let copy = dir.join(name);
    fs::copy(fixture(name), &copy).unwrap();
    copy
}

/// Gives a file to the user.
fn give(path: &Path) {
    chown(path, Some(USER), Some(USER)).unwrap();
}

/// Starts what says on its standard output that it is ready; `None` if it ends before.
fn ready(command: &mut Command) -> Option<Program> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut program = Program(command.spawn().unwrap());
    program.0.stdout.as_mut().unwrap().read_exact(&mut [0]).ok().map(|()| program)
}

fn as_user(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(USER).gid(USER).current_dir("/");
    command
}

/// Starts what is run in a user namespace of the user's; `None`, and said, where there are none.
fn in_namespace(arguments: &[&str]) -> Option<Program> {
    if !is_installed("unshare") {
        return None;
    }
    let program = ready(as_user(Path::new("unshare")).args(arguments));
    if program.is_none() {
        stderr::say("skipped: users may not make user namespaces here");
    }
    program
}

fn is_of(sample: &Value, program: &Program) -> bool {
    sample["pid"] == program.0.id() && sample["user"][0].is_object()
}

/// Lets go of all leases.
fn unlock(program: &Program) {
    let pid = i32::try_from(program.0.id()).unwrap();
    // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGUSR1) }, 0);
}

fn assert_ends(run: Run) {
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Nothing was stuck.
    assert!(!ended.stderr.contains("not responding"), "{}", ended.stderr);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_leased_perf_map_is_not_waited_for() {
    let dir = open_folder();
    let leases = copied("leases.c", dir.path());
    let program = ready(as_user(&leases).arg("map")).expect("it leases its map");
    let mut run = Run::start(&["-f", "json"]);
    run.sample(|it| is_of(it, &program) && it["user"][0]["origin"] == "file leased");
    unlock(&program);
    run.sample(|it| is_of(it, &program) && it["user"][0]["symbol"] == "made_at_run_time");
    assert_ends(run);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn leased_files_of_a_user_cost_others_nothing() {
    let dir = open_folder();
    let leases = copied("leases.c", dir.path());
    let files = ["one", "two", "three"].map(|name| dir.path().join(name));
    for file in &files {
        fs::write(file, [CODE, &[0; 4096]].concat()).unwrap();
        give(file);
    }
    let mut run = Run::start(&["-f", "json"]);
    run.wait_until_it_samples();
    let program = ready(as_user(&leases).args(&files)).expect("it leases its files");
    run.sample(|it| is_of(it, &program) && it["user"][0]["origin"] == "file leased");
    // A new program of root's, on the same file system.
    let other = copied("chain.c", dir.path());
    let other = Program(Command::new(other).stdin(Stdio::null()).spawn().unwrap());
    run.sample(|it| is_of(it, &other) && symbols(&it["user"]).starts_with(&["inner", "middle"]));
    unlock(&program);
    // It is opened when it can be, without a word from its process.
    run.sample(|it| is_of(it, &program) && it["user"][0]["origin"] == "no readable ELF file");
    assert_ends(run);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn links_of_debug_info_to_a_fifo_are_not_waited_for() {
    if !is_installed("objcopy") {
        return;
    }
    let dir = open_folder();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for section in [".gnu_debuglink", ".gnu_debugaltlink"] {
        // The name, a zero, and either a checksum at the next multiple of four, or a build id.
        let mut link = fifo.to_str().unwrap().as_bytes().to_vec();
        link.resize((link.len() + 1).next_multiple_of(4), 0);
        link.extend([1; 20]);
        let (content, program) = (dir.path().join("link"), dir.path().join(&section[1..]));
        fs::write(&content, link).unwrap();
        let added = Command::new("objcopy")
            .arg(format!("--add-section={section}={}", content.display()))
            .args([&fixture("chain.c"), &program])
            .status();
        assert!(added.unwrap().success());
        let program = Program(as_user(&program).stdin(Stdio::null()).spawn().unwrap());
        let mut run = Run::start(&["-f", "json", "--lines"]);
        // The innermost is inlined into it.
        run.sample(|it| is_of(it, &program) && symbols(&it["user"]).contains(&"inner"));
        assert_ends(run);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_a_user_may_not_read_is_no_perf_map_of_theirs() {
    let dir = open_folder();
    let program = copied("leases.c", dir.path());
    let secret = dir.path().join("secret");
    fs::write(&secret, "1000 7fffffffe000 the_secret\n").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let (secret, program) = (secret.display(), program.display());
    let script = format!(
        "touch /tmp/perf-$$.map && mount --bind {secret} /tmp/perf-$$.map && exec {program} bare"
    );
    let Some(program) = in_namespace(&["-Urm", "sh", "-c", &script]) else { return };
    let mut run = Run::start(&["-f", "json"]);
    let sample = run.sample(|it| is_of(it, &program));
    assert_eq!(sample["user"][0]["symbol"], Value::Null, "{sample}");
    assert_eq!(sample["user"][0]["origin"], "no map of code made at run time", "{sample}");
    assert_ends(run);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_a_user_may_not_read_is_no_debug_file_of_theirs() {
    if !is_installed("objcopy") || !is_installed("strip") {
        return;
    }
    let (dir, root) = (open_folder(), open_folder());
    let (secret, program) = (dir.path().join("secret.debug"), root.path().join("program"));
    let run = |program: &str, arguments: &[&Path]| {
        assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program}");
    };
    run("objcopy", &[Path::new("--only-keep-debug"), &fixture("static.c"), &secret]);
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    run("strip", &[Path::new("-o"), &program, &fixture("static.c")]);
    give(&program);
    let id = profiler_elf::build_id(&fs::File::open(&program).unwrap());
    let id = id.expect("gcc gives build ids").to_string();
    let folder = root.path().join(format!("usr/lib/debug/.build-id/{}", &id[..2]));
    fs::create_dir_all(&folder).unwrap();
    let link = folder.join(format!("{}.debug", &id[2..]));
    symlink(&secret, &link).unwrap();

    let root = format!("--root={}", root.path().display());
    let can_unshare = is_installed("unshare")
        && as_user(Path::new("unshare")).args(["-Ur", "true"]).status().unwrap().success();
    if !can_unshare {
        return stderr::say("skipped: users may not make user namespaces here");
    }
    let mut command = as_user(Path::new("unshare"));
    let program = Program(command.args(["-Ur", &root, "/program"]).spawn().unwrap());
    let mut run = Run::start(&["-f", "json"]);
    // In /proc/PID/maps its path is as we see it, in the kernel's records as the process does.
    let is_in_file = |it: &Value| {
        it["user"][0]["module"].as_str().is_some_and(|module| module.ends_with("/program"))
    };
    let sample = run.sample(|it| is_of(it, &program) && is_in_file(it));
    assert_eq!(sample["user"][0]["symbol"], Value::Null, "{sample}");
    assert_eq!(sample["user"][0]["origin"], "no symbol", "{sample}");
    assert_ends(run);
}
