//! What a filter of hits means for tracepoints of this machine.

use profiler_common::hit_filter::{self, Compare, MAX_TESTS, UNWANTED, WANTED};

use super::{
    Machine, ResolveError,
    files::malformed,
    format::{self, Field},
    tracefs::{Tracefs, Tracepoint},
};
use crate::{
    near::{did_you_mean, near},
    syntax::{
        Event, What,
        filter::{Filter, Operator, Test, Value},
    },
};

/// A filter for the eBPF program: see [`profiler_common::hit_filter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitFilter {
    /// The tests. Of those of text, `value` says which of the texts is meant.
    pub tests: Vec<hit_filter::Test>,
    /// What texts are compared with.
    pub texts: Vec<Text>,
}

/// What a text has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// Exactly this.
    Exactly(String),
    /// What matches this pattern, in which `*`, `?` and `[a-z]` are as in a shell.
    Like(String),
}

/// Why a filter can't be had. One line, for whoever typed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The event is no tracepoint.
    #[error("only hits of tracepoints have fields, and `{event}` is none")]
    NoTracepoint {
        /// The event.
        event: String,
    },
    /// The tracepoint can't be read.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// There is no such field.
    #[error("column {column}: `{tracepoint}` has no field `{field}`{}; it has {}", did_you_mean(near), known.join(", "))]
    UnknownField {
        /// Where it stands.
        column: usize,
        /// The tracepoint.
        tracepoint: String,
        /// As it was typed.
        field: String,
        /// What may have been meant.
        near: Vec<String>,
        /// Those that there are.
        known: Vec<String>,
    },
    /// A field that can't be compared.
    #[error("column {column}: `{field}` of `{tracepoint}` can't be compared: {why}")]
    NotComparable {
        /// Where it stands.
        column: usize,
        /// The tracepoint.
        tracepoint: String,
        /// The field.
        field: String,
        /// What it is.
        why: &'static str,
    },
    /// A number for a text, or the other way round.
    #[error("column {column}: `{field}` is {is}")]
    WrongType {
        /// Where it stands.
        column: usize,
        /// The field.
        field: String,
        /// What it is.
        is: &'static str,
    },
    /// A number that the field never has.
    #[error("column {column}: `{field}` has {bytes} byte{}, so it is never {value}", if *bytes == 1 { "" } else { "s" })]
    TooWide {
        /// Where it stands.
        column: usize,
        /// The field.
        field: String,
        /// How large it is.
        bytes: u16,
        /// As it was typed.
        value: String,
    },
    /// Tracepoints of a pattern that have the field at different places.
    #[error(
        "column {column}: `{field}` is not the same in `{one}` and `{other}`: give them as events of \
         their own"
    )]
    Differs {
        /// Where it stands.
        column: usize,
        /// The field.
        field: String,
        /// A tracepoint.
        one: String,
        /// Another.
        other: String,
    },
    /// More comparisons than a program makes at each hit.
    #[error("there are {found} comparisons, and at most {MAX_TESTS} can be made at each hit")]
    TooLong {
        /// How many there are.
        found: usize,
    },
}

impl Machine {
    /// What the filter means for this event, which has to be a tracepoint, or a pattern of some that all have the same
    /// fields.
    pub fn hit_filter(&self, event: &Event, filter: &Filter) -> Result<HitFilter, FilterError> {
        let What::Tracepoint { system, name } = &event.what else {
            return Err(FilterError::NoTracepoint { event: event.to_string() });
        };
        let tracefs = Tracefs::find(&self.root)?;
        let mut filters = Vec::new();
        for tracepoint in tracefs.matching(system, name)? {
            let fields = fields(&tracefs, &tracepoint)?;
            filters.push((tracepoint.full_name(), compile(&tracepoint, &fields, filter)?));
        }
        let mut filters = filters.into_iter();
        // At least one matches.
        let Some((one, first)) = filters.next() else {
            let name = format!("{system}:{name}");
            return Err(ResolveError::UnknownTracepoint { name, near: Vec::new() }.into());
        };
        for (other, filter_of_other) in filters {
            let mut pairs = first.tests.iter().zip(&filter_of_other.tests).zip(filter.tests());
            if let Some((_, test)) = pairs.find(|((one, other), _)| one != other) {
                let (column, field) = (test.column, test.field.clone());
                return Err(FilterError::Differs { column, field, one, other });
            }
        }
        Ok(first)
    }
}

