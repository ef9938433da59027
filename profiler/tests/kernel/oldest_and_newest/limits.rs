//! What the agent gives up, and what it does with the little that it is given.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use profiler::stderr;

use crate::support::{Program, Run, is_installed, profiler, profiler_path};

/// Has a command run with so many open files at most.
pub(crate) fn limit_files(command: &mut std::process::Command, files: u64) {
    use std::os::unix::process::CommandExt as _;
    let limit = libc::rlimit { rlim_cur: files, rlim_max: files };
    // SAFETY: between fork and exec there is one system call, of which `limit` is all it needs.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_running_agent_has_given_up_what_it_does_not_use() {
    let _load = Program::start("chain.c");
    let mut run = Run::start(&["-f", "json", "--no-realtime"]);
    run.sample(|sample| !sample["user"].as_array().unwrap().is_empty());
    let threads = fs::read_dir(format!("/proc/{}/task", run.child.id())).unwrap();
    let mut names = Vec::new();
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let fields: HashMap<&str, &str> =
            status.lines().filter_map(|line| line.split_once(":\t")).collect();
        // CAP_DAC_READ_SEARCH, IPC_LOCK, SYS_PTRACE, SYSLOG, PERFMON, BPF and CHECKPOINT_RESTORE; and
        // CAP_SYS_ADMIN where no event is opened without.
        let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
        let is_restricted = paranoid.trim().parse::<i64>().unwrap() > 2;
        let kept = if is_restricted { "000001c400284004" } else { "000001c400084004" };
        for (field, expected) in [
            ("CapEff", kept),
            ("CapPrm", kept),
            ("CapInh", "0000000000000000"),
            ("CapBnd", "0000000000000000"),
            ("CapAmb", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert_eq!(fields[field], expected, "{field} of {}", fields["Name"]);
        }
        names.push(fields["Name"].to_owned());
    }
    // Threads that began before the filter and after it.
    assert!(names.len() >= 3, "{names:?}");
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

/// Runs it to its end with so many open files at most.
fn limited(files: u64, arguments: &[&str]) -> Output {
    let mut command = profiler();
    limit_files(&mut command, files);
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// With how many open files it starts, as it says itself.
pub(crate) fn least_files() -> u64 {
    let refused = limited(4, &["-d", "100ms", "-f", "json"]);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    let (_, needed) = stderr.split_once("at least ").expect(&stderr);
    needed.split_once(' ').unwrap().0.parse().unwrap()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn too_few_open_files_are_said_with_how_many_are_needed() {
    let sample = ["-d", "100ms", "-f", "json"];
    // One that is linked dynamically does not come to its own code with three: the loader opens libraries.
    let refused = limited(3, &sample);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(stderr.contains("shared libraries") || stderr.contains("ulimit -n"), "{stderr}");
    let needed = least_files();
    assert!(needed > 8, "{needed}");
    for files in 4..needed {
        let output = limited(files, &sample);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{files}: {stderr}");
        let why = format!("open files are limited to {files}: at least {needed} are needed here");
        let fix = format!("ulimit -n {needed}");
        assert!(stderr.contains(&why) && stderr.contains(&fix), "{files}: {stderr}");

        let output = limited(files, &["doctor"]);
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{files}: {stdout}");
        assert!(stdout.contains(&fix), "{files}: {stdout}");
    }
    let output = limited(needed, &sample);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("\"summary\""));
    let output = limited(needed, &["doctor"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs the profiler where this was done to the file systems before; `None` where that can't be done.
fn run_after(script: &str, arguments: &[&str]) -> Option<Output> {
    if !is_installed("unshare") {
        return None;
    }
    let script = format!("{script} && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(profiler_path()).args(arguments);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("mount:") {
        stderr::say(&format!("skipped: {stderr}"));
        return None;
    }
    Some(output)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_doctor_and_the_run_agree_on_what_is_not_mounted() {
    for (script, advice) in [
        ("umount -l /proc", "mount -t proc proc /proc"),
        ("mount -t tmpfs none /proc", "mount -t proc proc /proc"),
        ("mount -t tmpfs none /sys", "mount -t sysfs sysfs /sys"),
        ("mount -t tmpfs none /sys && umount -l /proc", "mount -t sysfs sysfs /sys"),
    ] {
        let Some(doctor) = run_after(script, &["doctor"]) else { return };
        let table = String::from_utf8(doctor.stdout).unwrap();
        assert!(table.contains(advice), "{script}: {table}");
        let run = run_after(script, &["-d", "200ms", "-f", "json"]).unwrap();
        let stderr = String::from_utf8(run.stderr).unwrap();
        assert!(stderr.contains(advice), "{script}: {stderr}");
        assert_eq!(doctor.status.code(), run.status.code(), "{script}: {table}{stderr}");
        // Without /proc it samples; without /sys nobody says which CPUs there are.
        let is_sys = script.contains("/sys");
        assert_eq!(run.status.code(), Some(i32::from(is_sys)), "{script}: {stderr}");
        let delivers = String::from_utf8(run.stdout).unwrap().contains("\"summary\"");
        assert_eq!(delivers, !is_sys, "{script}: {stderr}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn cap_sys_admin_alone_samples_and_is_said_to_leave_names_out() {
    if !is_installed("setpriv") {
        return;
    }
    let as_admin = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all,+sys_admin", "--inh-caps=-all"]);
        command.arg(profiler_path()).args(arguments).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let doctor = as_admin(&["doctor"]).output().unwrap();
    let table = String::from_utf8(doctor.stdout).unwrap();
    assert_eq!(doctor.status.code(), Some(0), "{table}");
    let row = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap();
    for missing in ["warn", "CAP_SYSLOG", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"] {
        assert!(row("privileges").contains(missing), "{table}");
    }
    assert!(row("hardening").contains("keeps CAP_SYS_ADMIN;"), "{table}");

    let child = as_admin(&["-d", "60s", "-f", "json", "--no-realtime"]).spawn().unwrap();
    let mut run = Run::of(child);
    run.sample(|_| true);
    let status = fs::read_to_string(format!("/proc/{}/status", run.child.id())).unwrap();
    assert!(status.contains("CapEff:\t0000000000200000\n"), "{status}");
    assert_eq!(run.end_by(libc::SIGINT).code, Some(0));
}

/// A memory cgroup of its own; removed when dropped.
pub(crate) struct MemoryCgroup {
    folder: PathBuf,
    limit: &'static str,
}

impl MemoryCgroup {
    /// `None`, and the reason printed, where none can be made.
    pub(crate) fn new() -> Option<Self> {
        let name = format!("profiler-test-{}", std::process::id());
        for (mount, limit) in
            [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")]
        {
            let cgroup = Self { folder: Path::new(mount).join(&name), limit };
            if fs::create_dir(&cgroup.folder).is_ok() && cgroup.folder.join(limit).exists() {
                return Some(cgroup);
            }
        }
        stderr::say("skipped: no cgroup with the memory controller can be made");
        None
    }

    pub(crate) fn set_limit(&self, bytes: u64) {
        fs::write(self.folder.join(self.limit), bytes.to_string()).unwrap();
    }

    /// The profiler, to be run in it.
    pub(crate) fn profiler(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let procs = self.folder.join("cgroup.procs");
        let script = format!("echo $$ > {} && exec \"$@\"", procs.display());
        command.args(["-c", &script, "sh"]).arg(profiler_path()).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // A folder that was made where there is no cgroup file system is empty, too.
        let mut tries = 100;
        while fs::remove_dir(&self.folder).is_err() && self.folder.exists() && tries > 0 {
            tries -= 1;
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_small_memory_cgroup_is_kept_within_or_refused() {
    let Some(cgroup) = MemoryCgroup::new() else { return };
    let program = Program::start("chain.c");
    let arguments = ["-d", "60s", "-f", "json", "-p", &program.pid()];
    cgroup.set_limit(64 << 20);
    let mut run = Run::of(cgroup.profiler(&arguments).spawn().unwrap());
    let named = |sample: &serde_json::Value| {
        let frames = sample["user"].as_array().unwrap().iter();
        frames.filter(|frame| frame["symbol"].is_string()).count() > 0
    };
    for _ in 0..50 {
        run.sample(named);
    }
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("memory is limited to 64M"), "{}", ended.stderr);

    // Far too little is not tried: the kernel would kill it without a word.
    cgroup.set_limit(24 << 20);
    let refused = cgroup.profiler(&arguments).output().unwrap();
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("is limited to 24M: at least 4"), "{stderr}");
    assert!(stderr.contains("memory.max"), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_small_address_space_is_said_with_how_much_is_needed() {
    use std::os::unix::process::CommandExt as _;
    let mut command = profiler();
    let bytes = 200 << 20;
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: between fork and exec there is one system call, of which `limit` is all it needs.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let output = command.args(["-d", "1"]).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("address space is limited to 200M: at least 256M"), "{stderr}");
    assert!(stderr.contains("ulimit -v"), "{stderr}");
}
