//! File systems that do not answer hold up nobody.

use std::{
    ffi::CString,
    fs::{self, Permissions},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    ptr, thread,
};

use serde_json::Value;

use crate::{
    our_code::unanswering::Unanswering,
    support::{
        Program, Run, fixture, has_tables, is_installed, left_in_kernel, parse_json, symbols,
        wait_until,
    },
};

const REASON: &str = "file system does not answer";
/// One who is not root.
const USER: u32 = 65534;

/// A program that runs from the file system, with its code in memory.
fn start(files: &Unanswering) -> Program {
    let program = Program(Command::new(files.program()).stdin(Stdio::null()).spawn().unwrap());
    program.wait_for_ticks(2);
    program
}

fn is_of(sample: &Value, program: &Program) -> bool {
    sample["pid"] == program.0.id() && !sample["user"].as_array().unwrap().is_empty()
}

/// Reads until a sample shows the whole chain of the program, which may still be beginning.
fn assert_named(run: &mut Run, program: &Program) {
    run.sample(|it| {
        is_of(it, program)
            && symbols(&it["user"]).starts_with(&["inner", "middle", "outer", "main"])
    });
}

/// Reads until the program is sampled, which must say why it has no names, until that is said of its file,
/// and until its stacks say that what its file tells of them is not there.
fn assert_unanswered(run: &mut Run, program: &Program) {
    // Its loader is on another file system.
    let is_in_file = |it: &Value| {
        it["user"][0]["module"].as_str().is_some_and(|module| module.ends_with("/program"))
    };
    let sample = run.sample(|it| is_of(it, program) && is_in_file(it));
    assert_eq!(sample["user"][0]["origin"], REASON, "{sample}");
    run.wait_for_notice("/program, mapped by process ");
    if has_tables() {
        let end = "unwind_info_not_loaded";
        run.sample(|it| is_of(it, program) && is_in_file(it) && it["user_end"] == end);
    }
}

