//! What the machines have found, as tables.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{guest::Outcome, kernel, machine::Machine, snapshot};
use crate::{
    arch::Arch,
    command,
    harness::{Tally, Test, Verdict},
    workspace,
};

/// How many of the last lines of its console a machine shows that has not come to the end of its tests.
const CONSOLE_LINES: usize = 60;

/// How many of its slowest tests a machine names.
const SLOWEST: usize = 3;

/// What the run at full load has delivered of 99 Hz on two CPUs for five seconds.
const NOMINAL_SAMPLES: f64 = 990.0;

/// The machines that have run.
#[derive(Default)]
pub(crate) struct Report {
    machines: Vec<Entry>,
}

/// A machine that has run, at its place in the matrix.
struct Entry {
    order: usize,
    machine: Machine,
    release: String,
    outcome: Outcome,
    by_hand: String,
    log: PathBuf,
}

impl Report {
    pub(crate) fn add(
        &mut self,
        order: usize,
        machine: Machine,
        release: String,
        outcome: Outcome,
        qemu: &Command,
        log: &Path,
    ) {
        let by_hand = command::words(qemu);
        self.machines.push(Entry { order, machine, release, outcome, by_hand, log: log.into() });
    }

    /// Says in a line how the last machine did, and when it has failed, all that helps. The doctor's
    /// words count, too: they are compared with what is kept, or kept.
    pub(crate) fn print_last(&mut self, with_doctor: bool, bless: bool) -> Result<()> {
        let Some(entry) = self.machines.last_mut() else { return Ok(()) };
        if with_doctor && entry.outcome.failure.is_none() {
            entry.check_doctor(bless)?;
        }
        let Entry { machine, outcome, by_hand, log, .. } = entry;
        let tally = outcome.harness.tally();
        let seconds = outcome.until_end.as_secs();
        match &outcome.failure {
            None => {
                print!("{}", failures_of(machine, &outcome.harness.tests, usize::MAX));
                println!("{machine}: {tally} in {seconds} s");
                if let Some(program) = &outcome.program {
                    println!("  eBPF program: {program}");
                }
                let mut slowest: Vec<_> = outcome.harness.tests.iter().collect();
                slowest.sort_by_key(|test| std::cmp::Reverse(test.took));
                let slowest = slowest.iter().take(SLOWEST);
                let slowest = slowest.map(|it| format!("{} {} s", it.name, it.took.as_secs()));
                println!("  slowest: {}", slowest.collect::<Vec<_>>().join(", "));
            }
            Some(why) => {
                print!("{}", failures_of(machine, &outcome.harness.tests, usize::MAX));
                if outcome.harness.tests.is_empty() {
                    for line in last_lines(&outcome.serial) {
                        println!("    {line}");
                    }
                }
                println!("{machine}: {why}, {tally} in {seconds} s");
                println!("  the whole console: {}\n  by hand: {by_hand}", log.display());
            }
        }
        Ok(())
    }

    /// Puts the machines into the matrix's order: they end in another where several run at once.
    pub(crate) fn sort(&mut self) {
        self.machines.sort_by_key(|entry| entry.order);
    }

