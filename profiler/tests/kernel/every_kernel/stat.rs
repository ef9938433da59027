//! Counts are those of what was asked for, and exact.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use super::filters::Cgroup;
use crate::{
    support::{Program, fixture, profiler, profiler_path, run, wait_until},
    tracefs::Tracefs,
};

/// What the fixture asks the kernel for, three times each time, once of them with 7.
pub(crate) const ASKS: &str = "syscalls:sys_enter_getpgid";

/// Runs `stat` with JSON on standard output: the events, the summary, and all of it.
pub(super) fn stat(arguments: &[&str]) -> (Vec<Value>, Value, Output) {
    let output = run(&[&["stat", "--json", "-o", "-"], arguments].concat());
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    let mut objects: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    let summary = objects.pop().unwrap_or_else(|| panic!("{arguments:?}: {said}"));
    assert_eq!(summary["type"], "summary");
    (objects, summary, output)
}

/// The path of the fixture that does something so often.
pub(crate) fn counted() -> String {
    fixture("counted.c").into_os_string().into_string().unwrap()
}

/// The counts of a command in which the fixture does this.
pub(super) fn counts_of(events: &str, options: &[&str], fixture: &[&str]) -> Vec<Value> {
    let counted = counted();
    let command = ["--", &*counted];
    let (events, _, output) = stat(&[&["-e", events], options, &command, fixture].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    events
}

pub(crate) fn count(event: &Value) -> u64 {
    event["count"].as_u64().unwrap_or_else(|| panic!("{event}"))
}

/// The fixture, ready to do something when it is told.
pub(crate) struct Waiting(pub(crate) Program);

impl Waiting {
    pub(crate) fn new(what: &[&str]) -> Self {
        let mut command = Command::new(counted());
        command.args(what).arg("wait").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut waiting = Self(Program(command.spawn().unwrap()));
        waiting.wait();
        waiting
    }

    fn wait(&mut self) {
        self.0.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }

    /// Has it done, to the end.
    pub(crate) fn go(&mut self) {
        self.0.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        self.wait();
    }
}

/// Counts what something does that is begun when counting has, and ends after it by a signal; the sum of the
/// intervals.
fn counted_while(arguments: &[&str], act: impl FnOnce()) -> u64 {
    let mut command = profiler();
    command.args(["stat", "--json", "-I", "50"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut counting = Program(command.spawn().unwrap());
    let mut lines = BufReader::new(counting.0.stdout.take().unwrap()).lines();
    let mut objects: Vec<Value> = Vec::new();
    let mut line = || lines.next().map(|it| serde_json::from_str::<Value>(&it.unwrap()).unwrap());
    // The first interval has ended, so counting has begun.
    objects.extend(Some(line().unwrap()));
    act();
    let pid = i32::try_from(counting.0.id()).unwrap();
    // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    objects.extend(std::iter::from_fn(line));
    assert_eq!(counting.0.wait().unwrap().code(), Some(0));
    assert_eq!(objects.pop().unwrap()["type"], "summary");
    let times: Vec<f64> = objects.iter().map(|it| it["time_s"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && objects.iter().all(|it| it["state"] == "counted"), "{objects:?}");
    objects.iter().map(count).sum()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_command_is_counted_with_its_children_and_nobody_else() {
    let Some(_tracefs) = Tracefs::with(ASKS) else { return };
    let other = Waiting::new(&["asks", "1", "0"]);
    assert_eq!(count(&counts_of(ASKS, &[], &["asks", "100", "0"])[0]), 300);
    assert_eq!(count(&counts_of(ASKS, &[], &["asks", "100", "3"])[0]), 1200);
    drop(other);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn only_hits_as_the_filter_says_count() {
    let Some(_tracefs) = Tracefs::with(ASKS) else { return };
    let of = |filter| count(&counts_of(ASKS, &["--filter", filter], &["asks", "100", "1"])[0]);
    assert_eq!((of("pid == 7"), of("pid != 7"), of("pid == 8")), (200, 400, 0));
    let refused = run(&["stat", "-e", ASKS, "--filter", "pud == 7", "--", "true"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(said.contains("--filter pud == 7: the kernel refuses it for sys"), "{said}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn each_write_to_a_place_counts() {
    let place = Command::new(counted()).output().unwrap();
    let place = String::from_utf8(place.stdout).unwrap();
    // The kernel writes there, too: it clears what follows the data of the file.
    let event = format!("mem:{}/8:w:u", place.trim());
    assert_eq!(count(&counts_of(&event, &[], &["writes", "1000", "0"])[0]), 1000);
    assert_eq!(count(&counts_of(&event, &[], &["writes", "1000", "2"])[0]), 3000);
    assert_eq!(count(&counts_of(&event, &[], &["spins", "1", "0"])[0]), 0);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_page_faults_of_a_process_are_exact_in_the_sum_of_intervals() {
    let mut waiting = Waiting::new(&["faults", "500", "0"]);
    let pid = waiting.0.pid();
    let arguments = ["-e", "page-faults", "-p", &pid];
    assert_eq!(counted_while(&arguments, || waiting.go()), 500);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_is_counted_with_what_it_starts() {
    let Some(_tracefs) = Tracefs::with(ASKS) else { return };
    let mut waiting = Waiting::new(&["asks", "10", "4"]);
    let pid = waiting.0.pid();
    assert_eq!(counted_while(&["-e", ASKS, "-p", &pid], || waiting.go()), 150);
    let mut waiting = Waiting::new(&["asks", "10", "0"]);
    let tid = waiting.0.pid();
    assert_eq!(counted_while(&["-e", ASKS, "-t", &tid], || waiting.go()), 30);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn counting_ends_with_the_process() {
    let waiting = Waiting::new(&["spins", "1", "0"]);
    let pid = waiting.0.pid();
    let mut command = profiler();
    command.args(["stat", "-I", "50", "-e", "task-clock", "-p", &pid]).stdout(Stdio::piped());
    let mut counting = Program(command.spawn().unwrap());
    let mut lines = BufReader::new(counting.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), format!("Counts of process {pid}:"));
    drop(waiting);
    assert!(lines.last().unwrap().unwrap().ends_with(" s      elapsed"));
    assert_eq!(counting.0.wait().unwrap().code(), Some(0));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_cgroup_and_nobody_else_is_counted() {
    let Some(_tracefs) = Tracefs::with(ASKS) else { return };
    let Some(cgroup) = Cgroup::new() else { return };
    let (mut inside, mut outside) =
        (Waiting::new(&["asks", "10", "1"]), Waiting::new(&["asks", "10", "0"]));
    cgroup.take(&inside.0);
    let arguments = ["-e", ASKS, "--cgroup", cgroup.folder.to_str().unwrap()];
    let counts = counted_while(&arguments, || {
        outside.go();
        inside.go();
    });
    assert_eq!(counts, 60);
    drop(inside);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn all_cpus_are_counted_while_a_command_runs() {
    let Some(_tracefs) = Tracefs::with(ASKS) else { return };
    let counts = counts_of(ASKS, &["-a", "--filter", "pid == 7"], &["asks", "100", "0"]);
    assert_eq!(count(&counts[0]), 100);
    // A clock of a CPU goes on, whatever runs there.
    let (events, summary, _) = stat(&["-C", "0", "-e", "cpu-clock", "-d", "300ms"]);
    let (counted, elapsed) =
        (events[0]["value"].as_f64().unwrap(), summary["elapsed_s"].as_f64().unwrap());
    // It is enabled a moment before, and disabled a moment after; clocks differ a little in their pace.
    assert!(counted > 290.0 && events[0]["unit"] == "msec", "{events:?}");
    assert!(counted < elapsed * 1000.0 + 1000.0, "{events:?} {summary}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_group_is_read_at_once() {
    let events = "task-clock,{page-faults,minor-faults,major-faults}";
    let counts = counts_of(events, &[], &["faults", "1000", "2"]);
    let names: Vec<&str> = counts.iter().map(|it| it["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["task-clock", "page-faults", "minor-faults", "major-faults"]);
    let [all, minor, major] = [1, 2, 3].map(|at| count(&counts[at]));
    assert!(all >= 3000 && all == minor + major, "{counts:?}");
    for key in ["enabled_ns", "running_ns"] {
        assert_eq!(counts[1][key], counts[3][key], "{counts:?}");
    }
    assert!(counts[0]["ratio_unit"] == "CPUs used" && counts[0]["unit"] == "msec", "{counts:?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn repeated_runs_have_a_mean_and_its_deviation() {
    let Some(_tracefs) = Tracefs::with(ASKS) else { return };
    let counted = counted();
    let events = format!("{ASKS},task-clock");
    let arguments = ["-r", "3", "-e", &events, "--", &counted, "asks", "10", "0"];
    let (events, summary, output) = stat(&arguments);
    assert_eq!((output.status.code(), &summary["runs"]), (Some(0), &3.into()));
    assert_eq!((count(&events[0]), &events[0]["deviation_percent"]), (30, &0.0.into()));
    let deviation = events[1]["deviation_percent"].as_f64().unwrap();
    assert!(deviation > 0.0 && deviation < 100.0, "{events:?}");
    for key in ["elapsed_s", "user_s", "system_s", "elapsed_deviation_percent"] {
        assert!(summary[key].as_f64().unwrap() >= 0.0, "{summary}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn separated_fields_are_those_of_perf() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("counts.csv");
    let path = file.to_str().unwrap();
    let output =
        run(&["stat", "-x;", "-e", "page-faults,task-clock,dummy", "-o", path, "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = fs::read_to_string(&file).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(';').collect()).collect();
    let [faults, clock, dummy] = rows.as_slice() else { panic!("{text}") };
    assert!([faults, clock, dummy].iter().all(|row| row.len() == 7), "{text}");
    assert!(faults[0].parse::<u64>().is_ok_and(|it| it > 0) && faults[1].is_empty(), "{text}");
    assert_eq!((faults[2], clock[1], clock[2]), ("page-faults", "msec", "task-clock"));
    // The same time, once in milliseconds and once in nanoseconds.
    let clock_ns = clock[0].parse::<f64>().unwrap() * 1e6;
    assert!((clock_ns - clock[3].parse::<f64>().unwrap()).abs() < clock_ns / 2.0, "{text}");
    assert_eq!((clock[4], clock[6]), ("100.00", "CPUs used"));
    assert!(faults[5].parse::<f64>().unwrap() > 0.0 && faults[6].ends_with("/sec"), "{text}");
    assert_eq!((dummy[0], dummy[2]), ("0", "dummy"));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_exit_code_is_that_of_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    fs::write(&text, "").unwrap();
    let text = text.to_str().unwrap();
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["/nowhere/none"], 127),
        (&[text], 126),
    ] {
        let output = run(&[&["stat", "-e", "faults", "--"], command].concat());
        assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
    }
    // Of several runs, the first that fails says what the exit code is.
    let output = run(&["stat", "-r", "2", "-e", "faults", "--", "sh", "-c", "exit 4"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    // What is there, but needs what is not, was never executed.
    fs::write(text, "#!/nowhere/none\n").unwrap();
    fs::set_permissions(text, fs::Permissions::from_mode(0o755)).unwrap();
    let (events, _, output) = stat(&["-e", "faults", "--", text]);
    assert_eq!((output.status.code(), &events[0]["state"]), (Some(127), &"not_counted".into()));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_signal_ends_the_command_and_counts_are_printed() {
    let mut command = profiler();
    command.args(["stat", "-e", "task-clock", "--", &counted(), "spins", "1", "0", "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut counting = Program(command.spawn().unwrap());
    // It runs.
    counting.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let pid = i32::try_from(counting.0.id()).unwrap();
    // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    let mut said = String::new();
    counting.0.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(counting.0.wait().unwrap().code(), Some(143), "{said}");
    assert!(said.contains(" msec   task-clock ") && said.contains(" s      user\n"), "{said}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn counts_are_there_while_a_command_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("counts");
    let mut command = profiler();
    command.args(["stat", "--json", "-d", "100ms", "-e", "task-clock", "-o"]).arg(&file);
    command.args(["--", &counted(), "spins", "1", "0", "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut counting = Program(command.spawn().unwrap());
    wait_until("the counts are written", || file.exists());
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(r#""event":"task-clock""#) && text.contains("summary"), "{text}");
    // It has what it waits for, and then ends.
    assert!(counting.0.try_wait().unwrap().is_none());
    counting.0.stdin.take().unwrap().write_all(b"x").unwrap();
    assert_eq!(counting.0.wait().unwrap().code(), Some(0));
}

/// A kernel setting, which is as it was when this is dropped.
pub(super) struct Setting {
    path: &'static str,
    was: String,
}

impl Setting {
    pub(super) fn set(path: &'static str, to: &str) -> Self {
        let was = fs::read_to_string(path).unwrap();
        if was.trim() != to {
            fs::write(path, to).unwrap();
        }
        Self { path, was }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if fs::read_to_string(self.path).unwrap() != self.was {
            let _ = fs::write(self.path, &self.was);
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_ordinary_user_counts_a_command_in_user_mode() {
    let _level = Setting::set("/proc/sys/kernel/perf_event_paranoid", "2");
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("profiler");
    fs::copy(profiler_path(), &program).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("stat").args(arguments).uid(65534).gid(65534).current_dir("/");
        command.stdin(Stdio::null()).output().unwrap()
    };
    let output = as_nobody(&["--json", "-e", "page-faults,{cs,faults}", "--", "true"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let events: Vec<Value> = said.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let names: Vec<&str> = events.iter().filter_map(|it| it["event"].as_str()).collect();
    assert_eq!(names, ["page-faults:u", "context-switches:u", "page-faults:u"]);
    assert!(count(&events[0]) > 0, "{said}");
    // What is not their own they are told to count as root.
    for arguments in [&["-a", "-d", "1"][..], &["-e", "faults:k", "--", "true"]] {
        let refused = as_nobody(arguments);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("in user mode, as in -e cycles:u"), "{said}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_can_not_be_counted_is_refused_with_the_reason() {
    let across = &["-e", "mem:0x1001/8:w", "--", "true"][..];
    // Older kernels on aarch64 take the words that lie below it.
    let across = cfg!(target_arch = "x86_64").then_some((across, 1, "a multiple of the length"));
    let refused = [
        (&["-e", "faults/period=7/", "--", "true"][..], 2, "is only counted"),
        (&["-e", "falts", "--", "true"], 2, "did you mean"),
        (&["-p", "4194305"], 2, "no process"),
        (&["-C", "60000"], 2, "60000 is not online"),
        (&["--cgroup", "/no/such"], 2, "--cgroup /no/such"),
        (&["-e", "faults", "--filter", "a == 1", "--", "true"], 2, "tracepoints, of which none"),
        (&["-x", "", "--", "true"], 2, "-x"),
        (&["-o", "/nowhere/out", "--", "true"], 1, "/nowhere/out"),
    ];
    for (arguments, code, part) in refused.into_iter().chain(across) {
        let output = run(&[&["stat"], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part) && output.stdout.is_empty(), "{arguments:?}: {said}");
    }
}
