//! A run ends cleanly, however it ends.

use std::{
    io::Read as _,
    process::{Command, Stdio},
};

use crate::support::{Program, Run, left_in_kernel, profiler, profiler_path, wait_until};

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_signal_ends_it_with_the_ledger_and_nothing_left() {
    let _load = Program::start("chain.c");
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGXCPU] {
        let mut run = Run::start(&["-f", "json"]);
        run.sample(|_| true);
        assert!(run.is_in_kernel());
        let ended = run.end_by(signal);
        assert_eq!((ended.code, ended.signal), (Some(0), None), "{}", ended.stderr);
        assert!(ended.stdout.lines().last().unwrap().contains("\"summary\""), "{}", ended.stdout);
        assert!(ended.stderr.contains("total"), "{}", ended.stderr);
        wait_until("the kernel has freed all of it", || left_in_kernel().is_empty());
    }
}

/// Expected, delivered, filtered and lost, of the line `total` in each ledger.
fn totals(stderr: &str) -> Vec<Vec<u64>> {
    let totals = stderr.lines().filter_map(|line| line.trim_start().strip_prefix("total "));
    totals.map(|it| it.split_whitespace().map(|count| count.parse().unwrap()).collect()).collect()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_run_reports_and_goes_on() {
    let _load = Program::start("chain.c");
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        let mut run = Run::start(&["-f", "json", "-F", "499"]);
        run.sample(|_| true);
        run.signal(signal);
        run.wait_for_notice(", so far\n");
        // It samples what begins after the report.
        let later = Program::start("chain.c");
        let pid: u64 = later.pid().parse().unwrap();
        run.sample(|sample| sample["pid"] == pid);
        let ended = run.end_by(libc::SIGINT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let totals = totals(&ended.stderr);
        let [so_far, end] = totals.as_slice() else { panic!("{}", ended.stderr) };
        let waiting = ended
            .stderr
            .lines()
            .find_map(|it| it.strip_suffix(" samples are waiting to be named and written"));
        let waiting = waiting.map_or(0, |it| it.parse::<u64>().unwrap());
        assert_eq!(so_far[0], so_far[1..].iter().sum::<u64>() + waiting, "{}", ended.stderr);
        assert!((1..end[0]).contains(&so_far[0]), "{}", ended.stderr);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_output_that_nobody_reads_is_told() {
    let _load = [Program::start("chain.c"), Program::start("syscalls.c")];
    let run = Run::start(&["-F", "999"]);
    wait_until("it says that nobody reads", || {
        run.has_said("standard output has accepted nothing for ")
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn nothing_is_left_after_sigkill() {
    let _load = Program::start("chain.c");
    let mut run = Run::start(&["-f", "json"]);
    run.sample(|_| true);
    let ended = run.end_by(libc::SIGKILL);
    assert_eq!(ended.signal, Some(libc::SIGKILL));
    wait_until("the kernel has freed all of it", || left_in_kernel().is_empty());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_closed_pipe_is_a_quiet_end() {
    let _load = Program::start("chain.c");
    let mut child = profiler()
        .args(["-d", "60", "-F", "499"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("total") && !stderr.contains("pipe"), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_closed_pipe_is_a_loss_under_strict() {
    let _load = Program::start("chain.c");
    let mut child = profiler()
        .args(["-d", "60", "-F", "499", "--strict"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("undelivered") && stderr.contains("--strict"), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_reader_that_does_not_read_is_waited_for_a_second_only() {
    let _load = [Program::start("chain.c"), Program::start("syscalls.c")];
    for (strict, code) in [(&[][..], 1), (&["--strict"], 3)] {
        // Dropped by the wait, but after it.
        let (nobody, stdout) = std::io::pipe().unwrap();
        let child = profiler()
            .args(["-d", "2", "-F", "999"])
            .args(strict)
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.wait_with_output().unwrap();
        drop(nobody);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains("undelivered") && stderr.contains("nobody reads it"), "{stderr}");
    }
    wait_until("the kernel has freed all of it", || left_in_kernel().is_empty());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_full_disk_is_an_error_with_the_ledger() {
    let _load = Program::start("chain.c");
    let output = crate::support::run(&["-d", "60", "-F", "499", "-o", "/dev/full"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("total") && stderr.contains("cannot write /dev/full"), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_limit_of_file_sizes_is_an_error_with_the_ledger() {
    let _load = Program::start("chain.c");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("samples");
    let script = "ulimit -f 8; exec \"$0\" -d 60 -F 499 -o \"$1\"";
    let output = Command::new("sh").args(["-c", script]).arg(profiler_path()).arg(&file).output();
    let output = output.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("total") && stderr.contains("samples: File too large"), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn one_signal_ends_a_run_whose_output_nobody_reads() {
    let _load = [Program::start("chain.c"), Program::start("syscalls.c")];
    let mut run = Run::start(&["-F", "999"]);
    wait_until("it says that nobody reads", || {
        run.has_said("standard output has accepted nothing for ")
    });
    run.signal(libc::SIGINT);
    // Not by `end`, which reads.
    assert_eq!(run.child.wait().unwrap().code(), Some(1));
    wait_until("all that it has said is there", || run.has_said("nobody reads it"));
    assert!(run.has_said("undelivered "));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_second_signal_does_not_wait_for_a_stuck_reader() {
    let _load = [Program::start("chain.c"), Program::start("syscalls.c")];
    let mut run = Run::start(&["-F", "999"]);
    // Nobody reads, so the pipe fills up and the writer stays in one system call.
    let writing = format!("{} ", libc::SYS_write);
    let blocked_write = || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", run.child.id())).unwrap();
        let calls = threads.flatten().map(|it| std::fs::read_to_string(it.path().join("syscall")));
        calls.flatten().find(|call| call.starts_with(&writing))
    };
    let seen = std::cell::RefCell::new((None, 0));
    wait_until("a thread stays in write", || {
        let (before, times) = seen.replace((None, 0));
        let now = blocked_write();
        let times = if now.is_some() && now == before { times + 1 } else { 0 };
        seen.replace((now, times));
        times >= 20
    });
    // One signal would do, after a second.
    run.signal(libc::SIGINT);
    // Two signals that come together count as one, so they are sent until it ends.
    let status = loop {
        if let Some(status) = run.child.try_wait().unwrap() {
            break status;
        }
        run.signal(libc::SIGINT);
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    // On a busy machine the second may have passed before the first signal is heeded.
    let is_given_up = run.stderr().contains("nobody reads it");
    assert_eq!(status.code(), Some(if is_given_up { 1 } else { 130 }));
    wait_until("the kernel has freed all of it", || left_in_kernel().is_empty());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_standard_error_that_is_full_stops_nothing() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = profiler().args(["-d", "1", "-f", "json"]).stderr(full).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).unwrap().contains("\"summary\""));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_ignored_hangup_stays_ignored() {
    let _load = Program::start("chain.c");
    // The shell ignores the signal and becomes the profiler, as nohup does.
    let script =
        format!("trap '' HUP; exec {} -d 60 -f json", crate::support::profiler_path().display());
    let child = Command::new("sh")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut run = Run::of(child);
    run.sample(|_| true);
    run.signal(libc::SIGHUP);
    // It still samples what begins after the signal.
    let later = Program::start("chain.c");
    let pid: u64 = later.pid().parse().unwrap();
    run.sample(|sample| sample["pid"] == pid);
    assert_eq!(run.end_by(libc::SIGINT).code, Some(0));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_file_that_shrinks_while_it_is_read_does_not_end_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    std::fs::copy(crate::support::fixture("chain.c"), &copy).unwrap();
    let program = Program(Command::new(&copy).spawn().unwrap());
    program.wait_for_ticks(1);
    let mut run = Run::start(&["-f", "json"]);
    let pid: u64 = program.pid().parse().unwrap();
    run.sample(|sample| sample["pid"] == pid);
    // A running program can't be opened for writing, but the profiler holds the file after it.
    drop(program);
    wait_until("the file can be written to", || {
        std::fs::OpenOptions::new().write(true).open(&copy).and_then(|it| it.set_len(0)).is_ok()
    });
    let again = Program::start("chain.c");
    let pid: u64 = again.pid().parse().unwrap();
    run.sample(|sample| sample["pid"] == pid);
    assert_eq!(run.end_by(libc::SIGINT).code, Some(0));
}
