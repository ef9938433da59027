//! Every sample has its names, whatever becomes of the process and its files.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    every_kernel::unwinding::{Chain as _, SAMPLES, start, up_to, wait_for_tables},
    support::{Program, Run, fixture, has_tables, parse_json, profiler, run, symbols, wait_until},
};

/// Bytes of the first instructions of a function, in which it has no frame yet.
const PROLOGUE: u64 = 8;

const CHAIN: [&str; 4] = ["inner", "middle", "outer", "main"];

/// Samples until there is one of the process in its innermost function.
fn sample_in(run: &mut Run, pid: u32, function: &str) -> Value {
    run.sample(|it| it["pid"] == pid && symbols(&it["user"]).first() == Some(&function))
}

fn assert_chain(sample: &Value, module: &str) {
    assert_eq!(symbols(&sample["user"])[..4], CHAIN, "{sample}");
    for frame in &sample["user"].as_array().unwrap()[..4] {
        assert!(frame["module"].as_str().unwrap().ends_with(module), "{frame}");
        assert_eq!(frame["origin"], "elf", "{frame}");
    }
}

/// Whether the user half is of the program's own code, and the sample of one of its children.
fn is_in(sample: &Value, module: &str) -> bool {
    let first = sample["user"][0]["module"].as_str();
    first.is_some_and(|name| name.ends_with(module))
}

