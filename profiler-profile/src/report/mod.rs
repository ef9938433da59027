//! A profile that was read, as text for people: the hottest functions, modules or processes, or a tree of calls.

mod calls;
mod table;

use std::fmt::Write as _;

use crate::{
    import::{Filter, Imported, Stack, ValueType},
    printable::printable,
};

/// What the rows of a table stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Functions, those of one name in two files apart.
    #[default]
    Function,
    /// The files that the code is in.
    Module,
    /// Processes, by name.
    Process,
}

/// What is shown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the rows of the table stand for.
    pub by: By,
    /// A tree of calls in place of a table.
    pub tree: bool,
    /// How many rows at most; all if `None`.
    pub rows: Option<usize>,
    /// Which stacks are counted.
    pub filter: Filter,
    /// How wide a line may be; names are elided in the middle.
    pub columns: Option<usize>,
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
        table::write(&selected, &mut text);
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

    use super::*;
    use crate::import::{Limits, folded};

    const STACKS: &[u8] =
        b"web;main;serve;parse 30\nweb;main;serve;write_[k] 10\nweb;main;serve;serve 40\n\
        db;main;scan 20\n";

    fn shown(options: &Options) -> Vec<String> {
        let read = folded::read(STACKS, &Limits::default()).unwrap();
        text(&read, options).lines().map(str::to_owned).collect()
    }

    fn focus(text: &str) -> Options {
        let filter = Filter { focus: Some(Regex::new(text).unwrap()), ..Filter::default() };
        Options { filter, ..Options::default() }
    }

    #[test]
    fn functions_by_what_they_took_themselves() {
        let lines = shown(&Options { rows: Some(3), ..Options::default() });
        assert_eq!(lines[0], "samples: 100");
        assert!(lines[3].starts_with("       40  40.0%        80  80.0%  serve"), "{lines:#?}");
        assert!(lines[4].starts_with("       30  30.0%        30  30.0%  parse"), "{lines:#?}");
        assert!(lines[5].starts_with("       20  20.0%        20  20.0%  scan"), "{lines:#?}");
        assert!(lines[6].trim().ends_with(" more"), "{lines:#?}");
    }

    #[test]
    fn processes_are_the_roots_of_folded_stacks() {
        let lines = shown(&Options { by: By::Process, ..Options::default() });
        let rows: Vec<_> = lines.iter().skip(3).map(|it| it.trim()).collect();
        assert_eq!(rows, ["80  80.0%        80  80.0%  web", "20  20.0%        20  20.0%  db"]);
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
