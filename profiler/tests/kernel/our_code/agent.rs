//! `agent`: windows of a run that goes on.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::support::{Ended, Program, Run, fixture, profiler, run, wait_until};

/// The windows of a folder, by name, the oldest first.
fn windows(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|it| it.into_string().unwrap()).collect();
    names.retain(|it| it.ends_with(".pb.gz") && !it.starts_with('.'));
    names.sort();
    names
}

/// An agent whose windows are as short as they can be.
fn agent(folder: &Path, arguments: &[&str]) -> Run {
    let child = profiler()
        .args(["agent", "--listen", "none", "--window", "1", "--folder"])
        .arg(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Run::of(child.unwrap())
}

/// The sum of the samples of a window.
fn samples(window: &Path) -> u64 {
    let output = run(&["convert", window.to_str().unwrap(), "-", "-f", "folded"]);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|it| it.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// What was said of the windows at the end: written, dropped, refused.
fn fates(ended: &Ended) -> [usize; 3] {
    let line = ended.stderr.lines().find(|it| it.starts_with("windows for "));
    let line = line.unwrap_or_else(|| panic!("{}", ended.stderr));
    let words: Vec<&str> = line.split([' ', ',']).collect();
    ["written", "dropped", "refused"].map(|fate| {
        let at = words.iter().position(|it| *it == fate).unwrap();
        words[at - 1].parse().unwrap()
    })
}

/// The capabilities of the thread that writes windows, permitted and in effect.
fn rights_of_writer(run: &Run) -> [u64; 2] {
    let tasks = fs::read_dir(format!("/proc/{}/task", run.child.id())).unwrap();
    let mut status = tasks.map(|it| fs::read_to_string(it.unwrap().path().join("status")).unwrap());
    let status = status.find(|it| it.starts_with("Name:\twindows\n")).unwrap();
    ["CapPrm:", "CapEff:"].map(|set| {
        let set = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        u64::from_str_radix(set.trim(), 16).unwrap()
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn each_sample_is_in_one_window_and_the_last_is_written_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("windows");
    let program = Program::start("chain.c");
    let run_of_agent = agent(&folder, &["-p", &program.pid(), "-F", "99"]);
    wait_until("there are windows", || folder.is_dir() && windows(&folder).len() >= 3);
    assert_eq!(rights_of_writer(&run_of_agent), [0, 0]);
    let ended = run_of_agent.end_by(libc::SIGTERM);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let written = windows(&folder);
    assert_eq!(fates(&ended), [written.len(), 0, 0], "{}", ended.stderr);
    assert!(written.len() > 3, "{written:?}");

    let sum: u64 = written.iter().map(|it| samples(&folder.join(it))).sum();
    let delivered = ended.stderr.split(" samples: ").nth(1).unwrap();
    let delivered: u64 = delivered.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(sum, delivered, "{}", ended.stderr);

    let folder = folder.to_str().unwrap();
    let report = run(&["report", "--from", "1h ago", folder]);
    let said = String::from_utf8_lossy(&report.stderr).into_owned();
    let of_all = format!("profiler: {} windows since ", written.len());
    assert!(said.starts_with(&of_all), "{said}");
    let table = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(table.contains("fixtures") && table.contains("main"), "{table}");
    // Nothing was sampled before.
    let report = run(&["report", "--to", "1h ago", folder]);
    assert_eq!(report.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&report.stderr).contains("there are windows from "));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn services_are_told_by_their_environment_or_by_their_program() {
    let dir = tempfile::tempdir().unwrap();
    let mut shop = Command::new(fixture("chain.c"));
    let shop = shop.env("OTEL_RESOURCE_ATTRIBUTES", "a=b,service.name=web%20shop").spawn();
    let shop = Program(shop.unwrap());
    let other = Program::start("chain.c");
    let pids = format!("{},{}", shop.pid(), other.pid());
    let run_of_agent = agent(dir.path(), &["-p", &pids, "-F", "99"]);
    wait_until("there are windows", || windows(dir.path()).len() >= 2);
    assert_eq!(run_of_agent.end_by(libc::SIGTERM).code, Some(0));

    let folder = dir.path().to_str().unwrap();
    let report = |arguments: &[&str]| {
        let output = run(&[&["report", "--from", "1h ago", folder], arguments].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let services = report(&["--by", "service"]);
    let rows = services.lines().skip_while(|it| !it.contains("SERVICE")).skip(1);
    let names: Vec<&str> = rows.filter_map(|it| it.rsplit("  ").next()).collect();
    // Where the tests run as a systemd service, what they start is part of that.
    assert_eq!(names.len(), 2, "{services}");
    assert!(names.contains(&"web shop"), "{services}");
    let of_shop = report(&["--service", "web shop", "--by", "thread"]);
    assert!(of_shop.contains(&format!("(tid {})", shop.pid())), "{of_shop}");
    assert!(!of_shop.contains(&format!("(tid {})", other.pid())), "{of_shop}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn settings_of_a_file_hold_and_what_is_wrong_with_them_is_told_before_anything_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("agent.toml");
    let run_with = |text: &str, arguments: &[&str]| {
        fs::write(&config, text).unwrap();
        let config = ["agent", "--config", config.to_str().unwrap()];
        run(&[&config, arguments].concat())
    };
    let folder = dir.path().join("windows");
    let text = format!(
        "folder = {folder:?}\nwindow = 3600\nlisten = \"none\"\nduration = \"200ms\"\nfrequency = 99\n"
    );
    let done = run_with(&text, &["--window", "1"]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(said.contains("cpu-clock at 99 Hz") || said.contains("cycles at 99 Hz"), "{said}");
    // The first window may be short.
    let written = format!("windows for {}: {} written", folder.display(), windows(&folder).len());
    assert!(said.contains(&written) && !written.contains(": 0 "), "{said}");

    let wrong = run_with(&format!("{text}\nkeep = 7\nfolders = 1\n"), &[]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(
        said.contains("agent.toml:8: no setting is called `folders`; did you mean folder"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_oldest_windows_make_room_for_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let run = agent(dir.path(), &["--keep-bytes", "1"]);
    let mut seen = Vec::new();
    wait_until("windows come and go", || {
        let there = windows(dir.path());
        // One that was just written, and the one before, which is about to be removed.
        assert!(there.len() <= 2, "{there:?}");
        seen.extend(there.into_iter().filter(|it| !seen.contains(it)).collect::<Vec<_>>());
        seen.len() >= 3
    });
    assert_eq!(run.end_by(libc::SIGINT).code, Some(0));
    assert_eq!(windows(dir.path()).len(), 1);
}

/// A file system of so little space that one file takes all of it.
struct Small(TempDir);

impl Small {
    /// `None` if nothing can be mounted here.
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"]).arg(dir.path());
        mount.status().is_ok_and(|it| it.success()).then_some(Self(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_full_disk_costs_its_windows_only_and_is_said() {
    let Some(small) = Small::mount() else {
        profiler::stderr::say("skipped: nothing can be mounted here");
        return;
    };
    let folder = small.0.path();
    let run = agent(folder, &[]);
    wait_until("there is a window", || !windows(folder).is_empty());
    let ballast = folder.join("ballast");
    let filled = fs::write(&ballast, vec![1; 1 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    wait_until("a window is refused", || run.has_said("No space left on device"));
    fs::remove_file(&ballast).unwrap();
    let before = windows(folder).len();
    wait_until("windows are written again", || windows(folder).len() > before);
    let ended = run.end_by(libc::SIGTERM);
    let [written, dropped, refused] = fates(&ended);
    assert_eq!((written, dropped), (windows(folder).len(), 0), "{}", ended.stderr);
    assert!(refused > 0, "{}", ended.stderr);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("windows are missing"), "{}", ended.stderr);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_folder_that_can_not_be_written_is_refused_before_anything_is_loaded() {
    // Somebody's own, which only root's rights over the files of others could write to.
    let own = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(own.path(), Some(65534), None).unwrap();
    for folder in ["/proc/windows", own.path().to_str().unwrap()] {
        let output = run(&["agent", "--folder", folder]);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with(&format!("profiler: cannot write to {folder}: ")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
