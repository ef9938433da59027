//! What the test harness of Rust says, line by line: on a pipe, or on an emulated machine's console.

use std::{
    collections::VecDeque,
    fmt,
    io::{BufRead as _, BufReader, Write as _, pipe, stdout},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::command;

/// How many of the last lines that a test has said are kept.
const MAX_SAID: usize = 60;

/// What a test says that did not check all it could, with the reason behind.
const SKIPPED: &str = "skipped: ";

/// How a test has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// It passed, but has said that something it needs is missing.
    Skipped,
    Failed,
    /// It failed, and passed when it was run again.
    Flaky,
    /// Its end was never seen.
    Unfinished,
}

/// One test.
#[derive(Debug)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
    /// The last lines between its name and its verdict.
    pub(crate) said: VecDeque<String>,
}

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    pub(crate) flaky: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.flaky += other.flaky;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)?;
        if self.flaky > 0 { write!(f, ", {} flaky", self.flaky) } else { Ok(()) }
    }
}

/// Follows the output of one test at a time (`--test-threads=1`), or of `--quiet`, which has totals only.
#[derive(Debug, Default)]
pub(crate) struct Harness {
    /// The tests that were begun, where each was named.
    pub(crate) tests: Vec<Test>,
    /// The last of them, until its verdict comes.
    running: Option<Running>,
    /// When the last one ended, or the first could begin.
    last_end: Duration,
    /// The sums of the lines `test result:`.
    totals: Tally,
}

#[derive(Debug)]
struct Running {
    lacks_something: bool,
}

impl Harness {
    /// Takes a line that came so long after the start: `test NAME ... ok`. What others say, such as the
    /// kernel on a console, may stand between the name and the verdict.
    pub(crate) fn line(&mut self, line: &str, now: Duration) {
        let mut rest = line;
        if let Some((_, begun)) = line.split_once("test ")
            && let Some((name, after)) = begun.split_once(" ...")
        {
            let name = name.split(" - ").next().unwrap_or(name).to_owned();
            let (verdict, took, said) = (Verdict::Unfinished, Duration::ZERO, VecDeque::new());
            self.tests.push(Test { name, verdict, took, said });
            self.running = Some(Running { lacks_something: false });
            rest = after;
        } else if line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test") {
            self.last_end = now;
        } else if let Some(totals) = line.strip_prefix("test result: ") {
            self.totals.add(totals_of(totals));
        }
        let (Some(test), Some(running)) = (self.tests.last_mut(), &mut self.running) else {
            return;
        };
        running.lacks_something |= rest.contains(SKIPPED);
        test.verdict = match rest.split_whitespace().last() {
            Some("ok") if running.lacks_something => Verdict::Skipped,
            Some("ok") => Verdict::Passed,
            Some("FAILED") => Verdict::Failed,
            _ => {
                let said = rest.trim_end();
                if !said.is_empty() {
                    test.said.push_back(said.trim_start_matches(' ').to_owned());
                }
                if test.said.len() > MAX_SAID {
                    test.said.pop_front();
                }
                return;
            }
        };
        // The name of one that says nothing comes with its verdict, in one line.
        test.took = now.saturating_sub(std::mem::replace(&mut self.last_end, now));
        self.running = None;
    }

    /// How many tests have ended.
    pub(crate) fn ended(&self) -> usize {
        self.tests.len() - usize::from(self.running.is_some())
    }

    /// How the tests ended, those that never did among the failed ones.
    pub(crate) fn tally(&self) -> Tally {
        if self.tests.is_empty() {
            return self.totals;
        }
        let mut tally = Tally::default();
        for test in &self.tests {
            match test.verdict {
                Verdict::Passed => tally.passed += 1,
                Verdict::Skipped => tally.skipped += 1,
                Verdict::Flaky => tally.flaky += 1,
                Verdict::Failed | Verdict::Unfinished => tally.failed += 1,
            }
        }
        tally
    }
}

/// `ok. 276 passed; 0 failed; …`
fn totals_of(line: &str) -> Tally {
    let count = |what: &str| {
        let parts = line.split([';', '.']).map(str::trim);
        let numbers =
            parts.filter_map(|part| part.strip_suffix(what)?.trim().parse::<usize>().ok());
        numbers.sum()
    };
    Tally { passed: count("passed"), failed: count("failed"), ..Tally::default() }
}

/// Runs tests and shows what they say; how they ended, whatever the exit code.
pub(crate) fn run(command: &mut Command) -> (Harness, Result<()>) {
    let mut harness = Harness::default();
    let done = follow(command, &mut harness);
    (harness, done)
}

fn follow(command: &mut Command, harness: &mut Harness) -> Result<()> {
    let words = command::words(command);
    // One pipe for both, so that what a test says comes between its name and its verdict.
    let (output, input) = pipe().context("cannot make a pipe")?;
    let input_too = input.try_clone().context("cannot make a pipe")?;
    let child = command.stdout(input).stderr(input_too).spawn();
    let mut child = child.with_context(|| format!("cannot run `{words}`"))?;
    // Our own ends of the pipe would keep it open.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let start = Instant::now();
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        harness.line(&line, start.elapsed());
        let _ = writeln!(stdout(), "{line}");
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{words}`"))?;
    if !status.success() {
        bail!("`{words}` failed: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harness(lines: &[(&str, u64)]) -> Harness {
        let mut harness = Harness::default();
        for (line, second) in lines {
            harness.line(line, Duration::from_secs(*second));
        }
        harness
    }

    #[test]
    fn tests_pass_fail_or_are_skipped() {
        let harness = harness(&[
            ("running 4 tests", 1),
            ("test a::b ... ok", 3),
            ("test a::c - should panic ... [ 2.0] perf: hm", 4),
            ("ok", 7),
            ("test a::d ... profiler: skipped: node is not installed", 7),
            ("ok", 8),
            ("test a::e ... FAILED", 8),
            ("test a::f ... profiler: skipped: half of it", 9),
        ]);
        let seen: Vec<_> = harness.tests.iter().map(|it| (&*it.name, it.verdict)).collect();
        assert_eq!(
            seen,
            [
                ("a::b", Verdict::Passed),
                ("a::c", Verdict::Passed),
                ("a::d", Verdict::Skipped),
                ("a::e", Verdict::Failed),
                ("a::f", Verdict::Unfinished),
            ]
        );
        let took: Vec<u64> = harness.tests.iter().take(3).map(|it| it.took.as_secs()).collect();
        assert_eq!(took, [2, 4, 1]);
        // The last one never ended.
        assert_eq!(harness.tally().to_string(), "2 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn quiet_runs_have_totals() {
        let harness = harness(&[
            ("....", 0),
            ("test result: ok. 276 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out", 1),
            ("test result: FAILED. 9 passed; 1 failed; 0 ignored; finished in 0.40s", 2),
        ]);
        assert_eq!(harness.tally(), Tally { passed: 285, failed: 1, ..Tally::default() });
    }

    #[test]
    fn what_a_run_says_is_counted_whatever_its_exit_code() {
        let script = "echo 'test a ... ok'; echo 'test b ... skipped: x' >&2; echo ok; exit 3";
        let (harness, done) = run(Command::new("sh").args(["-c", script]));
        assert_eq!(harness.tally(), Tally { passed: 1, skipped: 1, ..Tally::default() });
        assert!(done.unwrap_err().to_string().contains("exit status: 3"));
    }
}