/// Ends the run, also while the file system does not answer.
fn assert_ends(run: Run) {
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("names may be missing: "), "{}", ended.stderr);
    let (_, summary) = parse_json(&ended.stdout);
    assert_eq!(summary["sideband_lost"], 0, "{summary}");
    wait_until("the kernel has freed all of it", || left_in_kernel().is_empty());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_file_system_that_does_not_answer_at_the_start() {
    let Some(files) = Unanswering::mount(&fixture("chain.c")) else { return };
    let (stuck, other) = (start(&files), Program::start("chain.c"));
    files.set_answering(false);
    let mut run = Run::start(&["-f", "json"]);
    assert_named(&mut run, &other);
    assert_unanswered(&mut run, &stuck);
    assert_ends(run);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_begins_whose_file_is_not_answered() {
    let Some(files) = Unanswering::mount(&fixture("chain.c")) else { return };
    let mut run = Run::start(&["-f", "json", "--metadata"]);
    run.wait_until_it_samples();
    files.be_silent_to(run.child.id());
    let (stuck, other) = (start(&files), Program::start("chain.c"));
    assert_unanswered(&mut run, &stuck);
    assert_named(&mut run, &other);
    // What begins later has names, too.
    let later = Program::start("static.c");
    run.sample(|it| is_of(it, &later) && it["user"][0]["symbol"] == "inner");
    assert_ends(run);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_file_system_that_answers_again_has_names() {
    let Some(files) = Unanswering::mount(&fixture("chain.c")) else { return };
    let stuck = start(&files);
    files.set_answering(false);
    let mut run = Run::start(&["-f", "json"]);
    assert_unanswered(&mut run, &stuck);
    files.set_answering(true);
    run.sample(|it| is_of(it, &stuck) && it["user"][0]["symbol"] == "inner");
    assert_ends(run);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_debug_file_that_is_not_answered_costs_no_names() {
    if !is_installed("objcopy") {
        return;
    }
    let Some(files) = Unanswering::mount(&fixture("chain.c")) else { return };
    // The program links to a debug file, which would lie in the file system.
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::copy(fixture("chain.c"), at("program")).unwrap();
    let mut objcopy = Command::new("objcopy");
    objcopy.arg(format!("--add-gnu-debuglink={}", at("program").display()));
    assert!(objcopy.args([at("program"), at("linked")]).status().unwrap().success());
    fs::remove_file(at("program")).unwrap();
    symlink(files.program().parent().unwrap(), at(".debug")).unwrap();
    files.set_answering(false);
    let mut run = Run::start(&["-f", "json"]);
    let linked = Program(Command::new(at("linked")).stdin(Stdio::null()).spawn().unwrap());
    assert_named(&mut run, &linked);
    let other = Program::start("static.c");
    run.sample(|it| is_of(it, &other) && it["user"][0]["symbol"] == "inner");
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let notice = format!("debug files of {} is not responding", at("linked").display());
    assert!(ended.stderr.contains(&notice), "{}", ended.stderr);
    let (_, summary) = parse_json(&ended.stdout);
    assert_eq!(summary["lost"]["agent_behind"], 0, "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_start_that_waits_ends_by_a_signal() {
    let Some(files) = Unanswering::mount(&fixture("chain.c")) else { return };
    let _stuck = start(&files);
    files.set_answering(false);
    let run = Run::start(&["-f", "json"]);
    wait_until("it is loaded", || run.is_in_kernel());
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("\"summary\""), "{}", ended.stdout);
}

/// A file that was mounted over another one; no more when dropped.
struct Bound(CString);

impl Bound {
    fn mount(from: &Path, to: &Path) -> Self {
        let [from, to] = [from, to].map(|it| CString::new(it.as_os_str().as_bytes()).unwrap());
        // SAFETY: the paths end in a zero and outlive the call.
        let mounted = unsafe {
            libc::mount(from.as_ptr(), to.as_ptr(), ptr::null(), libc::MS_BIND, ptr::null())
        };
        assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
        Self(to)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: the path ends in a zero and outlives the call.
        let unmounted = unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
        if !thread::panicking() {
            assert_eq!(unmounted, 0, "{}", std::io::Error::last_os_error());
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_perf_map_that_is_not_answered_holds_up_nobody() {
    let (stuck, other) = (Program::start("jit.c"), Program::start("jitdump.c"));
    let path = PathBuf::from(format!("/tmp/perf-{}.map", stuck.pid()));
    wait_until("it has named its code", || fs::read(&path).is_ok_and(|it| it.ends_with(b"\n")));
    let Some(files) = Unanswering::mount_with(fs::read(&path).unwrap()) else { return };
    let _bound = Bound::mount(&files.program(), &path);
    files.set_answering(false);
    let mut run = Run::start(&["-f", "json"]);
    let is_named = |it: &Value, program: &Program| {
        is_of(it, program) && symbols(&it["user"])[0] == "made_at_run_time"
    };
    run.sample(|it| is_named(it, &other));
    run.sample(|it| is_of(it, &stuck) && it["user"][0]["origin"] == REASON);
    run.wait_for_notice(path.to_str().unwrap());
    // Neither are names of what begins now held up, nor of code that comes from files.
    let [later, program] = ["jit.c", "chain.c"].map(Program::start);
    run.sample(|it| is_named(it, &later));
    assert_named(&mut run, &program);
    files.set_answering(true);
    run.sample(|it| is_named(it, &stuck));
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (_, summary) = parse_json(&ended.stdout);
    assert_eq!(summary["lost"]["agent_behind"], 0, "{summary}");
    assert_eq!(summary["parsing"]["restarts"], 0, "{summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_perf_map_that_is_answered_slowly_is_asked_for_less_often() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("jit");
    fs::copy(fixture("jit.c"), &copy).unwrap();
    let mut command = Command::new(&copy);
    let slow = Program(command.uid(USER).gid(USER).stdin(Stdio::null()).spawn().unwrap());
    let path = PathBuf::from(format!("/tmp/perf-{}.map", slow.pid()));
    wait_until("it has named its code", || fs::read(&path).is_ok_and(|it| it.ends_with(b"\n")));
    // Without a name for the code that runs, the file is asked for again and again.
    let Some(files) = Unanswering::mount_with(b"1000 10 other\n".to_vec()) else { return };
    let _bound = Bound::mount(&files.program(), &path);
    files.delay(100);
    let mut run = Run::start(&["-f", "json"]);
    run.wait_for_notice(&format!("files of user {USER} are left out for now"));
    run.sample(|it| is_of(it, &slow) && it["user"][0]["origin"] == REASON);
    // Root's are not.
    let [later, program] = ["jit.c", "chain.c"].map(Program::start);
    run.sample(|it| is_of(it, &later) && symbols(&it["user"])[0] == "made_at_run_time");
    assert_named(&mut run, &program);
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (_, summary) = parse_json(&ended.stdout);
    assert!(summary["parsing"]["unasked"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(summary["lost"]["agent_behind"], 0, "{summary}");
}