fn fields(tracefs: &Tracefs, tracepoint: &Tracepoint) -> Result<Vec<Field>, ResolveError> {
    let (path, text) = tracefs.format(tracepoint)?;
    let fields = format::fields(&tracepoint.system, &text);
    if fields.is_empty() { Err(malformed(&path, "it describes no fields")) } else { Ok(fields) }
}

fn compile(
    tracepoint: &Tracepoint,
    fields: &[Field],
    filter: &Filter,
) -> Result<HitFilter, FilterError> {
    let found = filter.tests().len();
    if found > MAX_TESTS {
        return Err(FilterError::TooLong { found });
    }
    let compiled = HitFilter { tests: Vec::new(), texts: Vec::new() };
    let mut compiler = Compiler { tracepoint, fields, compiled };
    compiler.add(filter, WANTED, UNWANTED)?;
    Ok(compiler.compiled)
}

struct Compiler<'a> {
    tracepoint: &'a Tracepoint,
    fields: &'a [Field],
    compiled: HitFilter,
}

impl Compiler<'_> {
    /// Adds tests that lead to one of two places. The tests are in the order of the text, so the place of each is known
    /// beforehand.
    fn add(&mut self, filter: &Filter, if_true: u8, if_false: u8) -> Result<(), FilterError> {
        let (all, is_any) = match filter {
            Filter::Test(test) => {
                let test = self.test(test, if_true, if_false)?;
                self.compiled.tests.push(test);
                return Ok(());
            }
            Filter::Not(inner) => return self.add(inner, if_false, if_true),
            Filter::All(all) => (all, false),
            Filter::Any(all) => (all, true),
        };
        for (nth, one) in all.iter().enumerate() {
            let behind = self.compiled.tests.len() + one.tests().len();
            // There are at most `MAX_TESTS`.
            let next = u8::try_from(behind).unwrap_or(UNWANTED);
            let is_last = nth + 1 == all.len();
            match (is_last, is_any) {
                (true, _) => self.add(one, if_true, if_false)?,
                (false, true) => self.add(one, if_true, next)?,
                (false, false) => self.add(one, next, if_false)?,
            }
        }
        Ok(())
    }

    fn test(
        &mut self,
        test: &Test,
        if_true: u8,
        if_false: u8,
    ) -> Result<hit_filter::Test, FilterError> {
        let Test { field: name, operator, value, column } = test;
        let (column, field) = (*column, self.field(test)?);
        let kind = field.kind.map_err(|why| FilterError::NotComparable {
            column,
            tracepoint: self.tracepoint.full_name(),
            field: name.clone(),
            why,
        })?;
        let wrong = |is| Err(FilterError::WrongType { column, field: name.clone(), is });
        let number = match (value, kind.is_text()) {
            (Value::Text(text), true) => self.text(text, *operator),
            (Value::Number { .. }, true) => {
                return wrong("text: put what it is compared with in quotes");
            }
            (Value::Text(_), false) => return wrong("a number, and is compared with one"),
            (&Value::Number { bits, negative }, false) => {
                if !fits(kind, field.bytes, bits, negative, *operator) {
                    return Err(FilterError::TooWide {
                        column,
                        field: name.clone(),
                        bytes: field.bytes,
                        value: value.to_string(),
                    });
                }
                bits
            }
        };
        let (compare, is_negated) = match operator {
            Operator::Equal | Operator::Matches => (Compare::Equal, false),
            Operator::NotEqual => (Compare::Equal, true),
            Operator::Less => (Compare::Less, false),
            Operator::AtLeast => (Compare::Less, true),
            Operator::AtMost => (Compare::AtMost, false),
            Operator::Greater => (Compare::AtMost, true),
            Operator::HasBits => (Compare::HasBits, false),
        };
        let (if_true, if_false) =
            if is_negated { (if_false, if_true) } else { (if_true, if_false) };
        Ok(hit_filter::Test {
            value: number,
            offset: field.offset,
            bytes: field.bytes,
            field: kind as u8,
            compare: compare as u8,
            if_true,
            if_false,
        })
    }

    /// The tracepoint's own field of that name, or what every hit has.
    fn field(&self, test: &Test) -> Result<Field, FilterError> {
        let of_hits =
            |kind, bytes| Field { name: test.field.clone(), offset: 0, bytes, kind: Ok(kind) };
        let is_own = |it: &&Field| it.name == test.field && it.name != "common_pid";
        if let Some(own) = self.fields.iter().find(is_own) {
            return Ok(own.clone());
        }
        match test.field.as_str() {
            "common_pid" => Ok(of_hits(hit_filter::Field::Tid, 4)),
            "cpu" | "CPU" => Ok(of_hits(hit_filter::Field::Cpu, 4)),
            "comm" | "COMM" => Ok(of_hits(hit_filter::Field::Comm, 16)),
            name => {
                let is_comparable = |it: &&Field| it.kind.is_ok();
                let own = self.fields.iter().filter(is_comparable).map(|it| it.name.clone());
                let of_all = ["common_pid", "cpu", "comm"].map(str::to_owned);
                let mut known: Vec<String> = own.chain(of_all).collect();
                known.dedup();
                Err(FilterError::UnknownField {
                    column: test.column,
                    tracepoint: self.tracepoint.full_name(),
                    field: name.to_owned(),
                    near: near(name, known.iter().cloned()),
                    known,
                })
            }
        }
    }

    /// The number of this text.
    fn text(&mut self, text: &str, operator: Operator) -> u64 {
        let is_pattern = operator == Operator::Matches;
        let wanted = if is_pattern { Text::Like(text.into()) } else { Text::Exactly(text.into()) };
        let texts = &mut self.compiled.texts;
        let known = texts.iter().position(|it| *it == wanted);
        let at = known.unwrap_or_else(|| {
            texts.push(wanted);
            texts.len() - 1
        });
        at as u64
    }
}

