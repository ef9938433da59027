//! A profile that was read, as text for people: the hottest functions, modules or processes, or a tree of calls.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Write as _,
};

use regex::Regex;

use crate::{
    import::{Frame, Imported, Stack, UNKNOWN, ValueType},
    printable::printable,
};

/// Calls with a smaller share are left out of a tree.
const MIN_SHARE: f64 = 0.005;

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
    /// Only stacks with a function whose name matches.
    pub focus: Option<Regex>,
    /// No stacks with a function whose name matches.
    pub ignore: Option<Regex>,
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
        selected.tree(&mut text);
    } else {
        selected.table(&mut text);
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

/// What a row stands for.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Row {
    name: String,
    module: String,
}

#[derive(Clone, Copy, Default)]
struct Heat {
    own: i128,
    total: i128,
}

impl<'a> Selected<'a> {
    fn of(profile: &'a Imported, options: &'a Options) -> Self {
        let matches = |pattern: &Regex, stack: &Stack| {
            profile.frames_of(stack).any(|frame| pattern.is_match(frame.shown_name()))
        };
        let value =
            |stack: &Stack| stack.values.get(profile.default_value).copied().map_or(0, i128::from);
        let is_shown = |stack: &&Stack| {
            options.focus.as_ref().is_none_or(|it| matches(it, stack))
                && !options.ignore.as_ref().is_some_and(|it| matches(it, stack))
        };
        let shown = profile.stacks.iter().filter(is_shown);
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

    fn row(&self, frame: &Frame) -> Row {
        let module = module(frame).to_owned();
        match self.options.by {
            By::Module => Row { name: module, module: String::new() },
            By::Function | By::Process => Row { name: frame.shown_name().to_owned(), module },
        }
    }

    fn table(&self, text: &mut String) {
        let mut heat: HashMap<Row, Heat> = HashMap::new();
        for (stack, value) in &self.stacks {
            if self.options.by == By::Process {
                let name = self.profile.process_of(stack);
                let heat = heat.entry(Row { name, module: String::new() }).or_default();
                heat.own += value;
                heat.total += value;
                continue;
            }
            // A function that calls itself is on the stack once.
            let mut seen = HashSet::new();
            for (depth, frame) in self.profile.frames_of(stack).enumerate() {
                let row = self.row(frame);
                let heat = heat.entry(row.clone()).or_default();
                heat.own += if depth == 0 { *value } else { 0 };
                heat.total += if seen.insert(row) { *value } else { 0 };
            }
        }
        let mut heat: Vec<(Row, Heat)> = heat.into_iter().collect();
        heat.sort_by(|(row_a, a), (row_b, b)| {
            (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| row_a.cmp(row_b))
        });
        let what = match self.options.by {
            By::Function => "FUNCTION  MODULE",
            By::Module => "MODULE",
            By::Process => "PROCESS",
        };
        let _ = writeln!(text, "{:>9} {:>6} {:>9} {:>6}  {what}", "SELF", "%", "TOTAL", "%");
        let rows = self.options.rows.unwrap_or(usize::MAX);
        let width = self.options.columns.map(|columns| columns.saturating_sub(36).max(20));
        for (row, Heat { own, total }) in heat.iter().take(rows) {
            let line = if row.module.is_empty() {
                elided(&printable(&row.name), width)
            } else {
                let module = printable(&row.module);
                let file = module.rsplit('/').next().unwrap_or(&module);
                let left = width.map(|it| it.saturating_sub(file.len() + 2).max(20));
                // Where there is room for it, the whole path.
                let file = if width.is_some() { file } else { &module };
                format!("{}  {file}", elided(&printable(&row.name), left))
            };
            let (own_share, total_share) = (share(*own, self.total), share(*total, self.total));
            let (own, total) = (self.cell(*own), self.cell(*total));
            let _ = writeln!(text, "{own:>9} {own_share:>6} {total:>9} {total_share:>6}  {line}");
        }
        if heat.len() > rows {
            let _ = writeln!(text, "{:>33}  {} more", "", heat.len() - rows);
        }
    }

    fn tree(&self, text: &mut String) {
        let mut root = Call::default();
        for (stack, value) in &self.stacks {
            root.total += value;
            let mut call = &mut root;
            let process = self.profile.frames_of(stack).next_back().map(Frame::shown_name);
            let named = self.profile.process_of(stack);
            let begin = (process != Some(&*named)).then_some(named);
            let frames = self.profile.frames_of(stack).rev().map(|it| it.shown_name().to_owned());
            for name in begin.into_iter().chain(frames) {
                call = call.callees.entry(name).or_default();
                call.total += value;
            }
        }
        let _ = writeln!(text, "{:>9} {:>6}  CALLS", "TOTAL", "%");
        let mut rows = self.options.rows.unwrap_or(usize::MAX);
        let left_out = self.calls(text, &root, &mut rows);
        if left_out > 0 {
            let percent = 100.0 * MIN_SHARE;
            let _ =
                writeln!(text, "{left_out} calls are left out: below {percent} %, or beyond --top");
        }
    }

    /// Writes the calls below one, hottest first; how many were left out. It keeps a stack of its own: stacks are as
    /// deep as their writer wants.
    fn calls(&self, text: &mut String, root: &Call, rows: &mut usize) -> usize {
        let mut waiting = Vec::new();
        let mut left_out = self.push_calls(&mut waiting, root, 0);
        while let Some((name, call, depth)) = waiting.pop() {
            let Some(left) = rows.checked_sub(1) else {
                left_out += 1;
                continue;
            };
            *rows = left;
            let width = self.options.columns.map(|it| it.saturating_sub(18 + 2 * depth).max(20));
            let name = elided(&printable(name), width);
            let (total, share) = (self.cell(call.total), share(call.total, self.total));
            let _ = writeln!(text, "{total:>9} {share:>6}  {:1$}{name}", "", 2 * depth);
            left_out += self.push_calls(&mut waiting, call, depth);
        }
        left_out
    }

    /// Puts what a function calls on a stack, hottest last; how many were left out.
    fn push_calls<'b>(
        &self,
        waiting: &mut Vec<(&'b str, &'b Call, usize)>,
        call: &'b Call,
        depth: usize,
    ) -> usize {
        let is_shown = |it: &Call| it.total as f64 >= self.total as f64 * MIN_SHARE;
        let callees = call.callees.iter().filter(|(_, it)| is_shown(it));
        let mut callees: Vec<_> = callees.map(|(name, it)| (name.as_str(), it)).collect();
        callees.sort_by(|(name_a, a), (name_b, b)| {
            a.total.cmp(&b.total).then_with(|| name_b.cmp(name_a))
        });
        // A call that is the only one is no branch.
        let depth = depth + usize::from(callees.len() > 1);
        let shown = callees.len();
        waiting.extend(callees.into_iter().map(|(name, it)| (name, it, depth)));
        call.callees.len() - shown
    }
}

