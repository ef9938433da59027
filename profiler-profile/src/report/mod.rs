//! A profile that was read, as text for people: the hottest functions, modules or processes, or a tree of calls.

mod calls;
mod row;
pub mod table;

use std::fmt::Write as _;

use self::{
    row::{Code, Who},
    table::Table,
};
use crate::{
    import::{Filter, Imported, LabelValue, Stack, ValueType},
    printable::printable,
};

/// What is shown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the rows stand for, how many there are at most, and how wide. A tree has rows of its own.
    pub table: table::Options,
    /// A tree of calls in place of a table.
    pub tree: bool,
    /// Which stacks are counted.
    pub filter: Filter,
}

/// The text.
///
/// ```
/// use profiler_profile::{import, report::{self, Options}};
/// let read = import::folded::read(b"a;main;work 3\na;main 1\n", &import::Limits::default())?;
/// let text = report::text(&read, &Options::default());
/// assert!(text.contains("        3  75.0%         3  75.0%  work"), "{text}");
/// # Ok::<_, import::Error>(())
/// ```
#[must_use]
pub fn text(profile: &Imported, options: &Options) -> String {
    let selected = Selected::of(profile, options);
    let mut text = selected.heading();
    if options.tree {
        calls::write(&selected, &mut text);
    } else {
        text += &selected.table();
    }
    text
}

/// The stacks of a profile that are shown.
struct Selected<'a> {
    profile: &'a Imported,
    options: &'a Options,
    stacks: Vec<(&'a Stack, i128)>,
    /// Of what is shown, and of the profile.
    total: i128,
    of: i128,
}

impl<'a> Selected<'a> {
    fn of(profile: &'a Imported, options: &'a Options) -> Self {
        let value =
            |stack: &Stack| stack.values.get(profile.default_value).copied().map_or(0, i128::from);
        let shown = options.filter.stacks(profile);
        let stacks: Vec<_> = shown.map(|stack| (stack, value(stack))).collect();
        let total = stacks.iter().map(|(_, value)| value).sum();
        let of = profile.stacks.iter().map(value).sum();
        Self { profile, options, stacks, total, of }
    }

    /// A table of its stacks.
    fn table(&self) -> String {
        let mut table = Table::new(self.options.table.by);
        for (stack, value) in &self.stacks {
            let frames = self.profile.frames_of(stack).map(Code::of_imported);
            table.add(&self.who(stack), frames, *value);
        }
        let mut text = table.text(self.options.table, |value| self.cell(value));
        match table.left_out(self.options.table) {
            0 => {}
            more => {
                let _ = writeln!(text, "{:>35}{more} more", "");
            }
        }
        text
    }