    /// The tests of all machines.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.machines.iter().for_each(|entry| tally.add(entry.outcome.harness.tally()));
        tally
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.machines.iter().any(|entry| entry.outcome.failure.is_some())
    }

    /// The tests that have failed at least once, each with so many of the last lines that it has said.
    pub(crate) fn failures(&self, lines: usize) -> String {
        let of = |it: &Entry| failures_of(&it.machine, &it.outcome.harness.tests, lines);
        self.machines.iter().map(of).collect()
    }

    /// The table machine × test, of the tests that have not passed on each machine that runs them.
    pub(crate) fn table(&self) -> String {
        let mut rows: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (column, entry) in self.machines.iter().enumerate() {
            for test in &entry.outcome.harness.tests {
                let cells = rows.entry(&test.name).or_default();
                cells.resize(column, "-");
                cells.push(match test.verdict {
                    Verdict::Passed => "ok",
                    Verdict::Skipped => "skip",
                    Verdict::Failed => "FAILED",
                    Verdict::Flaky => "flaky",
                    Verdict::Unfinished => "hung",
                });
            }
        }
        let tests = rows.len();
        rows.retain(|_, cells| cells.iter().any(|cell| !["ok", "-"].contains(cell)));
        let passed = format!("and {} that passed", tests - rows.len());
        let width = rows.keys().map(|test| test.len()).max().unwrap_or(0);
        let headings: Vec<String> = self.machines.iter().map(|it| it.machine.heading()).collect();
        let row = |name: &str, cells: &[&str]| {
            let mut line = format!("{name:width$}");
            for (column, heading) in headings.iter().enumerate() {
                let cell = cells.get(column).copied().unwrap_or("-");
                let _ = write!(line, "  {cell:<0$}", heading.len().max("FAILED".len()));
            }
            line.trim_end().to_owned()
        };
        let mut before = None;
        let archs = self.machines.iter().map(|entry| {
            let arch = Some(entry.machine.arch);
            // Once is enough.
            if std::mem::replace(&mut before, arch) == arch {
                ""
            } else {
                entry.machine.arch.name()
            }
        });
        let mut lines = vec![row("", &archs.collect::<Vec<_>>())];
        lines.push(row("", &headings.iter().map(String::as_str).collect::<Vec<_>>()));
        lines.extend(rows.iter().map(|(test, cells)| row(test, cells)));
        lines.push(passed);
        let all = self.machines.iter().map(|entry| match entry.outcome.failure {
            None => "ok",
            Some(_) => "FAILED",
        });
        lines.push(row("all", &all.collect::<Vec<_>>()));
        lines.join("\n")
    }

    /// Writes the tables into docs/kernels.md, between the lines that mark their place.
    pub(crate) fn write_docs(&self) -> Result<()> {
        let path = workspace::root().join("docs/kernels.md");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let text = replace(&text, "capabilities", &self.capabilities())?;
        let text = replace(&text, "figures", &self.figures())?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The doctor's verdicts, capability × machine.
    fn capabilities(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        let mut found: Vec<BTreeMap<String, String>> = Vec::new();
        for entry in &self.machines {
            let json: Value = serde_json::from_str(&entry.outcome.doctor_json).unwrap_or_default();
            let checks = json.get("checks").and_then(Value::as_array);
            let mut column = BTreeMap::new();
            for check in checks.into_iter().flatten() {
                let text = |key| check.get(key).and_then(Value::as_str).unwrap_or_default();
                let name = text("name").to_owned();
                // What it is called says more than that there is one.
                let cell = if name == "event" || name == "memlock" {
                    text("found").replace(" will be sampled", "")
                } else {
                    text("verdict").replace("fail", "missing")
                };
                if !names.contains(&name) {
                    names.push(name.clone());
                }
                column.insert(name, cell);
            }
            found.push(column);
        }
        let mut text = self.heading();
        for name in names.iter().filter(|name| !["kernel", "architecture"].contains(&&***name)) {
            let cell = |column: &BTreeMap<String, String>| {
                column.get(name).map_or("–", String::as_str).to_owned()
            };
            let cells: Vec<String> = found.iter().map(cell).collect();
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
        text
    }

    /// What was measured on each machine.
    fn figures(&self) -> String {
        let mut text = self.heading();
        let mut row = |name: &str, cell: &dyn Fn(&Entry) -> String| {
            let cells: Vec<String> = self.machines.iter().map(cell).collect();
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        };
        row("kernel", &|it| it.release.clone());
        row("event", &|it| {
            it.outcome.summary.get("event").and_then(Value::as_str).unwrap_or("–").to_owned()
        });
        row("eBPF program", &|it| it.outcome.program.clone().unwrap_or("–".into()));
        row("delivered of nominal", &|it| {
            let delivered = it.outcome.summary.get("delivered").and_then(Value::as_f64);
            delivered.map_or("–".into(), |it| format!("{:.0} %", it / NOMINAL_SAMPLES * 100.0))
        });
        row("lost", &|it| {
            let lost = it.outcome.summary.get("lost").and_then(Value::as_object);
            let lost = lost.map(|it| it.values().filter_map(Value::as_u64).sum::<u64>());
            lost.map_or("–".into(), |lost| lost.to_string())
        });
        let seconds = |it: Duration| format!("{:.0} s", it.as_secs_f64());
        row("power-on to first test", &|it| seconds(it.outcome.until_boot));
        row("power-on to result", &|it| seconds(it.outcome.until_end));
        text
    }

    fn heading(&self) -> String {
        let name = |entry: &Entry| format!("{} {}", entry.machine.arch, entry.machine.heading());
        let names: Vec<String> = self.machines.iter().map(name).collect();
        format!("| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()))
    }
}

impl Entry {
    fn check_doctor(&mut self, bless: bool) -> Result<()> {
        // A newer version of the series has to say the same.
        let said = self.outcome.doctor.replace(&self.release, &self.machine.series);
        let path = snapshot(&self.machine);
        if bless {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            return fs::write(&path, said)
                .with_context(|| format!("cannot write {}", path.display()));
        }
        let kept = fs::read_to_string(&path).ok();
        // One that is not in the matrix has nothing to be compared with.
        let matrix = Machine::matrix(&Arch::ALL, &kernel::all_series());
        if kept.is_none() && !matrix.contains(&self.machine) {
            return Ok(());
        }
        if kept.as_deref() != Some(&*said) {
            self.outcome.failure = Some(format!(
                "the doctor does not say what {} says; if it should: cargo xtask vm --bless",
                path.display()
            ));
            print!("{}", changed_lines(kept.as_deref().unwrap_or_default(), &said));
        }
        Ok(())
    }
}

/// The lines that only one of two texts has, as a diff shows them.
fn changed_lines(before: &str, after: &str) -> String {
    let mut text = String::new();
    for (sign, one, other) in [('-', before, after), ('+', after, before)] {
        for line in one.lines().filter(|line| !other.lines().any(|it| it == *line)) {
            let _ = writeln!(text, "  {sign} {line}");
        }
    }
    text
}

/// The tests of a machine that have failed at least once, each with the last lines that it has said then.
fn failures_of(machine: &Machine, tests: &[Test], lines: usize) -> String {
    let mut text = String::new();
    for test in tests {
        let verdict = match test.verdict {
            Verdict::Passed | Verdict::Skipped => continue,
            Verdict::Failed | Verdict::Unfinished => "FAILED",
            Verdict::Flaky => "flaky: it passed when run again",
        };
        let _ = writeln!(text, "test {machine}::{} ... {verdict}", test.name);
        for line in test.said.iter().skip(test.said.len().saturating_sub(lines)) {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// The last that a machine has said, where it has not come to its tests.
fn last_lines(console: &[String]) -> &[String] {
    console.get(console.len().saturating_sub(CONSOLE_LINES)..).unwrap_or_default()
}

/// Replaces what is between `<!-- NAME -->` and `<!-- end of NAME -->`.
fn replace(text: &str, name: &str, table: &str) -> Result<String> {
    let (start, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = text.split_once(&start).with_context(|| format!("no {start}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("no {end}"))?;
    Ok(format!("{before}{start}\n{table}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Harness;

    #[test]
    fn a_failed_machine_shows_what_its_tests_said_or_its_last_lines() {
        let mut harness = Harness::default();
        for line in
            ["test a ... ok", "test b ... ", "left: 1", "right: 2", "FAILED", "test c ... hm"]
        {
            harness.line(line, Duration::ZERO);
        }
        let machine = Machine { arch: Arch::Aarch64, series: "6.1".into(), pmu: true };
        let (b, c) =
            ("test aarch64-6.1::b ... FAILED\n", "test aarch64-6.1::c ... FAILED\n    hm\n");
        let all = failures_of(&machine, &harness.tests, usize::MAX);
        assert_eq!(all, format!("{b}    left: 1\n    right: 2\n{c}"));
        assert_eq!(failures_of(&machine, &harness.tests, 1), format!("{b}    right: 2\n{c}"));
        let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        assert_eq!(last_lines(&many), &many[40..]);
        assert!(last_lines(&[]).is_empty());
    }

    #[test]
    fn of_two_texts_the_lines_that_differ_are_shown() {
        assert_eq!(changed_lines("a\nb\nc\n", "a\nd\nc\n"), "  - b\n  + d\n");
        assert_eq!(changed_lines("a\n", "a\n"), "");
    }

    #[test]
    fn a_table_takes_the_place_between_its_marks() {
        let text = "a\n<!-- t -->\nold\n<!-- end of t -->\nb\n";
        let new = replace(text, "t", "|x|\n").unwrap();
        assert_eq!(new, "a\n<!-- t -->\n\n|x|\n\n<!-- end of t -->\nb\n");
        assert_eq!(replace(&new, "t", "|x|\n").unwrap(), new);
        assert!(replace(text, "u", "").is_err());
    }
}
