//! What is in the kernel for the walk stays within its limit, and goes when others need the room.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use object::Object as _;
use profiler::stderr;
use serde_json::Value;

use crate::{
    every_kernel::unwinding::is_by_tables,
    support::{Program, Run, fixture, has_tables, parse_json, run, symbols, wait_until},
};

const CHAIN: [&str; 4] = ["inner", "middle", "outer", "main"];

/// What `cargo xtask test` has built, changed into a file of its own: with another build id.
fn copy(name: &str, number: u8, dir: &Path, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(fixture(name)).unwrap();
    let id = object::File::parse(&*bytes).unwrap().build_id().unwrap().unwrap().to_vec();
    let at = bytes.windows(id.len()).position(|it| it == id).unwrap();
    bytes[at] = number;
    bytes[at + 1] = !number;
    change(&mut bytes);
    let path = dir.join(format!("copy-{number}"));
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Starts a program, which goes on when it is told to.
fn stopped(path: &Path) -> Program {
    let mut command = Command::new(path);
    let mut program = Program(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    program.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    signal(&program, libc::SIGSTOP);
    program
}

fn signal(program: &Program, signal: i32) {
    let pid = program.0.id().try_into().unwrap();
    // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Samples these programs only, so that no other tables are wanted. While the first one runs all the
/// time, each of the others runs until a stack of it is whole, and is gone before the next.
fn one_after_another(
    first: &Program,
    others: Vec<Program>,
    chain: &[&str],
    arguments: &[&str],
) -> Run {
    let pids: Vec<String> = others.iter().chain([first]).map(Program::pid).collect();
    let pids = pids.iter().flat_map(|pid| ["-p", pid]);
    let all: Vec<&str> = ["-f", "json", "-F", "997"]
        .into_iter()
        .chain(arguments.iter().copied())
        .chain(pids)
        .collect();
    let mut run = Run::start(&all);
    wait_for_whole(&mut run, first, &CHAIN);
    for program in others {
        signal(&program, libc::SIGCONT);
        wait_for_whole(&mut run, &program, chain);
    }
    // Its tables are there, again or still.
    wait_for_whole(&mut run, first, &CHAIN);
    run
}

/// Waits for a stack of a program that ends with these functions and is whole, by tables in the kernel.
fn wait_for_whole(run: &mut Run, program: &Program, chain: &[&str]) {
    let pid = program.0.id();
    run.sample(|it| {
        let names = symbols(&it["user"]);
        it["pid"] == pid && is_by_tables(it) && names.starts_with(chain)
    });
}

/// How many tables the kernel has: they have the name that aya gives.
fn tables_in_kernel() -> usize {
    let maps = aya::maps::loaded_maps().flatten();
    maps.filter(|it| it.name_as_str().is_some_and(|name| name.starts_with("standalone"))).count()
}

/// What a run tells at its end, as JSON and as text.
fn end(run: Run) -> (Value, String) {
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (_, mut summary) = parse_json(&ended.stdout);
    (summary["unwinding"].take(), ended.stderr)
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_else(|| panic!("no {field} in {of}"))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_the_walk_takes_is_told() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nofp.c", &[]);
    let arguments = ["-f", "json", "-F", "997", "-p", &program.pid(), "-v"];
    // It executes only when the tables of what does have been made.
    program.pause();
    let mut run = Run::start(&[&arguments[..], &["--max-unwind-memory", "32M"]].concat());
    run.wait_until_it_samples();
    program.go_on();
    wait_for_whole(&mut run, &program, &CHAIN);
    let (unwinding, stderr) = end(run);
    // Its own, and that of libc.
    assert!(number(&unwinding, "tables") >= 2, "{unwinding}");
    assert!((3..=number(&unwinding, "max_rules")).contains(&number(&unwinding, "rules")));
    assert_eq!(number(&unwinding, "limit_bytes"), 32 << 20);
    let taken = number(&unwinding, "table_bytes") + number(&unwinding, "other_bytes");
    assert!(number(&unwinding, "table_bytes") > 64 << 10 && taken < 32 << 20, "{unwinding}");
    // Until its tables were there.
    assert!(number(&unwinding, "walked_from_snapshots") > 0, "{unwinding}");
    for nothing in ["evicted", "no_room", "rebuilt", "unknown_processes"] {
        assert_eq!(number(&unwinding, nothing), 0, "{unwinding}");
    }
    let line = stderr.lines().find(|it| it.starts_with("unwind tables: ")).unwrap();
    assert!(line.ends_with(" of 32.0 MiB"), "{line}");
    assert!(!stderr.contains("--max-unwind-memory"), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn kernel_stacks_alone_take_nothing_for_user_stacks() {
    let output = run(&["-f", "json", "-d", "200ms", "--kernel-only", "-v"]);
    assert!(output.status.success(), "{output:?}");
    let (_, summary) = parse_json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(summary["unwinding"], Value::Null, "{summary}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("unwind") && !stderr.contains("user stacks"), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn too_little_memory_is_refused_and_the_least_is_enough() {
    if !has_tables() {
        return;
    }
    let output = run(&["-f", "folded", "-d", "100ms", "--max-unwind-memory", &least()]);
    assert!(output.status.success(), "{output:?}");
}

/// The least that may be given to the walk, as the profiler tells it.
fn least() -> String {
    let output = run(&["-d", "100ms", "--max-unwind-memory", "4K"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    stderr.split_once("at least ").unwrap().1.split_once(' ').unwrap().0.to_owned()
}

/// Their tables are together more than there is room for.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn tables_of_programs_that_are_gone_make_room() {
    if !has_tables() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let first = Program::ready("nofp.c", &[]);
    let copy = |number| stopped(&copy("nofp_static.c", number, dir.path(), |_| {}));
    let others: Vec<Program> = (0..96).map(copy).collect();
    let made = others.len();
    let arguments = ["--max-unwind-memory", &least()];
    let run = one_after_another(&first, others, &CHAIN, &arguments);
    // Half of them have room. The kernel takes a moment to free one.
    let some = 1..made * 3 / 4;
    wait_until("the kernel has freed what was taken out", || some.contains(&tables_in_kernel()));
    let (unwinding, stderr) = end(run);
    assert!(number(&unwinding, "evicted") > 0, "{unwinding}");
    assert_eq!(number(&unwinding, "no_room"), 0, "{unwinding}");
    let taken = number(&unwinding, "table_bytes") + number(&unwinding, "other_bytes");
    assert!(taken <= number(&unwinding, "limit_bytes"), "{unwinding}");
    assert!(stderr.contains("raise --max-unwind-memory"), "{stderr}");
}

/// The rules of five such programs are more than there can be.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn rules_that_are_used_up_are_begun_anew() {
    if cfg!(target_arch = "aarch64") {
        return stderr::say("skipped: the program with so many rules is written for x86-64");
    }
    if !has_tables() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let first = Program::ready("nofp.c", &[]);
    // DW_CFA_remember_state and DW_CFA_restore_state, then that `rbp` is at CFA - 2 * 8.
    let marked = [[0x0a, 0x0b].repeat(8), vec![0x86, 2]].concat();
    let copy = |number| {
        let change = |bytes: &mut Vec<u8>| {
            let at = bytes.windows(marked.len()).position(|it| it == marked).unwrap();
            bytes[at + marked.len() - 1] = number;
        };
        stopped(&copy("rules.c", number, dir.path(), change))
    };
    let others = (3..8).map(copy).collect();
    let (unwinding, stderr) =
        end(one_after_another(&first, others, &["inner", "calls", "main"], &[]));
    assert_eq!(number(&unwinding, "rebuilt"), 1, "{unwinding}");
    let rules = number(&unwinding, "rules");
    assert!((4000..number(&unwinding, "max_rules")).contains(&rules), "{unwinding}");
    assert!(stderr.contains("all unwind tables were rebuilt 1 times"), "{stderr}");
}

/// Of a file that is not root's, each process has its own handle. The table was to be made of the last
/// one's.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_table_is_made_for_the_first_process_when_the_last_has_ended() {
    if !has_tables() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = copy("nofp_static.c", 1, dir.path(), |_| {});
    chown(&path, Some(65534), None).unwrap();
    let first = stopped(&path);
    let other = Program::ready("nofp.c", &[]);
    let pids = [first.pid(), other.pid()];
    let mut run = Run::start(&["-f", "json", "-F", "997", "-p", &pids[0], "-p", &pids[1]]);
    let mut pass = |ms: u64| {
        let from = number(&run.sample(|_| true), "time_ns");
        run.sample(|it| number(it, "time_ns") > from + ms * 1_000_000);
    };
    for _ in 0..3 {
        let _last = stopped(&path);
        // It is known by then. If not, nothing is shown.
        pass(200);
    }
    // What has ended is forgotten after a while, when something else happens.
    pass(1500);
    drop(Program::ready("nofp.c", &[]));
    pass(500);
    signal(&first, libc::SIGCONT);
    wait_for_whole(&mut run, &first, &CHAIN);
}

/// Of what a process has unmapped nobody tells, and the kernel has room for less than this one had mapped:
/// what it still has lies above.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_is_still_mapped_has_room_when_more_was_unmapped() {
    if !has_tables() {
        return;
    }
    let mut run = Run::start(&["-f", "json", "-F", "997"]);
    run.wait_until_it_samples();
    let program = Program::ready("remaps.c", &[]);
    wait_for_whole(&mut run, &program, &CHAIN);
}

/// Beyond the limit the kernel's list forgets those that began first, also of those that are sampled.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_that_is_sampled_comes_back_when_others_took_its_room() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nofp.c", &[]);
    let mut run = Run::start(&["-f", "json", "-F", "997", "--max-processes", "8"]);
    wait_for_whole(&mut run, &program, &CHAIN);
    let _others: Vec<Program> = (0..16).map(|_| stopped(&fixture("nofp.c"))).collect();
    let pid = program.0.id();
    run.sample(|it| it["pid"] == pid && !is_by_tables(it));
    wait_for_whole(&mut run, &program, &CHAIN);
}
