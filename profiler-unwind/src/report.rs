//! What `profiler unwind-info` shows: the unwind information of a file, and what became of it.

use std::{
    fmt::Write as _,
    fs::File,
    time::{Duration, Instant},
};

use profiler_common::unwind::table::RULES;
use serde::{Deserialize, Serialize};

use crate::{
    NoTable, Rules, Table,
    cfi::Unsupported,
    rule_display::{KINDS, RuleDisplay},
    table::Facts,
};

/// How far the edges of a rule are looked for.
const LOOK_BYTES: u64 = 1 << 20;
/// Rows from which on averages are shown.
const MIN_ROWS: u64 = 2000;

/// Why there is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unreported {
    /// The file has no table.
    NoTable(NoTable),
    /// There is no code at this address.
    NoCode(u64),
}

/// A report on a file, of any machine, which is called by `name`: several lines. With `at`, an address of the ELF
/// image, the rule that holds there instead.
pub fn of_file(file: &File, name: &str, at: Option<u64>) -> Result<String, Unreported> {
    let mut rules = Rules::new();
    let begin = Instant::now();
    let table = Table::of_any_file(file, None, &mut rules).map_err(Unreported::NoTable)?;
    match at {
        Some(address) => rule_at(&table, &rules, address).ok_or(Unreported::NoCode(address)),
        None => Ok(report(name, &table, &rules, begin.elapsed())),
    }
}

fn report(name: &str, table: &Table, rules: &Rules, took: Duration) -> String {
    let Facts { machine, places, counts, packed, is_newer_go, .. } = table.facts();
    let table_bytes = size_of_val(table.chunks());
    let per_row = table_bytes as f64 / counts.rows.max(1) as f64;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
    line("file", name.to_owned());
    line("machine", machine.to_string());
    let places = places.iter().map(|(place, bytes)| format!("{place}, {bytes} bytes"));
    let places = places.collect::<Vec<_>>().join("; ");
    line("found in", if places.is_empty() { "its code".to_owned() } else { places });
    if *is_newer_go {
        line("not read", ".gopclntab, of a version that is not known".to_owned());
    }
    line("functions", format!("{}, and {} malformed", counts.functions, counts.malformed));
    line("rows", format!("{} in the file, {} in the table", counts.rows, packed.rows));
    line("", format!("at most {} in 4 KiB of code", packed.max_rows_in_page));
    // Of a few rows, neither says anything.
    let is_large = counts.rows >= MIN_ROWS;
    let of_a_row =
        if is_large { format!(", {per_row:.2} for each row in the file") } else { String::new() };
    line("table", format!("{table_bytes} bytes{of_a_row}"));
    line("rules", format!("{} of at most {RULES} for all files", rules.len()));
    let speed = counts.rows as f64 / took.as_secs_f64().max(1e-9) / 1e6;
    let speed =
        if is_large { format!(", {speed:.1} million rows a second") } else { String::new() };
    line("made in", format!("{:.1} ms{speed}", took.as_secs_f64() * 1e3));

    let total = packed.code_bytes.iter().sum::<u64>().max(1);
    let mut kinds: Vec<_> = packed.code_bytes.iter().zip(KINDS).filter(|it| *it.0 > 0).collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(*kind.0));
    let _ = writeln!(text, "\n{:>12}         code", "bytes");
    for (bytes, kind) in kinds {
        let share = *bytes as f64 * 100.0 / total as f64;
        let _ = writeln!(text, "{bytes:>12}  {share:5.1}%  {kind}");
    }

    let reasons = counts.unsupported.iter().zip(Unsupported::ALL).map(|(rows, it)| (*rows, it.1));
    let others = [
        (packed.beyond_page, "more rows than a page of code may have"),
        (packed.beyond_rules, "more rules than a file may have"),
        (packed.overlapping, "described twice (the first holds)"),
    ];
    let mut reasons: Vec<_> = reasons.chain(others).filter(|reason| reason.0 > 0).collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.0));
    if !reasons.is_empty() {
        let _ = writeln!(text, "\n{:>12}         left out", "rows");
        for (rows, reason) in reasons {
            let _ = writeln!(text, "{rows:>12}         {reason}");
        }
    }
    text
}

/// The rule at an address of the image, and from where to where it holds.
fn rule_at(table: &Table, rules: &Rules, address: u64) -> Option<String> {
    let Facts { machine, code, .. } = table.facts();
    let offset = code.offset(address)?;
    let number = table.find(offset)?;
    let same = |offset: &u64| table.find(*offset) == Some(number);
    let after = (offset..offset.saturating_add(LOOK_BYTES)).take_while(same).count() as u64;
    let lowest = offset.saturating_sub(LOOK_BYTES);
    let before = (lowest..offset).rev().take_while(same).count() as u64;
    let rule = rules.get(number)?;
    let (start, end) = (address.saturating_sub(before), address.saturating_add(after));
    let offset = offset - before;
    Some(format!(
        "{start:#x} to {end:#x}, at offset {offset:#x} in the file (rule {number}):\n  {}\n",
        RuleDisplay(rule, *machine)
    ))
}
