//! The lines of a function, and how many samples were in each.

use std::collections::BTreeMap;

use super::folded::name;
use crate::{frame::Frame, printable::printable, profile::Entry};

/// A source file that a function has lines in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path, as the debug info of the program names it.
    pub path: String,
    /// Each line with its samples, by number; 0 is for those of which the debug info knows the file only.
    pub lines: BTreeMap<u32, Samples>,
}

/// How many samples there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Those that were taken there.
    pub own: u64,
    /// Those that came through, with those that were taken there; once each, however often.
    pub total: u64,
}

/// A function by its lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The files, most samples first.
    pub files: Vec<File>,
    /// Samples in the function, of which nothing tells the file.
    pub unknown: Samples,
}

impl Lines {
    /// Of the function that tables and flame graphs show by this name, in this file of code.
    pub fn of_function<'a>(
        entries: impl IntoIterator<Item = &'a Entry>,
        function: &str,
        module: &str,
    ) -> Self {
        let is_it = |it: &Frame| {
            printable(it.module.as_deref().unwrap_or_default()) == module
                && printable(&name(it)) == function
        };
        let mut files: BTreeMap<&str, BTreeMap<u32, Samples>> = BTreeMap::new();
        let mut unknown = Samples::default();
        for entry in entries {
            let frames = entry.kernel.frames().chain(entry.user.frames());
            // Where it calls itself, a line stands there several times.
            let mut places: Vec<(Option<(&str, u32)>, bool)> = Vec::new();
            for (at, (_, frame)) in frames.enumerate().filter(|(_, (_, frame))| is_it(frame)) {
                let source = frame.source.as_ref().map(|(file, line)| (&**file, line.unwrap_or(0)));
                if !places.iter().any(|(it, _)| *it == source) {
                    places.push((source, at == 0));
                }
            }
            for (place, is_own) in places {
                let samples = match place {
                    Some((file, line)) => files.entry(file).or_default().entry(line).or_default(),
                    None => &mut unknown,
                };
                samples.total = samples.total.saturating_add(entry.count);
                samples.own = samples.own.saturating_add(if is_own { entry.count } else { 0 });
            }
        }
        let files = files.into_iter().map(|(path, lines)| File { path: path.to_owned(), lines });
        let mut files: Vec<File> = files.collect();
        files.sort_by_key(|it| std::cmp::Reverse(it.samples().total));
        Self { files, unknown }
    }
}

impl File {
    /// The sums over its lines. A sample may have come through several of them.
    #[must_use]
    pub fn samples(&self) -> Samples {
        self.lines.values().fold(Samples::default(), |sum, it| Samples {
            own: sum.own.saturating_add(it.own),
            total: sum.total.saturating_add(it.total),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{slice, sync::Arc};

    use super::*;
    use crate::{
        export::tests::{location, sample},
        store::Store,
    };

    /// A function of `/bin/a`, and where it is.
    fn frame(name: &str, source: Option<(&str, Option<u32>)>) -> Frame {
        Frame {
            symbol: Some(Arc::from(name)),
            module: Some(Arc::from("/bin/a")),
            source: source.map(|(file, line)| (Arc::from(file), line)),
            ..Frame::default()
        }
    }

    fn entry(frames: &[Frame], count: u64) -> Entry {
        let of = sample();
        let mut store = Store::default();
        let user = store.intern(
            frames.iter().zip(1..).map(|(it, at)| location(at, slice::from_ref(it))).collect(),
        );
        let kernel = store.intern(Vec::new());
        Entry { source: of.source, task: of.task, kernel, user, count, value: count }
    }

    #[test]
    fn samples_are_counted_by_line_and_file_once_each() {
        let at = |line| Some(("/src/a.c", Some(line)));
        let main = frame("main", at(90));
        let entries = [
            entry(&[frame("work", at(7)), main.clone()], 5),
            // It calls itself from line 8.
            entry(
                &[frame("work", at(7)), frame("work", at(8)), frame("work", at(8)), main.clone()],
                3,
            ),
            entry(&[frame("other", at(1)), frame("work", at(8)), main.clone()], 2),
            entry(&[frame("work", Some(("/src/a.h", None))), main.clone()], 1),
            entry(&[frame("work", None), main], 4),
        ];
        let Lines { files, unknown } = Lines::of_function(&entries, "work", "/bin/a");
        let of = |own, total| Samples { own, total };
        let lines = |lines: &[(u32, Samples)]| lines.iter().copied().collect::<BTreeMap<_, _>>();
        assert_eq!(
            files,
            [
                File { path: "/src/a.c".into(), lines: lines(&[(7, of(8, 8)), (8, of(0, 5))]) },
                File { path: "/src/a.h".into(), lines: lines(&[(0, of(1, 1))]) },
            ]
        );
        assert_eq!(unknown, of(4, 4));
        assert_eq!(Lines::of_function(&entries, "work", "/bin/b"), Lines::default());
    }
}
