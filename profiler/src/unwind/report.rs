//! `profiler unwind-info`: what a file says of its frames, and what became of it.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use profiler_common::unwind::table::RULES;

use super::{
    NoTable, Rules, Table,
    cfi::Unsupported,
    equation::{Equation, KINDS},
    table::Facts,
};
use crate::{
    error::{Error, Result},
    regular_file::{self, Refusal},
};

/// How far the edges of a rule are looked for.
const LOOK_BYTES: u64 = 1 << 20;
/// Rows from which on averages are shown.
const LEAST_ROWS: u64 = 2000;

/// The report of a file, or of the rule at an address in it.
pub fn of(path: &Path, at: Option<u64>) -> Result<String> {
    let what = || format!("cannot read {}", path.display());
    let file = regular_file::open(path).map_err(|refusal| match refusal {
        Refusal::Special => Error::system(what(), "not a regular file"),
        Refusal::Failed(error) => Error::system(what(), error),
    })?;
    let mut rules = Rules::new();
    let begin = Instant::now();
    let table = Table::of_any_file(&file, None, &mut rules).map_err(|why| {
        Error::system_with(format!("{} has no table", path.display()), why, hint(why))
    })?;
    match at {
        Some(address) => rule_at(&table, &rules, address).ok_or_else(|| {
            let what = format!("{} has no code at {address:#x}", path.display());
            Error::system_with(what, "no rule is there", "addresses are those of objdump -d")
        }),
        None => Ok(report(path, &table, &rules, begin.elapsed())),
    }
}

fn hint(why: NoTable) -> &'static str {
    match why {
        NoTable::NoInfo => {
            "its stacks are walked by frame pointers; compile with -fasynchronous-unwind-tables, or \
             with -fno-omit-frame-pointer"
        }
        NoTable::NotElf | NoTable::Unreadable => "give a program or a shared library",
        NoTable::NotLinked => {
            "give the program or library that it goes into; the kernel walks its own stacks without tables"
        }
        NoTable::Compressed => "objcopy --decompress-debug-sections makes a file that has one",
        NoTable::Bits32 | NoTable::Machine | NoTable::TooLarge => "",
    }
}

fn report(path: &Path, table: &Table, rules: &Rules, took: Duration) -> String {
    let Facts { machine, places, counts, packed, .. } = table.facts();
    let table_bytes = size_of_val(table.chunks());
    let per_row = table_bytes as f64 / counts.rows.max(1) as f64;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
    line("file", path.display().to_string());
    line("machine", machine.to_string());
    let places = places.iter().map(|(place, bytes)| format!("{place}, {bytes} bytes"));
    let places = places.collect::<Vec<_>>().join("; ");
    line("found in", if places.is_empty() { "its code".to_owned() } else { places });
    line("functions", format!("{}, and {} malformed", counts.functions, counts.malformed));
    line("rows", format!("{} in the file, {} in the table", counts.rows, packed.rows));
    line("", format!("at most {} in 4 KiB of code", packed.most_in_page));
    // Of a few rows, neither says anything.
    let is_large = counts.rows >= LEAST_ROWS;
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
        Equation(rule, *machine)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_this_program() {
        let program = std::env::current_exe().unwrap();
        let text = of(&program, None).unwrap();
        for part in ["machine     ", "found in    .eh_frame", "CFA by sp", "in the table"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
    }

    #[test]
    fn says_why_there_is_no_table() {
        let path = Path::new("/proc/self/exe");
        let error = of(path, Some(u64::MAX)).unwrap_err();
        assert!(error.to_string().contains("no code at 0xffffffffffffffff"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = of(file.path(), None).unwrap_err();
        assert!(error.to_string().contains("not an ELF file"), "{error}");
        assert_eq!(error.exit_code(), 1);
        let error = of(Path::new("/dev/null"), None).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