/// A function as it was called by a chain of others.
#[derive(Default)]
struct Call {
    total: i128,
    callees: BTreeMap<String, Call>,
}

/// Without recursion, which a deep stack would overflow.
impl Drop for Call {
    fn drop(&mut self) {
        let mut waiting: Vec<Self> = std::mem::take(&mut self.callees).into_values().collect();
        while let Some(mut call) = waiting.pop() {
            waiting.extend(std::mem::take(&mut call.callees).into_values());
        }
    }
}

fn module(frame: &Frame) -> &str {
    let module = frame.module.as_deref().filter(|module| !module.is_empty());
    module.unwrap_or(if frame.is_kernel { "[kernel]" } else { UNKNOWN })
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
    use super::*;
    use crate::import::{Limits, folded};

    const STACKS: &[u8] =
        b"web;main;serve;parse 30\nweb;main;serve;write_[k] 10\nweb;main;serve;serve 40\n\
        db;main;scan 20\n";

    fn shown(options: &Options) -> Vec<String> {
        let read = folded::read(STACKS, &Limits::default()).unwrap();
        text(&read, options).lines().map(str::to_owned).collect()
    }

    fn pattern(text: &str) -> Regex {
        Regex::new(text).unwrap()
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
        let lines = shown(&Options { focus: Some(pattern("^serve$")), ..Options::default() });
        assert_eq!(lines[0], "samples: 80 of 100 (80.0%)");
        let lines = shown(&Options { ignore: Some(pattern("serve")), ..Options::default() });
        assert_eq!(lines[0], "samples: 20 of 100 (20.0%)");
        let lines = shown(&Options { focus: Some(pattern("nothing")), ..Options::default() });
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
