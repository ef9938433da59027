//! What can't be meant or done is said in a line, with its exit code.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::Command,
};

use serde_json::Value;

use crate::support::{left_in_kernel, run};

#[test]
#[ignore = "needs root: cargo xtask test"]
fn one_line_and_exit_code_2() {
    for (arguments, part) in [
        (&["-F", "0"][..], "must be at least 1"),
        (&["-F", "fast"], "frequency"),
        (&["-F", "99", "-c", "1000"], "period"),
        (&["-C", ""], "CPU"),
        (&["-C", "1-"], "CPU"),
        (&["-C", "60000"], "60000 is not online"),
        (&["-p", "4194305"], "no process"),
        (&["-p", "nobody-is-called-that"], "no process is called that"),
        (&["-e", "cycels"], "did you mean cycles"),
        (&["-d", "soon"], "time"),
        (&["-o", "/nowhere/out"], "/nowhere/out"),
        (&["--buffer-size", "9G"], "2G"),
        (&["--metadata"], "-f json"),
        (&["--debuginfod"], "DEBUGINFOD_URLS"),
    ] {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("profiler: ") && stderr.contains(part), "{stderr}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(left_in_kernel(), [""; 0]);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_unprivileged_user_learns_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("profiler");
    fs::copy(crate::support::profiler_path(), &program).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).uid(65534).gid(65534).current_dir("/").output().unwrap()
    };
    let output = as_nobody(&["-d", "1"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in
        ["CAP_BPF", "CAP_PERFMON", "sudo profiler", "setcap cap_bpf,cap_perfmon", "cap_ipc_lock"]
    {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }

    let output = as_nobody(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("FAIL"));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_doctor_agrees_with_the_run() {
    let output = run(&["doctor", "--json"]);
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{diagnosis:#}");
    assert_eq!(diagnosis["can_run"], true);
    let pmu = diagnosis["checks"].as_array().unwrap().iter().find(|it| it["name"] == "PMU");
    let has_pmu = pmu.unwrap()["verdict"] == "ok";

    let by_default = run(&["-d", "1", "-f", "json"]);
    let stderr = String::from_utf8(by_default.stderr).unwrap();
    assert_eq!(stderr.contains("sampling cpu-clock in place of cycles"), !has_pmu, "{stderr}");
    let summary: Value =
        serde_json::from_slice(by_default.stdout.split(|b| *b == b'\n').rev().nth(1).unwrap())
            .unwrap();
    let event = if has_pmu { "cycles" } else { "cpu-clock" };
    assert_eq!(summary["summary"]["event"], event);

    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "old").unwrap();
    let by_name = run(&["-d", "1", "-e", "cycles", "-o", file.path().to_str().unwrap()]);
    // What cannot start leaves the file as it was.
    assert_eq!(fs::read(file.path()).unwrap() == b"old", !has_pmu);
    let stderr = String::from_utf8(by_name.stderr).unwrap();
    assert_eq!(by_name.status.code(), Some(i32::from(!has_pmu)), "{stderr}");
    assert_eq!(stderr.contains("no PMU"), !has_pmu, "{stderr}");

    // A period counts cycles, and is not taken for one of nanoseconds.
    let period = run(&["-d", "1", "-c", "10000000"]);
    assert_eq!(period.status.code(), Some(i32::from(!has_pmu)));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_rate_above_the_limit_is_clamped_with_a_notice() {
    let limit = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").unwrap();
    let limit: u64 = limit.trim().parse().unwrap();
    // An event that is rare, since that many samples a second would keep an emulated CPU from all else.
    let rate = (limit + 1).to_string();
    let few = ["-e", "page-faults", "-d", "500ms", "-f", "json", "-C", "0"];
    let output = run(&[&["-F", &rate][..], &few].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    let fix = format!("sudo sysctl kernel.perf_event_max_sample_rate={}", limit + 1);
    assert!(stderr.contains(&fix), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let summary: Value = serde_json::from_str(stdout.lines().last().expect(&stderr)).unwrap();
    assert_eq!(summary["summary"]["frequency"], limit);
}
