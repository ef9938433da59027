//! A comparison as text: a table for people, or folded stacks with two counts for other programs.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{Change, Diff, Measure};
use crate::{
    import::{Imported, Stack},
    printable::printable,
};

/// What the table shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What was compared.
    pub measure: Measure,
    /// How many rows at most; all if `None`.
    pub rows: Option<usize>,
    /// Also the rows that chance explains.
    pub noise: bool,
}

/// The table: what functions took themselves, before and after, and the difference with the margin that holds it in 95
/// of 100 runs.
#[must_use]
pub fn table(diff: &Diff<'_>, before: &Imported, options: Options) -> String {
    let unit = before.value_types.get(before.default_value).map_or("", |it| &*it.unit);
    let whole = diff.whole();
    let is_short = whole.before.max(whole.after) < 1e9;
    let cell = |value: f64| match (options.measure, unit) {
        (Measure::Share, _) => format!("{:.2}%", value / 1e4),
        (Measure::Absolute, "nanoseconds") if is_short => format!("{:.2}ms", value / 1e6),
        (Measure::Absolute, "nanoseconds") => format!("{:.3}s", value / 1e9),
        (Measure::Absolute, _) => format!("{value:.0}"),
    };
    let line = |change: &Change, what: &str| {
        let delta = cell(change.delta());
        let sign = if change.delta() > 0.0 { "+" } else { "" };
        format!(
            "{:>9} {:>9} {:>10} {:>9} {:>8}  {what}\n",
            cell(change.before),
            cell(change.after),
            format!("{sign}{delta}"),
            format!("±{}", cell(change.margin())),
            growth(change),
        )
    };
    let rows = diff.rows();
    let shown = rows.iter().filter(|row| options.noise || !row.is_noise);
    let mut text =
        format!("{:>9} {:>9} {:>10} {:>9} {:>8}\n", "BEFORE", "AFTER", "CHANGE", "95 %", "%");
    text += &line(&whole, "all");
    text += "\nSELF, by function:\n";
    for row in shown.take(options.rows.unwrap_or(usize::MAX)) {
        let mark = if row.is_noise { "  (noise)" } else { "" };
        // What has changed only in what it calls is told by that.
        text += &line(&row.own, &format!("{}{mark}", printable(&row.name)));
    }
    let changed = rows.iter().filter(|row| !row.is_noise).count();
    let _ = writeln!(
        text,
        "\nchanged, themselves or in what they call: {changed} of {} functions; the rest has not, or by no more than \
         chance explains",
        rows.len()
    );
    text
}

fn growth(change: &Change) -> String {
    let growth = change.growth();
    if growth.is_infinite() { "new".into() } else { format!("{:+.1}%", 100.0 * growth) }
}

/// A line per stack of either: `outermost;…;innermost BEFORE AFTER`, as difffolded.pl and inferno-diff-folded write it.
#[must_use]
pub fn folded(before: &Imported, after: &Imported) -> String {
    let mut stacks: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for (profile, is_after) in [(before, false), (after, true)] {
        for stack in &profile.stacks {
            let value = stack.values.get(profile.default_value).copied().unwrap_or(0);
            let (first, second) = stacks.entry(name(profile, stack)).or_default();
            let sum = if is_after { second } else { first };
            *sum = sum.saturating_add(value);
        }
    }
    let mut text = String::new();
    for (name, (before, after)) in stacks {
        let _ = writeln!(text, "{name} {before} {after}");
    }
    text
}

fn name(profile: &Imported, stack: &Stack) -> String {
    // A semicolon ends a frame and a line break a stack.
    let clean = |name: &str| printable(name).replace(';', ":");
    let process = profile.process_of(stack);
    let mut names: Vec<String> =
        profile.frames_of(stack).rev().map(|frame| clean(frame.shown_name())).collect();
    if names.first().is_none_or(|first| *first != clean(&process)) {
        names.insert(0, clean(&process));
    }
    names.join(";")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Limits, folded as lines};

    fn read(text: &str) -> Imported {
        lines::read(text.as_bytes(), &Limits::default()).unwrap()
    }

    #[test]
    fn a_change_is_shown_with_its_margin_and_noise_is_counted() {
        let before = read("a;main;parse 10000\na;main;write 4000\n");
        let after = read("a;main;parse 12000\na;main;write 4030\n");
        let diff = Diff::new(&before, &after, Measure::Absolute);
        let text = table(&diff, &before, Options::default());
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let row = text.lines().find(|line| line.ends_with("parse")).unwrap();
        assert_eq!(words(row), ["10000", "12000", "+2000", "±291", "+20.0%", "parse"]);
        assert!(!text.contains("write") && text.contains(": 3 of 4 functions;"), "{text}");
        let all = table(&diff, &before, Options { noise: true, ..Options::default() });
        assert!(all.contains("write  (noise)"), "{all}");
        let share = Diff::new(&before, &after, Measure::Share);
        let text =
            table(&share, &before, Options { measure: Measure::Share, ..Options::default() });
        assert!(text.contains("   71.43%    74.86%     +3.43%"), "{text}");
    }

    #[test]
    fn folded_stacks_have_both_counts() {
        let (before, after) = (read("a;b 1\na;c 2\n"), read("a;b 3\nd 4\n"));
        assert_eq!(folded(&before, &after), "a;b 1 3\na;c 2 0\nd 0 4\n");
    }
}
