//! `record`: files, commands, and whose they are.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    Program, Run, fixture, is_installed, parse_json, profiler, read_json, wait_until,
};

/// Nobody's user and group.
const NOBODY: u32 = 65534;

/// `profiler record`, in a folder.
fn record(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = profiler();
    command.arg("record").args(arguments).current_dir(dir).stdin(Stdio::null());
    for name in ["SUDO_UID", "SUDO_GID", "SUDO_USER"] {
        command.env_remove(name);
    }
    command
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    record(dir, arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What is in a folder.
fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
}

/// The sum of the counts of folded stacks.
fn total(folded: &str) -> u64 {
    let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    folded.lines().map(count).sum()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A command that has used so much CPU time, in clock ticks, and then ends.
fn burning(ticks: &str) -> Vec<String> {
    vec![fixture("burn.c").to_str().unwrap().into(), ticks.into()]
}

fn with_command<'a>(options: &[&'a str], command: &'a [String]) -> Vec<&'a str> {
    options.iter().copied().chain(["--"]).chain(command.iter().map(|it| &**it)).collect()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn all_files_of_a_run_have_the_same_samples() {
    let dir = folder();
    let _load = Program::start("chain.c");
    let files = ["-o", "a.folded", "-o", "b.jsonl", "-o", "c.compact.jsonl"];
    let output = run(dir.path(), &[&["-d", "1", "-F", "499"], &files[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let expected = ["a.folded", "b.jsonl", "c.compact.jsonl"].map(String::from);
    assert_eq!(names(dir.path()), BTreeSet::from(expected));
    let (samples, summary) = read_json(&dir.path().join("b.jsonl"));
    let count = samples.len() as u64;
    assert!(count > 0);
    assert_eq!(summary["delivered"], count);
    assert_eq!(total(&fs::read_to_string(dir.path().join("a.folded")).unwrap()), count);
    let compact = fs::read_to_string(dir.path().join("c.compact.jsonl")).unwrap();
    let of_compact = compact.lines().filter(|it| it.starts_with(r#"{"type":"sample""#)).count();
    assert_eq!(of_compact as u64, count);
    let said = stderr(&output);
    assert!(said.contains("FUNCTION") && said.contains("wrote a.folded"), "{said}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_command_is_sampled_with_its_descendants_and_nothing_else() {
    let dir = folder();
    let _others = [Program::start("chain.c"), Program::start("nofp.c")];
    let script = format!("{} 20 & {} 20; wait", burning("")[0], burning("")[0]);
    let command = ["sh".to_owned(), "-c".into(), script];
    let output = run(dir.path(), &with_command(&["-F", "499", "-o", "a.jsonl"], &command));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (samples, _) = read_json(&dir.path().join("a.jsonl"));
    let burns = samples.iter().filter(|it| it["comm"] == "burn-c");
    let pids: BTreeSet<u64> = burns.map(|it| it["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids.len(), 2, "both were sampled");
    let strangers: Vec<&Value> =
        samples.iter().filter(|it| it["comm"] == "chain-c" || it["comm"] == "nofp-c").collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_command_is_sampled_from_its_first_instruction() {
    let dir = folder();
    // Nothing of a new program is mapped: its first instruction is a page fault of the linker.
    // Its descendants are sampled in any case.
    let options = ["-e", "page-faults", "-c", "1", "-f", "json", "-o", "a.jsonl", "--children"];
    let output = run(dir.path(), &with_command(&options, &burning("1")));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (samples, _) = parse_json(&fs::read_to_string(dir.path().join("a.jsonl")).unwrap());
    let in_user = |it: &&Value| it["kernel"].as_array().unwrap().is_empty();
    let first = samples.iter().filter(|it| it["comm"] == "burn-c").find(in_user).unwrap();
    let frames = first["user"].as_array().unwrap();
    let module = frames.first().unwrap()["module"].as_str().unwrap();
    assert!(frames.len() == 1 && module.contains("/ld-linux"), "{first}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_exit_code_is_the_commands() {
    let dir = folder();
    for (script, code) in [("exit 7", 7), ("kill -TERM $$", 143), ("true", 0)] {
        let output = run(dir.path(), &["-o", "a.folded", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(code), "{script}: {}", stderr(&output));
        assert!(names(dir.path()).contains("a.folded"));
    }
    let output = run(dir.path(), &["-o", "none.folded", "--", "no-such-command"]);
    assert_eq!(output.status.code(), Some(127), "{}", stderr(&output));
    assert!(stderr(&output).contains("no-such-command: there is no such command"));
    fs::write(dir.path().join("text"), "").unwrap();
    let output = run(dir.path(), &["-o", "none.folded", "--", "./text"]);
    assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
    assert!(stderr(&output).contains("not executable"), "{}", stderr(&output));
    assert!(!names(dir.path()).contains("none.folded"));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_signal_is_the_commands_first() {
    let script = "trap 'exit 5' TERM; echo ready; while :; do :; done";
    // Also where it is another user's.
    for user in [None, Some(NOBODY)] {
        let dir = folder();
        let mut command = record(dir.path(), &["-o", "a.folded", "--", "sh", "-c", script]);
        if let Some(user) = user {
            command.env("SUDO_UID", user.to_string()).env("SUDO_GID", user.to_string());
        }
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = Run::of(command.spawn().unwrap());
        assert_eq!(run.line(), "ready\n");
        let ended = run.end_by(libc::SIGTERM);
        assert_eq!(ended.code, Some(5), "{}", ended.stderr);
        assert!(names(dir.path()).contains("a.folded"));
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_standard_error_that_takes_nothing_costs_no_file() {
    let dir = folder();
    for closed in ["2>&-", "2>/dev/full"] {
        let script = format!(r#"exec "$0" record -d 300ms -o a.folded {closed}"#);
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(profiler().get_program()).current_dir(dir.path());
        assert_eq!(command.stdin(Stdio::null()).status().unwrap().code(), Some(0), "{closed}");
        fs::remove_file(dir.path().join("a.folded")).unwrap();
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn all_of_the_machine_is_sampled_while_a_command_runs() {
    let dir = folder();
    let load = Program::start("chain.c");
    let output = run(dir.path(), &["-a", "-F", "499", "-o", "a.jsonl", "--", "sleep", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (samples, _) = read_json(&dir.path().join("a.jsonl"));
    assert!(samples.iter().any(|it| it["pid"] == load.0.id()), "{}", stderr(&output));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_is_written_is_the_invoking_users_and_so_is_the_command() {
    let dir = folder();
    // Where root may write only because it may write everywhere.
    chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let sudo = |arguments: &[&str]| {
        let mut command = record(dir.path(), arguments);
        command.env("SUDO_UID", NOBODY.to_string()).env("SUDO_GID", NOBODY.to_string());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    fs::write(dir.path().join("a.folded"), "old").unwrap();
    let id = ["--", "sh", "-c", "id -u; id -g"];
    assert_eq!(sudo(&[&["-o", "a.folded"], &id[..]].concat()), "65534\n65534\n");
    let file = dir.path().join("a.folded").metadata().unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (NOBODY, NOBODY, 0o600));
    assert_eq!(names(dir.path()).len(), 1);
    // Renaming and removing in a sticky folder needs another right.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(sudo(&[&["-o", "a.folded"], &id[..]].concat()), "65534\n65534\n");
    assert_eq!(names(dir.path()).len(), 1);
    assert_eq!(sudo(&[&["-o", "a.folded", "--as-root"], &id[..]].concat()), "0\n0\n");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_terminal_sees_how_the_run_goes_on_and_a_pipe_does_not() {
    let dir = folder();
    if !is_installed("script") {
        return;
    }
    let of = |command: &mut Command| {
        let output = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let path = profiler().get_program().to_str().unwrap().to_owned();
    let run = format!("{path} record -d 3 -o a.folded");
    let seen = of(Command::new("script").args(["-qec", &run, "/dev/null"]));
    assert!(seen.contains(" s left: "), "{seen:?}");
    // What comes last is not mixed with it.
    assert!(
        seen.contains("\r\x1b[K") && seen.contains("\nprofiler: wrote a.folded, for "),
        "{seen:?}"
    );
    let piped = of(&mut record(dir.path(), &["-d", "2", "-o", "a.folded"]));
    assert!(!piped.contains('\r') && !piped.contains(" s left"), "{piped:?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_quiet_run_says_nothing_but_losses() {
    if std::env::var_os("PROFILER_TEST_EMULATED").is_some() {
        profiler::stderr::say("skipped: an emulated machine does nothing else at the highest rate");
        return;
    }
    let dir = folder();
    let run = |arguments: &[&str]| {
        let output = run(dir.path(), &[&["-q", "-o", "a.jsonl"], arguments].concat());
        (output.status.code(), stderr(&output))
    };
    // With notices: a frequency that is too high, and a process that has ended.
    let (code, said) = run(&["-F", "1000000000", "--", "true"]);
    assert_eq!(code, Some(0), "{said}");
    let lost = read_json(&dir.path().join("a.jsonl")).1["lost"].clone();
    let is_ours = ["ring_full", "ring_contended", "scratch_busy", "agent_behind", "undelivered"];
    let is_lossless = is_ours.iter().all(|it| lost[it].as_u64().unwrap() == 0);
    assert_eq!(said.is_empty(), is_lossless, "{lost}: {said}");
    // The smallest ring there is, at the highest rate.
    let busy = "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done";
    let options = ["-F", "max", "-e", "cpu-clock", "--buffer-size", "4K", "--strict"];
    let (code, said) = run(&[&options[..], &["-a", "--", "sh", "-c", busy]].concat());
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("ring full") && said.contains("--strict was given"), "{said}");
    assert!(!said.contains("FUNCTION") && !said.contains("wrote "), "{said}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stream_on_a_terminal_names_what_else_there_is() {
    if !is_installed("script") {
        return;
    }
    let program = Program::start("chain.c");
    let path = profiler().get_program().to_str().unwrap().to_owned();
    let stream = format!("{path} -p {}", program.pid());
    let mut command = Command::new("script");
    command.args(["-qec", &stream, "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut run = Run::of(command.spawn().unwrap());
    while !run.line().contains("`profiler record` writes a profile") {}
    // With the process the run ends.
    drop(program);
    assert_eq!(run.end().code, Some(0));
    let output = Command::new(&path).args(["-d", "100ms"]).stdin(Stdio::null()).output().unwrap();
    assert!(!stderr(&output).contains("profiler record"), "{}", stderr(&output));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_file_is_the_old_one_or_the_new_one() {
    let dir = folder();
    let path = dir.path().join("a.jsonl");
    fs::write(&path, "old").unwrap();
    let mut command = record(dir.path(), &["-o", "a.jsonl", "-d", "180s"]);
    let mut run = Run::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    run.wait_until_it_samples();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_run_that_is_ended_before_it_begins_leaves_nothing_behind() {
    // So many that it takes a while to make them.
    let files: Vec<String> =
        (0..200).flat_map(|it| ["-o".into(), format!("{it}.folded")]).collect();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1] {
        let dir = folder();
        let mut command = record(dir.path(), &["-d", "100ms"]);
        command.args(&files).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = Run::of(command.spawn().unwrap());
        let status = format!("/proc/{}/status", run.child.id());
        let mut is_caught = false;
        wait_until("it writes files", || {
            let has_begun = !names(dir.path()).is_empty();
            if has_begun {
                let status = fs::read_to_string(&status).unwrap();
                let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
                let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
                is_caught = caught & 1 << (signal - 1) != 0;
            }
            has_begun
        });
        assert!(is_caught, "signal {signal}");
        let ended = run.end_by(signal);
        assert_eq!((ended.code, ended.signal), (Some(0), None), "{}", ended.stderr);
        let left = names(dir.path()).into_iter().find(|name| name.contains(".part"));
        assert_eq!(left, None, "{}", ended.stderr);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_reader_that_leaves_costs_no_file() {
    let dir = folder();
    let _load = Program::start("chain.c");
    let options = ["-f", "json", "-o", "-", "-o", "a.jsonl", "-d", "2", "-F", "499"];
    let mut command = record(dir.path(), &options);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("nobody reads standard output any more"), "{said}");
    assert!(said.contains("wrote a.jsonl"), "{said}");
    let (samples, summary) = read_json(&dir.path().join("a.jsonl"));
    assert_eq!(summary["delivered"], samples.len() as u64);
    // The run has gone on to its end.
    assert!(summary["duration_ns"].as_u64().unwrap() >= 2_000_000_000, "{summary}");
    if !is_installed("bash") {
        return;
    }
    // Beside no file it is as that of any other output: a quiet end.
    let script =
        r#""$0" record -f json -o - -d 180s | head -n 1 > /dev/null; exit ${PIPESTATUS[0]}"#;
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(profiler().get_program()).stdin(Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(0));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_file_that_can_not_be_written_costs_no_other() {
    let dir = folder();
    let _load = Program::start("chain.c");
    for (format, file) in [("folded", "a.folded"), ("json", "a.jsonl")] {
        let options = ["-f", format, "-o", "/dev/full", "-o", file, "-d", "1", "-F", "499"];
        let output = run(dir.path(), &options);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let full = "profiler: cannot write /dev/full: No space left on device";
        assert_eq!(said.matches(full).count(), 1, "{said}");
        assert!(said.contains(&format!("wrote {file}")) && !said.contains("wrote /dev"), "{said}");
        assert!(said.ends_with("profiler: not written: /dev/full\n"), "{said}");
    }
    let (samples, summary) = read_json(&dir.path().join("a.jsonl"));
    assert_eq!(summary["delivered"], samples.len() as u64);
    assert!(total(&fs::read_to_string(dir.path().join("a.folded")).unwrap()) > 0);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_was_recorded_is_shown_by_another_user_until_ctrl_c() {
    let dir = folder();
    let _load = Program::start("chain.c");
    let mut command = record(dir.path(), &["--open", "-o", "a.html", "-d", "1", "-F", "499"]);
    command.args(["--", "sh", "-c", "while :; do :; done & sleep 1; kill $!; exit 7"]);
    command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY").env_remove("SSH_CONNECTION");
    let run = Run::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut address = None;
    wait_until("the page is served", || {
        let said = run.said();
        let found = said.split_whitespace().find_map(|word| word.strip_prefix("http://"));
        address = found
            .and_then(|it| it.split_once('/'))
            .map(|(host, path)| (host.to_owned(), path.to_owned()));
        address.is_some()
    });
    let (host, path) = address.unwrap();
    let mut stream = TcpStream::connect(&host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let file = fs::read_to_string(dir.path().join("a.html")).unwrap();
    // Behind the time of day, which is asked for each.
    let samples = |page: &str| page.split_once("\"duration_ns\":").unwrap().1.to_owned();
    assert_eq!(samples(page), samples(&file));
    // Of its own processes, the one that serves is nobody's, and the agent is not in the kernel any more.
    assert!(!run.is_in_kernel());
    let children = format!("/proc/{0}/task/{0}/children", run.child.id());
    let children = fs::read_to_string(children).unwrap();
    let server = children.split_whitespace().next().unwrap();
    let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    for line in ["Uid:\t65534\t65534\t65534\t65534", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"]
    {
        assert!(status.contains(line), "{line}: {status}");
    }
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    assert!(TcpStream::connect(&host).is_err());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_command_in_a_pid_namespace_is_sampled_with_the_whole_machine_only() {
    let dir = folder();
    if !is_installed("unshare") {
        return;
    }
    let within = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]).arg(profiler().get_program());
        command.args(["record", "-o", "a.folded"]).args(arguments);
        command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap()
    };
    let output = within(&["--", "true"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("a command can't be told") && !said.contains("-p"), "{said}");
    let output = within(&["-a", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(names(dir.path()).contains("a.folded"));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_can_not_be_written_whole_is_not_there() {
    let dir = folder();
    fs::write(dir.path().join("a.jsonl"), "old").unwrap();
    let _load = Program::start("chain.c");
    // As on a full disk: no file may grow beyond 8 KiB.
    let script = r#"ulimit -f 16; exec "$0" record -o a.jsonl -d 180s -F 499"#;
    let path = profiler().get_program().to_owned();
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(path).current_dir(dir.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("a.jsonl") && said.contains("undelivered"), "{said}");
    assert_eq!(names(dir.path()), BTreeSet::from(["a.jsonl".to_owned()]));
    assert_eq!(fs::read_to_string(dir.path().join("a.jsonl")).unwrap(), "old");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_can_not_be_begun_is_refused_before_sampling() {
    let dir = folder();
    let refused = |arguments: &[&str], code: i32, part: &str| {
        let output = run(dir.path(), arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(part) && !said.contains("expected"), "{said}");
    };
    refused(&["-o", "a.png"], 2, ".folded");
    refused(&["-o", "-"], 2, "--format");
    refused(&["-o", "none/a.folded"], 1, "cannot write none/a.folded: No such file");
    refused(&["-o", "/proc/a.folded"], 1, "cannot write /proc/a.folded");
    refused(&["-p", "1", "--", "true"], 2, "cannot be used with");
    refused(&["-o", "-", "-f", "folded", "--", "true"], 2, "standard output, too");
    assert!(names(dir.path()).is_empty());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_run_that_ends_before_its_command_leaves_it_alone() {
    let dir = folder();
    let script = "echo $$ > pid; while [ ! -e done ]; do :; done; exit 3";
    let mut command =
        record(dir.path(), &["-d", "300ms", "-o", "a.folded", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the profile is written", || names(dir.path()).contains("a.folded"));
    let mut pid = String::new();
    wait_until("the command has begun", || {
        pid = fs::read_to_string(dir.path().join("pid")).unwrap_or_default();
        pid.ends_with('\n')
    });
    assert!(Path::new(&format!("/proc/{}", pid.trim())).exists());
    fs::write(dir.path().join("done"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}