    /// Whose a stack is, as its labels say.
    fn who(&self, stack: &'a Stack) -> Who<'a> {
        let number = |key: &str| match stack.label(key) {
            Some(LabelValue::Number(number)) => u32::try_from(*number).ok(),
            _ => None,
        };
        let text = |key: &str| stack.label(key).map(LabelValue::text);
        let process = self.profile.process_of(stack);
        Who {
            thread: text("comm").unwrap_or_default(),
            process,
            pid: number("pid"),
            tid: number("tid"),
            container: text("container"),
            service: text("service"),
        }
    }

    fn value_type(&self) -> Option<&ValueType> {
        self.profile.value_types.get(self.profile.default_value)
    }

    /// What was sampled, and how much of it is shown.
    fn heading(&self) -> String {
        let what = self.value_type().map_or("values", |it| &it.name);
        let mut text = format!("{}: {}", printable(what), self.shown(self.total));
        if self.total != self.of {
            let _ = write!(text, " of {} ({})", self.shown(self.of), share(self.total, self.of));
        }
        for comment in &self.profile.comments {
            let _ = write!(text, "\n{}", printable(comment));
        }
        text + "\n\n"
    }

    /// A value with its unit.
    fn shown(&self, value: i128) -> String {
        match self.value_type().map(|it| &*it.unit) {
            Some("nanoseconds") => format!("{:.2} s", value as f64 / 1e9),
            Some("count") | None => value.to_string(),
            Some(unit) => format!("{value} {}", printable(unit)),
        }
    }

    /// A value in a column.
    fn cell(&self, value: i128) -> String {
        match self.value_type().map(|it| &*it.unit) {
            Some("nanoseconds") => format!("{:.3}s", value as f64 / 1e9),
            _ => value.to_string(),
        }
    }
}

/// The places of a stack's frames in [`Imported::frames`], innermost first.
fn places(stack: &Stack) -> impl DoubleEndedIterator<Item = usize> {
    stack.frames.iter().filter_map(|place| usize::try_from(*place).ok())
}

fn share(value: i128, of: i128) -> String {
    if of == 0 {
        return "0.0%".into();
    }
    format!("{:.1}%", 100.0 * value as f64 / of as f64)
}

/// A name that fits, with its beginning and its end.
fn elided(name: &str, width: Option<usize>) -> String {
    let length = name.chars().count();
    let Some(width) = width.filter(|width| *width > 2 && length > *width) else {
        return name.to_owned();
    };
    let front = (width - 1) / 2;
    let back = width - 1 - front;
    let begin: String = name.chars().take(front).collect();
    let end: String = name.chars().skip(length - back).collect();
    format!("{begin}…{end}")
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::{table::By, *};
    use crate::import::{Limits, folded};

    const STACKS: &[u8] =
        b"web;main;serve;parse 30\nweb;main;serve;write_[k] 10\nweb;main;serve;serve 40\n\
        db;main;scan 20\n";

    fn shown(options: &Options) -> Vec<String> {
        let read = folded::read(STACKS, &Limits::default()).unwrap();
        text(&read, options).lines().map(str::to_owned).collect()
    }

    fn of_table(table: table::Options) -> Options {
        Options { table, ..Options::default() }
    }

    fn focus(text: &str) -> Options {
        let filter = Filter { focus: Some(Regex::new(text).unwrap()), ..Filter::default() };
        Options { filter, ..Options::default() }
    }

    #[test]
    fn functions_by_what_they_took_themselves() {
        let lines = shown(&of_table(table::Options { rows: Some(3), ..table::Options::default() }));
        assert_eq!(lines[0], "samples: 100");
        assert!(
            lines[3].starts_with("       40  40.0%        80  80.0%   12.5%  serve"),
            "{lines:#?}"
        );
        assert!(
            lines[4].starts_with("       30  30.0%        30  30.0%    0.0%  parse"),
            "{lines:#?}"
        );
        assert!(
            lines[5].starts_with("       20  20.0%        20  20.0%    0.0%  scan"),
            "{lines:#?}"
        );
        assert!(lines[6].trim().ends_with(" more"), "{lines:#?}");
    }

    #[test]
    fn processes_are_the_roots_of_folded_stacks() {
        let lines =
            shown(&of_table(table::Options { by: By::Process, ..table::Options::default() }));
        let rows: Vec<_> = lines.iter().skip(3).map(|it| it.trim()).collect();
        assert_eq!(
            rows,
            ["80  80.0%        80  80.0%   12.5%  web", "20  20.0%        20  20.0%    0.0%  db"]
        );
    }

    #[test]
    fn a_focus_and_what_is_ignored_say_how_much_is_left() {
        let lines = shown(&focus("^serve$"));
        assert_eq!(lines[0], "samples: 80 of 100 (80.0%)");
        let filter = Filter { ignore: Some(Regex::new("serve").unwrap()), ..Filter::default() };
        let lines = shown(&Options { filter, ..Options::default() });
        assert_eq!(lines[0], "samples: 20 of 100 (20.0%)");
        let lines = shown(&focus("nothing"));
        assert_eq!((&*lines[0], lines.len()), ("samples: 0 of 100 (0.0%)", 3));
    }

    #[test]
    fn a_tree_shows_who_calls_whom_and_indents_where_it_branches() {
        let lines = shown(&Options { tree: true, ..Options::default() });
        let rows: Vec<_> = lines.iter().skip(3).map(|it| it.get(18..).unwrap()).collect();
        let expected = [
            "  web",
            "  main",
            "  serve",
            "    serve",
            "    parse",
            "    write",
            "  db",
            "  main",
            "  scan",
        ];
        assert_eq!(rows, expected, "{lines:#?}");
    }

    #[test]
    fn names_are_elided_in_the_middle() {
        assert_eq!(elided("abcdefghij", Some(5)), "ab…ij");
        assert_eq!(elided("abcde", Some(5)), "abcde");
        assert_eq!(elided("äöüäöü", Some(4)), "ä…öü");
    }

    #[test]
    fn a_stack_may_be_deep() {
        let deep = [b"a;".repeat(200_000), b"b 1\n".to_vec()].concat();
        let read = folded::read(&deep, &Limits::default()).unwrap();
        let text = text(&read, &Options { tree: true, ..Options::default() });
        assert!(text.lines().count() > 200_000, "{}", text.len());
    }
}
