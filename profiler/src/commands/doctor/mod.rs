//! What this kernel, machine and user can do, each with what to do when it is missing.

mod bpf;
mod events;
mod machine;
mod process;

use std::{
    fmt::Write as _,
    io::{Write as _, stdout},
    process::ExitCode,
};

use profiler_profile::printable::printable_lines;
use serde::Serialize;

use crate::{
    config::Machine,
    hardening::capabilities::{NEEDED, missing},
    kernel, limits,
};

/// Prints what was found; exit code 0 where the profiler can run.
pub(super) fn run(json: bool) -> ExitCode {
    let diagnosis = diagnose();
    let text = if json {
        serde_json::to_string_pretty(&diagnosis).unwrap_or_default() + "\n"
    } else {
        diagnosis.table()
    };
    // Whoever asked and did not listen gets the exit code all the same.
    let _ = stdout().write_all(printable_lines(&text).as_bytes());
    if diagnosis.can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Ok,
    /// The profiler runs, but something is worse than it could be.
    Warn,
    /// The profiler can't run.
    Fail,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
struct Check {
    /// What was looked at.
    name: String,
    /// Whether that is good.
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What to do about it, where that is possible.
    fix: Option<String>,
}

/// All checks.
#[derive(Clone, Debug, Serialize)]
struct Diagnosis {
    /// Whether the profiler can run.
    can_run: bool,
    /// The lines of the table.
    checks: Vec<Check>,
}

/// Looks at everything.
fn diagnose() -> Diagnosis {
    let mut checks = vec![
        ok("kernel", kernel::release()),
        ok("architecture", std::env::consts::ARCH),
        process::privileges(),
        machine::procfs(),
        machine::paranoid(),
        machine::kptr_restrict(),
        machine::lockdown(),
        machine::open_files(),
        machine::memory(),
    ];
    let has_room = limits::require_open_files().and_then(|()| limits::memory::require()).is_ok();
    if !missing(&NEEDED).is_empty() || !has_room {
        // All that follows would fail for this one reason.
        return Diagnosis { can_run: false, checks };
    }
    let probed = Machine::probe();
    checks.push(machine::pid_namespace());
    checks.extend(events::events());
    checks.extend([bpf::btf(), bpf::program_type(), bpf::ring_buffer()]);
    checks.extend(bpf::helpers());
    checks.extend(probed.as_ref().ok().map(bpf::user_stacks));
    checks.push(process::parser_process());
    let program = bpf::program(probed);
    let loads = program.verdict == Verdict::Ok;
    checks.extend([
        program,
        machine::tracefs(),
        machine::memlock(loads),
        machine::jit(),
        process::hardening(),
    ]);
    let can_run = checks.iter().all(|check| check.verdict != Verdict::Fail);
    Diagnosis { can_run, checks }
}

impl Diagnosis {
    /// The table for people.
    fn table(&self) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Check { name, verdict, found, fix } in &self.checks {
            let verdict = match verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            let _ = writeln!(text, "{name:width$}  {verdict:4}  {found}");
            if let Some(fix) = fix {
                let _ = writeln!(text, "{:width$}        → {fix}", "");
            }
        }
        let last = if self.can_run {
            "The profiler can run."
        } else {
            "The profiler can't run: see FAIL above."
        };
        text + last + "\n"
    }
}

fn ok(name: &str, found: impl Into<String>) -> Check {
    Check { name: name.into(), verdict: Verdict::Ok, found: found.into(), fix: None }
}

fn bad(name: &str, verdict: Verdict, found: impl Into<String>, fix: impl Into<String>) -> Check {
    let fix = Some(fix.into());
    Check { name: name.into(), verdict, found: found.into(), fix }
}
