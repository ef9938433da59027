//! The formats, by name.

use std::fmt;

use jiff::tz::TimeZone;

use super::{
    Exporter, WriteProfile, compact, firefox, folded, html, json, perf_script, pprof, root::Root,
    speedscope, svg, text,
};

/// Every format. A new one is a file with what writes it, its name among the modules, and its entry here.
pub const FORMATS: &[&Format] = &[
    &text::FORMAT,
    &json::FORMAT,
    &compact::FORMAT,
    &folded::FORMAT,
    &pprof::FORMAT,
    &svg::FORMAT,
    &html::FORMAT,
    &speedscope::FORMAT,
    &perf_script::FORMAT,
    &firefox::FORMAT,
];

/// A format that the user can choose.
pub struct Format {
    /// What it is called.
    pub name: &'static str,
    /// What it is, for the help.
    pub help: &'static str,
    /// How the names of its files end, without the first dot; what is looked for first stands first.
    pub extensions: &'static [&'static str],
    /// Whether it says who the process of a sample is.
    pub processes: Processes,
    /// Whether it is for programs only, and no terminal shows it.
    pub is_binary: bool,
    /// What opens its files, for people.
    pub viewers: &'static str,
    /// Whether the ledger is part of it.
    pub has_ledger: bool,
    /// What writes it, and when.
    pub export: Export,
}

/// What writes a format, and when.
#[derive(Clone, Copy)]
pub enum Export {
    /// Each sample as it comes.
    Stream(fn(Options) -> Box<dyn Exporter>),
    /// All of them at the end, each with its time, so that it keeps them until then.
    Timeline(fn(Options) -> Box<dyn Exporter>),
    /// The profile, at the end.
    Whole(WriteProfile),
}

/// Whether a format says who the process of a sample is: [`Metadata`](crate::process::Metadata).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// It has no place for that.
    Never,
    /// It has one, and grows by it.
    IfAsked,
    /// It has one, and what it has there is stored once a process.
    Always,
}

/// What is the same for all formats of a run. Each takes of it what it has a use for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether samples have a kernel stack.
    pub kernel_stacks: bool,
    /// Whether samples have a user stack.
    pub user_stacks: bool,
    /// Whether there are several events, which are then told apart.
    pub names_events: bool,
    /// When the run began; CLOCK_MONOTONIC, in nanoseconds.
    pub begun_ns: u64,
    /// What writes: the name and version of the program.
    pub producer: &'static str,
    /// By how many nanoseconds CLOCK_REALTIME is ahead of CLOCK_MONOTONIC.
    pub real_time_ahead_ns: i128,
    /// Where the time of day is that of.
    pub zone: TimeZone,
    /// Bytes of rendered stacks that are kept for the next time.
    pub rendered_bytes: usize,
    /// What samples may take that are kept one by one until the end.
    pub timeline_bytes: usize,
    /// What stacks begin with, where the format has no other place for whose they are.
    pub root: Root,
}

impl Format {
    /// Whether its stacks begin with whose they are: [`Options::root`].
    #[must_use]
    pub fn has_roots(&self) -> bool {
        [folded::FORMAT.name, svg::FORMAT.name].contains(&self.name)
    }

    /// The format of this name.
    ///
    /// ```
    /// use profiler_profile::export::format::Format;
    /// assert!(Format::find("folded").is_some() && Format::find("fold").is_none());
    /// ```
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        FORMATS.iter().copied().find(|it| it.name == name)
    }

    /// The format of a file with this name, by the longest extension that fits.
    ///
    /// ```
    /// use profiler_profile::export::format::Format;
    /// assert_eq!(Format::of_file("out.folded").map(|it| it.name), Some("folded"));
    /// assert_eq!(Format::of_file("folded"), None);
    /// ```
    #[must_use]
    pub fn of_file(name: &str) -> Option<&'static Self> {
        let fits = |extension: &&str| {
            name.strip_suffix(extension).is_some_and(|stem| stem.len() > 1 && stem.ends_with('.'))
        };
        let longest =
            |it: &Self| it.extensions.iter().filter(|it| fits(it)).map(|it| it.len()).max();
        let fitting = FORMATS.iter().copied().filter_map(|it| Some((longest(it)?, it)));
        fitting.max_by_key(|(length, _)| *length).map(|(_, format)| format)
    }
}

/// The first of them, which is for people.
impl Default for &'static Format {
    fn default() -> Self {
        &text::FORMAT
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Format").field(&self.name).finish()
    }
}

/// Names are unique.
impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Format {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_name_or_an_extension_is_that_of_one_format() {
        let names: HashSet<&str> = FORMATS.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), FORMATS.len());
        let extensions = || FORMATS.iter().flat_map(|it| it.extensions);
        assert_eq!(extensions().collect::<HashSet<_>>().len(), extensions().count());
    }

    #[test]
    fn the_longest_extension_counts() {
        for (file, format) in [
            ("out.txt", "text"),
            ("out.perf.txt", "perf"),
            ("out.jsonl", "json"),
            ("out.compact.jsonl", "json-compact"),
            ("out.speedscope.json", "speedscope"),
            ("out.json.gz", "firefox"),
            ("out.pb.gz", "pprof"),
            ("my.out.pprof", "pprof"),
        ] {
            assert_eq!(Format::of_file(file).map(|it| it.name), Some(format), "{file}");
        }
        for file in ["out.json", "out.gz", "pb.gz", ".pb.gz", "out", ""] {
            assert_eq!(Format::of_file(file), None, "{file}");
        }
    }
}
