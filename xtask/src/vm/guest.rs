//! One run of an emulated machine, and what it has said.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::harness::Harness;

/// What a machine has said until it was off.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What its tests have said.
    pub(crate) harness: Harness,
    /// The doctor's table.
    pub(crate) doctor: String,
    /// The same as JSON.
    pub(crate) doctor_json: String,
    /// What loading the eBPF program took: `N instructions verified, loaded in T ms`.
    pub(crate) program: Option<String>,
    /// The summary of a run under full load.
    pub(crate) summary: Value,
    /// All that was said, line by line.
    pub(crate) serial: Vec<String>,
    /// Whether it came to its end.
    pub(crate) has_ended: bool,
    /// What went wrong as a whole.
    pub(crate) failure: Option<String>,
    /// From power-on.
    pub(crate) until_boot: Duration,
    pub(crate) until_end: Duration,
}

/// How long a machine may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Without a test that begins or ends, or a step after the tests. What the kernel says of its own doesn't count.
    pub(crate) stall: Duration,
    /// From power-on to its end.
    pub(crate) all: Duration,
}

/// Boots the machine and listens until it is off, or has come to a limit. What it says is also written to `log`.
pub(crate) fn run(qemu: &mut Command, log: &Path, limits: Limits) -> Result<Outcome> {
    let mut log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let start = Instant::now();
    let mut child = Running(
        qemu.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", qemu.get_program().display()))?,
    );
    let mut console = child.0.stdout.take().context("QEMU has no standard output")?;
    let (sender, pieces) = mpsc::channel();
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(bytes @ 1..) = console.read(&mut piece) {
            if sender.send(piece.get(..bytes).unwrap_or_default().to_vec()).is_err() {
                break;
            }
        }
    });
    let mut parser = Parser::default();
    let mut line = Vec::new();
    let mut moved_on = start;
    loop {
        let stall = limits.stall.saturating_sub(moved_on.elapsed());
        let left = limits.all.saturating_sub(start.elapsed());
        match pieces.recv_timeout(stall.min(left)) {
            Ok(piece) => {
                // The log is for people; without it the machine still runs.
                let _ = log.write_all(&piece);
                let before = parser.progress();
                for byte in piece {
                    if byte == b'\n' {
                        parser.bytes(&std::mem::take(&mut line), start.elapsed());
                    } else {
                        line.push(byte);
                    }
                }
                if parser.progress() != before {
                    moved_on = Instant::now();
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let (what, limit) = if stall < left {
                    ("it hung: nothing moved on for", limits.stall)
                } else {
                    ("it was not done after", limits.all)
                };
                parser.outcome.failure = Some(format!("{what} {} s", limit.as_secs()));
                break;
            }
        }
    }
    // The name of a test stands in a line that ends with the verdict.
    parser.bytes(&line, start.elapsed());
    let mut outcome = parser.end();
    outcome.until_end = start.elapsed();
    Ok(outcome)
}

/// An emulator that does not outlive us.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads what comes over the console, line by line.
#[derive(Default)]
struct Parser {
    outcome: Outcome,
    section: String,
    exit: Option<String>,
}

impl Parser {
    /// What is another where the machine has moved on.
    fn progress(&self) -> (usize, usize, String) {
        let harness = &self.outcome.harness;
        (harness.tests.len(), harness.ended(), self.section.clone())
    }

    fn bytes(&mut self, line: &[u8], now: Duration) {
        let line = String::from_utf8_lossy(line).trim_end_matches('\r').to_owned();
        if line.contains("@@ booted") {
            self.outcome.until_boot = now;
        }
        self.line(line, now);
    }

    fn line(&mut self, line: String, now: Duration) {
        if let Some((_, mark)) = line.split_once("@@ ") {
            if let Some(code) = mark.strip_prefix("tests ended with ") {
                self.exit = Some(code.to_owned());
            }
            mark.clone_into(&mut self.section);
        } else {
            match &*self.section {
                "booted" => self.outcome.harness.line(&line, now),
                "doctor" => self.outcome.doctor.extend([&line, "\n"]),
                "doctor.json" => self.outcome.doctor_json += &line,
                "program" => {
                    let found =
                        line.split_once("eBPF program ").and_then(|it| it.1.split_once(": "));
                    let found = found.map(|(_, what)| what.to_owned());
                    self.outcome.program = self.outcome.program.take().or(found);
                }
                "summary" => {
                    let parsed: Option<Value> = serde_json::from_str(&line).ok();
                    let summary = parsed.and_then(|mut line| Some(line.get_mut("summary")?.take()));
                    self.outcome.summary = summary.unwrap_or_default();
                }
                _ => {}
            }
        }
        self.outcome.serial.push(line);
    }

