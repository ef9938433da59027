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

use super::{
    guest::{Outcome, Verdict},
    kernel,
    machine::Machine,
    snapshot,
};
use crate::{arch::Arch, command, workspace};

/// How many of the last lines of its console a machine shows that has not come to the end of its tests.
const CONSOLE_LINES: usize = 60;

/// What the run at full load has delivered of 99 Hz on two CPUs for five seconds.
const NOMINAL_SAMPLES: f64 = 990.0;

/// The machines that have run.
#[derive(Default)]
pub(crate) struct Report {
    machines: Vec<Entry>,
}

struct Entry {
    machine: Machine,
    release: String,
    outcome: Outcome,
    by_hand: String,
    log: PathBuf,
}

impl Report {
    pub(crate) fn add(
        &mut self,
        machine: Machine,
        release: String,
        outcome: Outcome,
        qemu: &Command,
        log: &Path,
    ) {
        let by_hand = command::words(qemu);
        self.machines.push(Entry { machine, release, outcome, by_hand, log: log.into() });
    }

    /// Says in a line how the last machine did, and when it has failed, all that helps. The doctor's
    /// words count, too: they are compared with what is kept, or kept.
    pub(crate) fn print_last(&mut self, with_doctor: bool, bless: bool) -> Result<()> {
        let Some(entry) = self.machines.last_mut() else { return Ok(()) };
        if with_doctor && entry.outcome.failure.is_none() {
            entry.check_doctor(bless)?;
        }
        let Entry { machine, outcome, by_hand, log, .. } = entry;
        let count = |wanted| outcome.tests.iter().filter(|(_, verdict)| *verdict == wanted).count();
        let seconds = outcome.until_end.as_secs();
        let passed = count(Verdict::Passed);
        match &outcome.failure {
            None => {
                println!("{machine}: {passed} tests passed in {seconds} s");
                if let Some(program) = &outcome.program {
                    println!("  eBPF program: {program}");
                }
            }
            Some(why) => {
                for line in what_failed(&outcome.serial) {
                    println!("    {line}");
                }
                for (test, verdict) in &outcome.tests {
                    if *verdict != Verdict::Passed {
                        println!("test {machine}::{test} ... FAILED");
                    }
                }
                println!("{machine}: {why}, {passed} passed in {seconds} s");
                println!("  the whole console: {}\n  by hand: {by_hand}", log.display());
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.machines.iter().any(|entry| entry.outcome.failure.is_some())
    }

    /// The table machine × test.
    pub(crate) fn table(&self) -> String {
        let mut rows: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (column, entry) in self.machines.iter().enumerate() {
            for (test, verdict) in &entry.outcome.tests {
                let cells = rows.entry(test).or_default();
                cells.resize(column, "-");
                cells.push(match verdict {
                    Verdict::Passed => "ok",
                    Verdict::Failed => "FAILED",
                    Verdict::Unfinished => "hung",
                });
            }
        }
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
        }
        Ok(())
    }
}

/// What the tests said of those that failed; where they did not come to that, the last that was said.
fn what_failed(console: &[String]) -> &[String] {
    // What comes after the tests says nothing of them.
    let end = console.iter().rposition(|line| line.starts_with("@@ tests ended"));
    let said = console.get(..end.unwrap_or(console.len())).unwrap_or_default();
    let start = said.iter().position(|line| line == "failures:");
    let start = start.unwrap_or_else(|| said.len().saturating_sub(CONSOLE_LINES));
    said.get(start..).unwrap_or_default()
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

    #[test]
    fn a_failed_machine_shows_what_its_tests_said_or_its_last_lines() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let console = "test a ... FAILED\nfailures:\nwhy\nfailures:\na\n@@ tests ended with 101\nx";
        assert_eq!(what_failed(&lines(console)), lines("failures:\nwhy\nfailures:\na"));
        let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        assert_eq!(what_failed(&many), &many[40..]);
        assert!(what_failed(&[]).is_empty());
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