/// Whether the kernel was replacing the program: the process has the new one's name and mappings already, and still the
/// registers of the one before.
fn is_in_exec(sample: &Value) -> bool {
    symbols(&sample["kernel"]).contains(&"load_elf_binary")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn processes_of_some_milliseconds_have_names() {
    for milliseconds in ["10", "2"] {
        let mut command = Command::new(fixture("brief.c"));
        let program = Program(command.arg(milliseconds).spawn().unwrap());
        let parent = program.0.id();
        let mut run = Run::start(&["-f", "json", "-F", "999"]);
        let (mut pids, mut chains) = (std::collections::HashSet::new(), 0);
        while pids.len() < 10 || chains < 50 {
            let sample = run.sample(|it| {
                let is_child = it["comm"] == "brief-c" && it["pid"] != parent;
                is_child && it["user"][0].is_object() && !is_in_exec(it)
            });
            pids.insert(sample["pid"].as_u64());
            // From exec to exit, whatever runs there is known; behind it the loader's frame pointers
            // may lead anywhere.
            assert!(sample["user"][0]["module"].is_string(), "{milliseconds} ms: {sample}");
            let all = symbols(&sample["user"]);
            if is_in(&sample, "/brief-c") {
                assert_eq!(sample["user"][0]["origin"], "elf", "{sample}");
            }
            if all[0] == "inner" && sample["user"][0]["offset"].as_u64() >= Some(PROLOGUE) {
                assert!(all.len() >= 3, "{milliseconds} ms: {sample}");
                assert_eq!(all[..3], ["inner", "outer", "main"], "{sample}");
                chains += 1;
            }
        }
    }
}

/// Walked by the agent where the kernel was not told in time what is mapped, which is seldom so: how many are,
/// is not for this test to say.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn processes_of_some_milliseconds_have_whole_stacks() {
    if !has_tables() {
        return;
    }
    let mut command = Command::new(fixture("nofp_brief.c"));
    let program = Program(command.arg("2").spawn().unwrap());
    let parent = program.0.id();
    let mut run = Run::start(&["-f", "json", "-F", "199"]);
    let is_child = |it: &Value| it["pid"] != parent && is_in(it, "/nofp_brief-c");
    let (mut all, mut left_out) = (0, 0);
    while all < SAMPLES / 4 {
        let sample = run.sample(is_child);
        let names = symbols(&sample["user"]);
        // Its start, and that of the dynamic linker, have no chain of ours.
        if !["inner", "outer", "main"].contains(&names[0]) {
            continue;
        }
        // Where too much waits in the agent there are no copies.
        let is_left_out = sample["user_from_snapshot"] == false && sample["user_end"] != "complete";
        if is_left_out && std::env::var_os("PROFILER_TEST_EMULATED").is_some() {
            left_out += 1;
            assert!(left_out <= SAMPLES / 8, "after {all}: {sample}");
            continue;
        }
        assert_eq!(sample["user_end"], "complete", "{sample}");
        assert!(["inner", "outer", "main"].ends_with_names(&up_to(&sample, "main")), "{sample}");
        all += 1;
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_that_was_replaced_while_it_runs_keeps_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program");
    fs::copy(fixture("chain.c"), &path).unwrap();
    let program = Program(Command::new(&path).spawn().unwrap());
    program.wait_for_ticks(1);
    let other = dir.path().join("other");
    fs::copy(fixture("brief.c"), &other).unwrap();
    fs::rename(&other, &path).unwrap();
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    assert_chain(&sample_in(&mut run, program.0.id(), "inner"), "/program (deleted)");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_in_its_own_root_has_names() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("static.c"), dir.path().join("only-here")).unwrap();
    let root = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
    let mut command = Command::new("/only-here");
    // SAFETY: chroot and chdir may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let done = libc::chroot(root.as_ptr()) == 0 && libc::chdir(c"/".as_ptr()) == 0;
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    let mut run = Run::start(&["-f", "json"]);
    run.wait_until_it_samples();
    let program = Program(command.stdin(Stdio::null()).spawn().unwrap());
    assert_chain(&sample_in(&mut run, program.0.id(), "inner"), "/only-here");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_in_its_own_mounts_has_names() {
    let dir = tempfile::tempdir().unwrap();
    let (place, source) = (dir.path().display(), fixture("chain.c"));
    let script = format!(
        "mount -t tmpfs none {place} && cp {} {place}/only-here && exec {place}/only-here",
        source.display()
    );
    let mut run = Run::start(&["-f", "json"]);
    run.wait_until_it_samples();
    let mut command = Command::new("unshare");
    let program = Program(command.args(["-m", "sh", "-c", &script]).spawn().unwrap());
    assert_chain(&sample_in(&mut run, program.0.id(), "inner"), "/only-here");
    assert!(!dir.path().join("only-here").exists(), "it is there for us, too");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_program_at_the_end_of_an_exec_chain_is_the_one_named() {
    let mut run = Run::start(&["-f", "json"]);
    run.wait_until_it_samples();
    let script = format!("exec env A=1 {}", fixture("chain.c").display());
    let program = Program(Command::new("sh").args(["-c", &script]).spawn().unwrap());
    let sample = sample_in(&mut run, program.0.id(), "inner");
    assert_chain(&sample, "/chain-c");
    assert_eq!(sample["comm"], "chain-c");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_pid_used_again_is_another_process() {
    let counter = Path::new("/proc/sys/kernel/ns_last_pid");
    let mut run = Run::start(&["-f", "json"]);
    for _ in 0..100 {
        let first = Program::start("chain.c");
        let pid = first.0.id();
        assert_chain(&sample_in(&mut run, pid, "inner"), "/chain-c");
        drop(first);
        // Whoever starts a process now gets the number; mostly that is us.
        fs::write(counter, (pid - 1).to_string()).unwrap();
        let second = Program::start("static.c");
        if second.0.id() == pid {
            let sample = run.sample(|it| {
                it["pid"] == pid && is_in(it, "-c") && it["comm"] == "static-c" && {
                    symbols(&it["user"]).first() == Some(&"inner")
                }
            });
            assert_chain(&sample, "/static-c");
            return;
        }
    }
    panic!("the pid was never free for us");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_library_that_comes_and_goes_has_names() {
    let program = Program::start("loader.c");
    let mut run = Run::start(&["-f", "json", "-F", "499", "-p", &program.pid()]);
    for _ in 0..50 {
        let sample = run.sample(|it| {
            is_in(it, "/plugin-c") && it["user"][0]["offset"].as_u64() >= Some(PROLOGUE) && {
                // What runs when it is loaded and unloaded is called by the loader.
                assert_eq!(it["user"][0]["origin"], "elf", "{it}");
                it["user"][0]["symbol"] == "plugin_work"
            }
        });
        assert_eq!(symbols(&sample["user"])[..2], ["plugin_work", "main"], "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn code_that_is_mapped_twice_has_its_name_at_both_places() {
    let program = Program::start("twice.c");
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    let sample = sample_in(&mut run, program.0.id(), "copied");
    assert!(is_in(&sample, "/twice-c"), "{sample}");
    let maps = fs::read_to_string(format!("/proc/{}/maps", program.pid())).unwrap();
    let code = maps.lines().filter(|it| it.contains("r-xp") && it.ends_with("/twice-c"));
    assert_eq!(code.count(), 2, "{maps}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stripped_program_says_why_it_has_no_names() {
    let program = Program::start("stripped.c");
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    let sample = run.sample(|it| is_in(it, "/stripped-c"));
    let frame = &sample["user"][0];
    assert_eq!((&frame["symbol"], &frame["origin"]), (&Value::Null, &"no symbol".into()));
    assert!(frame["offset"].as_u64().unwrap() > 0, "{frame}");

    // At the end it is told for the whole file, with what would help.
    let ended = run.end_by(libc::SIGINT);
    let (_, summary) = parse_json(&ended.stdout);
    let files = summary["names"].as_array().unwrap();
    let file = files.iter().find(|it| it["module"].as_str().unwrap().ends_with("/stripped-c"));
    let file = file.unwrap();
    assert_eq!((&file["named"], &file["unnamed"]["no symbol"]), (&0.into(), &file["frames"]));
    assert!(file["hint"].as_str().unwrap().contains("--debuginfod"), "{file}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn metadata_says_who_a_process_is() {
    let mut command = Command::new(fixture("brief.c"));
    let program = Program(command.arg("50").spawn().unwrap());
    let mut running = Run::start(&["-f", "json", "-F", "499", "--metadata"]);
    let parent = program.0.id();
    // Between fork and exec it is still what its parent is.
    let sample = running
        .sample(|it| it["pid"] != parent && it["process"]["command_line"] == "brief-c 50 child");
    assert_eq!(sample["process"]["parent"], parent, "{sample}");
    drop(running);
    let without = run(&["-f", "json", "-d", "500ms"]);
    assert!(!String::from_utf8(without.stdout).unwrap().contains("\"process\""));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_table_of_processes_is_bounded() {
    let mut command = Command::new(fixture("brief.c"));
    let _program = Program(command.arg("1").spawn().unwrap());
    let mut run = Run::start(&["-f", "json", "-F", "499", "--max-processes", "8"]);
    for _ in 0..200 {
        run.sample(|it| it["comm"] == "brief-c");
    }
    let ended = run.end_by(libc::SIGINT);
    let (_, summary) = parse_json(&ended.stdout);
    assert!(summary["evicted_processes"].as_u64().unwrap() > 0, "{summary}");
    assert!(ended.stderr.contains("--max-processes"), "{}", ended.stderr);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn many_processes_take_little_memory() {
    // An emulated machine starts few in the same time.
    let count = if std::env::var_os("PROFILER_TEST_EMULATED").is_some() { 500 } else { 20_000 };
    let started = || {
        let stat = fs::read_to_string("/proc/stat").unwrap();
        let line = stat.lines().find_map(|line| line.strip_prefix("processes ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    let mut agent = profiler();
    agent.args(["-d", "10m", "-f", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Run::of(agent.spawn().unwrap());
    run.wait_until_it_samples();
    let before = started();
    let _programs =
        [(); 2].map(|()| Program(Command::new(fixture("brief.c")).arg("0").spawn().unwrap()));
    while started() < before + count {
        run.sample(|_| true);
    }
    let status = fs::read_to_string(format!("/proc/{}/status", run.child.id())).unwrap();
    let anon = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: u64 = anon.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 64 << 10, "{kib} KiB");
    let descriptors = fs::read_dir(format!("/proc/{}/fd", run.child.id())).unwrap().count();
    assert!(descriptors < 1024, "{descriptors}");
    let (_, summary) = parse_json(&run.end_by(libc::SIGINT).stdout);
    assert_eq!((&summary["sideband_lost"], &summary["evicted_processes"]), (&0.into(), &0.into()));
}

/// Whether the main thread of a program has ended, while the program has not.
fn is_headless(program: &Program) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap();
    stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z')
}

/// Samples for so long, by their own clock, that a process that was taken to have ended is forgotten.
fn assert_is_not_forgotten(run: &mut Run) {
    // On its way out the main thread loads a library, of which there is no table yet.
    let is_other = |it: &Value| it["tid"] != it["pid"];
    let until = run.sample(is_other)["time_ns"].as_u64().unwrap() + 3_000_000_000;
    let mut count = 0;
    loop {
        let sample = run.sample(is_other);
        assert_eq!(sample["user_end"], "complete", "{sample}");
        let names = up_to(&sample, "worker");
        assert!(["inner", "worker"].ends_with_names(&names), "{names:?} {sample}");
        count += 1;
        if sample["time_ns"].as_u64().unwrap() > until {
            break;
        }
    }
    assert!(count > SAMPLES, "{count}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_whose_main_thread_ends_goes_on_with_its_others() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("headless.c", &["signal"]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
    assert_eq!(unsafe { libc::kill(program.0.id().try_into().unwrap(), libc::SIGUSR1) }, 0);
    wait_until("the main thread has ended", || is_headless(&program));
    assert_is_not_forgotten(&mut run);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_whose_main_thread_has_ended_before_is_found() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("headless.c", &[]);
    wait_until("the main thread has ended", || is_headless(&program));
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    assert_is_not_forgotten(&mut run);
}
