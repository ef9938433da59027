//! `list`: the events of this machine.

use std::{fmt::Write as _, process::ExitCode};

use profiler_events::{Listed, Listing, Machine};
use serde_json::json;

use super::{answer, columns};
use crate::{cli::ListArgs, stderr};

/// Where descriptions begin, unless the name is longer.
const NAME_COLUMNS: usize = 36;

/// Prints those that match.
pub(super) fn run(args: &ListArgs) -> ExitCode {
    let Listing { events, missing } = Machine::here().list(&args.pattern);
    for why in &missing {
        stderr::notice(&format!("there may be more events: {why}"));
    }
    if events.is_empty() {
        stderr::say(&format!("no event of this machine matches `{}`", args.pattern));
        return ExitCode::FAILURE;
    }
    answer(&if args.json { lines(&events) } else { table(&events, columns()) })
}

fn lines(events: &[Listed]) -> String {
    let mut text = String::new();
    for event in events {
        let needs: Vec<String> = event.needs.iter().map(ToString::to_string).collect();
        let object = json!({
            "name": event.name,
            "kind": event.kind.to_string(),
            "pmus": event.pmus,
            "description": event.description,
            "unit": event.unit,
            "not_sampled": event.counting_only,
            "needs": needs,
        });
        let _ = writeln!(text, "{object}");
    }
    text
}

/// By kind, with what can't be sampled marked.
fn table(events: &[Listed], columns: Option<usize>) -> String {
    let mut text = String::new();
    for of_kind in events.chunk_by(|one, other| one.kind == other.kind) {
        let Some(first) = of_kind.first() else { continue };
        let mark =
            if of_kind.iter().all(|it| it.counting_only.is_some()) { " (not sampled)" } else { "" };
        let space = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{space}{}{mark}:", first.kind);
        for event in of_kind {
            let mark =
                if mark.is_empty() && event.counting_only.is_some() { "not sampled" } else { "" };
            let unit = event.unit.as_ref().map(|unit| format!("in {unit}"));
            let parts = [event.description.clone(), unit, Some(mark.to_owned())];
            let parts: Vec<String> =
                parts.into_iter().flatten().filter(|it| !it.is_empty()).collect();
            let line = format!("  {:<NAME_COLUMNS$} {}", event.name, parts.join("; "));
            let _ = writeln!(text, "{}", cut(line.trim_end(), columns));
        }
    }
    text
}

/// A line that fits the terminal.
fn cut(line: &str, columns: Option<usize>) -> String {
    match columns {
        Some(columns) if line.chars().count() > columns => {
            line.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
        }
        _ => line.to_owned(),
    }
}