    fn end(mut self) -> Outcome {
        self.outcome.has_ended = self.outcome.failure.is_none() && self.section == "end";
        let whole = if self.outcome.failure.is_some() {
            None
        } else if self.section.is_empty() {
            Some("it did not boot".to_owned())
        } else if self.section != "end" {
            Some(format!("it ended on the way, after `{}`", self.section))
        } else if self.exit.as_deref() != Some("0") {
            Some("tests failed".to_owned())
        } else if self.outcome.harness.tests.is_empty() {
            Some("no test has run".to_owned())
        } else {
            let failed = self.outcome.harness.tally().failed;
            (failed > 0).then(|| "not every test has said that it passed".to_owned())
        };
        self.outcome.failure = self.outcome.failure.or(whole);
        self.outcome
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::harness::Verdict;

    fn verdicts(outcome: &Outcome) -> Vec<(&str, Verdict)> {
        outcome.harness.tests.iter().map(|it| (&*it.name, it.verdict)).collect()
    }

    /// Of a machine that has said this and is off.
    pub(crate) fn outcome(console: &str) -> Outcome {
        let mut parser = Parser::default();
        console.lines().for_each(|line| parser.line(line.to_owned(), Duration::ZERO));
        parser.end()
    }

    #[test]
    fn a_whole_run() {
        let outcome = outcome(
            "[ 1.0] hello\n@@ booted\nrunning 2 tests\ntest a::b ... ok\ntest a::c ... [ 2.0] perf: \
             hm\nok\n@@ tests ended with 0\n@@ doctor\nkernel ok\n@@ program\n10:00 DEBUG profiler: eBPF \
             program sample: 7 instructions verified, loaded in 1.5 ms\n@@ summary\n{\"summary\":{\"a\":1}}\n\
             @@ end",
        );
        assert_eq!(outcome.failure, None);
        assert_eq!(verdicts(&outcome), [("a::b", Verdict::Passed), ("a::c", Verdict::Passed)]);
        assert_eq!((&*outcome.doctor, &outcome.summary["a"]), ("kernel ok\n", &1.into()));
        let program = "7 instructions verified, loaded in 1.5 ms";
        assert_eq!(outcome.program.as_deref(), Some(program));
    }

    #[test]
    fn a_machine_that_hangs_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let outcome = |script: &str, stall, all| {
            let limits =
                Limits { stall: Duration::from_millis(stall), all: Duration::from_millis(all) };
            run(Command::new("sh").args(["-c", script]), &log, limits).unwrap()
        };
        let hung = outcome("echo '@@ booted'; printf 'test a ... '; exec sleep 1000", 300, 1 << 20);
        assert!(hung.failure.as_ref().unwrap().contains("hung"), "{:?}", hung.failure);
        assert_eq!(verdicts(&hung), [("a", Verdict::Unfinished)]);
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "@@ booted\ntest a ... ");
        // What the kernel says is not a step.
        let talks = "echo '@@ booted'; while sleep 0.01; do echo '[ 9.0] rcu: stall'; done";
        assert!(outcome(talks, 300, 1 << 20).failure.unwrap().contains("hung"));
        let goes_on = "while sleep 0.01; do echo 'test a ... ok'; done";
        assert!(outcome(goes_on, 1 << 20, 300).failure.unwrap().contains("not done"));
    }

    #[test]
    fn a_machine_that_dies_has_not_passed() {
        let died = outcome("@@ booted\ntest a ... ok\ntest b ... [ 3.0] Oops\nKernel panic");
        assert!(died.failure.as_ref().unwrap().contains("on the way"));
        assert_eq!(verdicts(&died)[1].1, Verdict::Unfinished);
        assert!(outcome("[ 1.0] panic").failure.unwrap().contains("boot"));
        assert!(outcome("").failure.is_some());
        let none = outcome("@@ booted\n@@ tests ended with 0\n@@ end");
        assert!(none.failure.unwrap().contains("no test"));
        let unmarked = outcome("@@ booted\ntest a ... ok\n@@ doctor\n@@ end");
        assert!(unmarked.failure.is_some());
        let failed = outcome("@@ booted\ntest a ... FAILED\n@@ tests ended with 101\n@@ end");
        assert_eq!((failed.failure.is_some(), verdicts(&failed)[0].1), (true, Verdict::Failed));
    }
}