/// Whether a field of this size can have the number.
fn fits(
    kind: hit_filter::Field,
    bytes: u16,
    bits: u64,
    negative: bool,
    operator: Operator,
) -> bool {
    use hit_filter::Field::{I8, I16, I32, I64};
    let width = u32::from(bytes).saturating_mul(8).clamp(8, 64);
    let largest = u64::MAX >> (64 - width);
    let has_sign = matches!(kind, I8 | I16 | I32 | I64);
    match (has_sign, negative) {
        (false, true) => false,
        (true, true) => bits.wrapping_neg() <= largest / 2 + 1,
        (true, false) if operator != Operator::HasBits => bits <= largest / 2,
        (_, false) => bits <= largest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Events, fixture::Fixture, parse, parse_filter, syntax::Item};
    use hit_filter::Field as Kind;

    const RENAME: &str = "name: task_rename\nformat:\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:char newcomm[16];\toffset:12;\tsize:16;\tsigned:0;\n\
        \tfield:u8 flags;\toffset:28;\tsize:1;\tsigned:0;\n\
        \tfield:u32 words[4];\toffset:32;\tsize:16;\tsigned:0;\n";
    const OTHER: &str = "format:\n\tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:u8 flags;\toffset:30;\tsize:1;\tsigned:0;\n";

    fn filter(event: &str, text: &str) -> Result<HitFilter, FilterError> {
        let fixture = Fixture::new()
            .tracepoint("task", "task_rename", 1)
            .file("sys/kernel/tracing/events/task/task_rename/format", RENAME)
            .tracepoint("task", "task_other", 2)
            .file("sys/kernel/tracing/events/task/task_other/format", OTHER);
        let Events(items) = parse(event).unwrap();
        let [Item::Event(event)] = items.as_slice() else { panic!("{items:?}") };
        fixture.machine().hit_filter(event, &parse_filter(text).unwrap())
    }

    /// What the program would decide of a task_rename with these values.
    fn decides(filter: &HitFilter, pid: i64, newcomm: &str, flags: u64) -> bool {
        let mut at = 0;
        loop {
            let test = &filter.tests[usize::from(at)];
            let is_so = match test.offset {
                8 => hit_filter::holds(test, pid.cast_unsigned()),
                28 => hit_filter::holds(test, flags),
                _ => match &filter.texts[usize::try_from(test.value).unwrap()] {
                    Text::Exactly(text) => text == newcomm,
                    Text::Like(pattern) => crate::glob::matches(pattern, newcomm),
                },
            };
            at = if is_so { test.if_true } else { test.if_false };
            if at >= UNWANTED {
                return at == WANTED;
            }
        }
    }

    #[test]
    fn a_filter_decides_as_it_reads() {
        for (text, meaning) in [
            ("pid == 5", (|pid, _, _| pid == 5) as fn(i64, &str, u64) -> bool),
            ("pid != 5", |pid, _, _| pid != 5),
            ("pid < 0", |pid, _, _| pid < 0),
            ("pid >= -1 && pid <= 5", |pid, _, _| (-1..=5).contains(&pid)),
            ("pid > 5 || flags & 6", |pid, _, flags| pid > 5 || flags & 6 != 0),
            ("!(pid == 5 || flags == 1)", |pid, _, flags| !(pid == 5 || flags == 1)),
            ("newcomm == a && flags < 4", |_, name, flags| name == "a" && flags < 4),
            ("newcomm != \"a\"", |_, name, _| name != "a"),
            ("newcomm ~ \"*b\" && !(pid == 5 && flags == 1) || flags == 7", |pid, name, flags| {
                name.ends_with('b') && !(pid == 5 && flags == 1) || flags == 7
            }),
            ("flags == 1 || pid == 5 && newcomm == a || newcomm ~ a*", |pid, name, flags| {
                flags == 1 || pid == 5 && name == "a" || name.starts_with('a')
            }),
        ] {
            let filter = filter("task:task_rename", text).unwrap();
            for pid in [-2, -1, 0, 5, 6] {
                for name in ["a", "ab", "b", ""] {
                    for flags in [0, 1, 4, 7] {
                        let expected = meaning(pid, name, flags);
                        let found = decides(&filter, pid, name, flags);
                        assert_eq!(found, expected, "{text}: {pid} {name} {flags}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_every_hit_has_can_be_asked_for() {
        let kinds = |text: &str| {
            let filter = filter("task:task_rename", text).unwrap();
            filter.tests.iter().map(|it| Kind::from_wire(it.field).unwrap()).collect::<Vec<_>>()
        };
        let all = kinds("common_pid == 1 && cpu < 2 && CPU == 0 && comm ~ a* && COMM == b");
        assert_eq!(all, [Kind::Tid, Kind::Cpu, Kind::Cpu, Kind::Comm, Kind::Comm]);
    }

    #[test]
    fn what_a_pattern_has_in_common_can_be_asked_for() {
        assert_eq!(filter("task:*", "pid == 1").unwrap().tests.len(), 1);
        let differs = filter("task:*", "pid == 1 && flags == 1").unwrap_err().to_string();
        assert_eq!(
            differs,
            "column 13: `flags` is not the same in `task:task_other` and `task:task_rename`: give them as \
             events of their own"
        );
        let lacks = filter("task:*", "newcomm == a").unwrap_err().to_string();
        assert!(lacks.contains("`task:task_other` has no field `newcomm`"), "{lacks}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            (
                "pidd == 1",
                "column 1: `task:task_rename` has no field `pidd`; did you mean pid?; it has pid, \
                 newcomm, flags, common_pid, cpu, comm",
            ),
            ("pid == 1 && newcomm == 5", "column 13: `newcomm` is text"),
            ("flags == a", "column 1: `flags` is a number"),
            ("words == 1", "`words` of `task:task_rename` can't be compared: it is a list"),
            ("flags == 256", "`flags` has 1 byte, so it is never 256"),
            ("flags == -1", "never -1"),
            ("pid < 2147483648", "never 2147483648"),
        ] {
            let error = filter("task:task_rename", text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let long = ["pid == 1"; 17].join(" || ");
        let error = filter("task:task_rename", &long).unwrap_err();
        assert_eq!(error, FilterError::TooLong { found: 17 });
        assert!(filter("task:task_rename", &["pid == 1"; 16].join(" || ")).is_ok());
        let error = filter("kprobe:f", "pid == 1").unwrap_err().to_string();
        assert_eq!(error, "only hits of tracepoints have fields, and `kprobe:f` is none");
    }
}
