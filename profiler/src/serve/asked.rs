//! What a page asks for, by the query of an address.

use percent_encoding::percent_decode_str;
use profiler_profile::live::{By, Range};

/// Which time of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Time {
    /// The last seconds.
    #[default]
    Window,
    /// All since the start.
    Start,
    /// These slices.
    Range(Range),
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) time: Time,
    /// Not that time itself, but how it differs from these slices, of one source.
    pub(super) before: Option<Range>,
    /// Samples of this source only.
    pub(super) source: Option<usize>,
    /// Of this process.
    pub(super) process: Option<u32>,
    /// Of this thread.
    pub(super) thread: Option<u32>,
    /// Whose strips.
    pub(super) by: By,
    /// From this slice on.
    pub(super) since: u64,
}

impl Asked {
    /// What a query says; `None` if that makes no sense.
    pub(super) fn parse(query: &str) -> Option<Self> {
        let mut asked = Self {
            time: Time::default(),
            before: None,
            source: None,
            process: None,
            thread: None,
            by: By::Cpu,
            since: 0,
        };
        let (mut first, mut end) = (None, None);
        let (mut before_first, mut before_end) = (None, None);
        for (name, value) in query.split('&').filter(|it| !it.is_empty()).map(pair) {
            match name {
                "span" => {
                    asked.time = match value {
                        "window" => Time::Window,
                        "start" => Time::Start,
                        _ => return None,
                    }
                }
                "by" => {
                    asked.by = match value {
                        "cpu" => By::Cpu,
                        "process" => By::Process,
                        "thread" => By::Thread,
                        _ => return None,
                    }
                }
                "first" => first = Some(value.parse().ok()?),
                "end" => end = Some(value.parse().ok()?),
                "before_first" => before_first = Some(value.parse().ok()?),
                "before_end" => before_end = Some(value.parse().ok()?),
                "since" => asked.since = value.parse().ok()?,
                "source" => asked.source = Some(value.parse().ok()?),
                "pid" => asked.process = Some(value.parse().ok()?),
                "tid" => asked.thread = Some(value.parse().ok()?),
                _ => return None,
            }
        }
        let is_half = |first: Option<u64>, end: Option<u64>| first.is_some() != end.is_some();
        if is_half(first, end) || is_half(before_first, before_end) {
            return None;
        }
        let range = |(first, end)| Range { first, end };
        asked.before = before_first.zip(before_end).map(range);
        if let Some(range) = first.zip(end).map(range) {
            asked.time = Time::Range(range);
        }
        Some(asked)
    }
}

/// A function, as tables name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// The file that it is in, or what is shown in the place of that.
    pub(super) module: String,
}

impl Function {
    /// That of a query, and what else that asks for; `None` if that makes no sense.
    pub(super) fn parse(query: &str) -> Option<(Self, Asked)> {
        let text = |name| Some(percent_decode_str(value(query, name)?).decode_utf8().ok()?.into());
        let function = Self { name: text("function")?, module: text("module")? };
        let is_of_it = |it: &&str| ["function", "module"].contains(&pair(it).0);
        let rest: Vec<&str> = query.split('&').filter(|it| !is_of_it(it)).collect();
        Some((function, Asked::parse(&rest.join("&"))?))
    }
}

/// What stands in a query under this name, once.
pub(super) fn value<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut found = query.split('&').map(pair).filter(|(it, _)| *it == name);
    let (_, value) = found.next()?;
    found.next().is_none().then_some(value)
}

fn pair(text: &str) -> (&str, &str) {
    text.split_once('=').unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_query_says_what_is_wanted() {
        let none = Asked::parse("").unwrap();
        assert_eq!((none.time, none.by, none.since), (Time::Window, By::Cpu, 0));
        let asked = Asked::parse("first=3&end=9&source=1&pid=812&tid=813").unwrap();
        assert_eq!(asked.time, Time::Range(Range { first: 3, end: 9 }));
        assert_eq!((asked.source, asked.process, asked.thread), (Some(1), Some(812), Some(813)));
        assert_eq!(Asked::parse("span=start").unwrap().time, Time::Start);
        let strips = Asked::parse("by=thread&since=70").unwrap();
        assert_eq!((strips.by, strips.since), (By::Thread, 70));
        let compared = Asked::parse("first=3&end=9&before_first=0&before_end=2").unwrap();
        assert_eq!(compared.time, Time::Range(Range { first: 3, end: 9 }));
        assert_eq!(compared.before, Some(Range { first: 0, end: 2 }));
        for bad in [
            "before_first=1",
            "before_end=1&first=1&end=2",
            "span=all",
            "first=1",
            "first=-1&end=2",
            "pid=x",
            "what=1",
            "by=",
            "since=1e3",
        ] {
            assert_eq!(Asked::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_function_is_named_by_text_of_any_kind() {
        let query = "span=start&function=a%3A%3Ab%3C%26%3E&module=/bin/a%20b&pid=7";
        let (function, asked) = Function::parse(query).unwrap();
        assert_eq!((&*function.name, &*function.module), ("a::b<&>", "/bin/a b"));
        assert_eq!((asked.time, asked.process), (Time::Start, Some(7)));
        for bad in [
            "function=a",
            "function=a&module=b&module=c",
            "function=%ff&module=",
            "function=a&module=b&x=1",
        ] {
            assert_eq!(Function::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_value_stands_there_once() {
        assert_eq!(value("a=1&b=2", "b"), Some("2"));
        assert_eq!((value("a=1&a=2", "a"), value("ab=1", "a"), value("", "a")), (None, None, None));
    }

    proptest! {
        #[test]
        fn any_query_is_understood_or_not(query in "[a-z0-9=&%.-]{0,60}") {
            let _ = Asked::parse(&query);
        }
    }
}
