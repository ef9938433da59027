//! Reads folded stacks: `outermost;…;innermost COUNT`, a line each, as flamegraph.pl and we write them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Budget, Error, Frame, Imported, Limits, Stack, ValueType};

/// Reads all lines. `_[k]` marks code of the kernel and `_[i]` what was inlined. Whatever comes first in a line,
/// such as the name of the process, is the outermost frame. Empty lines are passed over.
///
/// ```
/// use profiler_profile::import::{Limits, folded};
/// let profile = folded::read(b"a;b;c_[k] 2\na 1\n", &Limits::default()).unwrap();
/// assert_eq!((profile.stacks.len(), profile.totals()), (2, vec![3]));
/// let error = folded::read(b"a;b;c 2\na;b\n", &Limits::default()).unwrap_err();
/// assert_eq!(error.to_string(), "line 2: no count stands behind the stack");
/// ```
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Imported, Error> {
    if bytes.len() > limits.bytes {
        return Err(Error::TooLarge { limit: limits.bytes });
    }
    let mut budget = Budget::new(limits.things);
    let mut numbers: FxHashMap<Frame, u32> = FxHashMap::default();
    let (name, unit) = (Arc::from("samples"), Arc::from("count"));
    let mut profile =
        Imported { value_types: vec![ValueType { name, unit }], ..Imported::default() };
    for (line, text) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let text = String::from_utf8_lossy(text);
        if text.trim().is_empty() {
            continue;
        }
        let (stack, count) =
            parts(text.trim_end()).map_err(|what| Error::Line { line, what: what.into() })?;
        // The stack, its value and its frames.
        budget.take(stack.split(';').count().saturating_add(2))?;
        let mut frames = Vec::new();
        for name in stack.rsplit(';') {
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            let number = *numbers.entry(frame(name)).or_insert_with_key(|frame| {
                profile.frames.push(frame.clone());
                next
            });
            frames.push(number);
        }
        profile.stacks.push(Stack { frames, labels: Vec::new(), values: vec![count] });
    }
    Ok(profile)
}

/// The stack and its count.
fn parts(line: &str) -> Result<(&str, i64), &'static str> {
    const NO_COUNT: &str = "no count stands behind the stack";
    let (stack, count) = line.rsplit_once([' ', '\t']).ok_or(NO_COUNT)?;
    if count.is_empty() || !count.bytes().all(|it| it.is_ascii_digit()) {
        return Err(NO_COUNT);
    }
    let count = count.parse().map_err(|_| "the count is larger than 2^63 - 1")?;
    let stack = stack.trim_end();
    if stack.is_empty() { Err("no stack stands before the count") } else { Ok((stack, count)) }
}

fn frame(name: &str) -> Frame {
    let (name, is_kernel) = match name.strip_suffix("_[k]") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let (name, inlined) = match name.strip_suffix("_[i]") {
        Some(name) => (name, true),
        None => (name, false),
    };
    Frame { name: Some(Arc::from(name)), is_kernel, inlined, ..Frame::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::{folded::FORMAT, format::Export, tests},
        frame,
        sample::Sample,
        store::Store,
    };
    use proptest::prelude::*;

    fn names(profile: &Imported) -> Vec<Vec<&str>> {
        let names = |stack| profile.frames_of(stack).rev().map(|it| it.name.as_deref().unwrap());
        profile.stacks.iter().map(|stack| names(stack).collect()).collect()
    }

    #[test]
    fn stacks_and_counts() {
        let text = b"\nV8 Worker;main;operator new _[i];read_[k] 12\r\nmain 3\n\n\xff;;b\t4";
        let profile = read(text, &Limits::default()).unwrap();
        assert_eq!(
            names(&profile),
            [
                &["V8 Worker", "main", "operator new ", "read"][..],
                &["main"],
                &["\u{fffd}", "", "b"]
            ]
        );
        let values: Vec<&[i64]> = profile.stacks.iter().map(|it| &it.values[..]).collect();
        assert_eq!(values, [[12], [3], [4]]);
        assert_eq!(profile.totals(), [19]);
        let marks: Vec<(bool, bool)> =
            profile.frames.iter().map(|it| (it.is_kernel, it.inlined)).collect();
        assert_eq!(marks[..4], [(true, false), (false, true), (false, false), (false, false)]);
        // Equal frames are one.
        assert_eq!(profile.frames.len(), 7);
    }

    #[test]
    fn what_was_written_reads_back() {
        let mut store = Store::default();
        let function = |name: &str, inlined| frame::Frame {
            symbol: Some(Arc::from(name)),
            inlined,
            ..frame::Frame::default()
        };
        let of = tests::sample();
        let kernel = store.intern(vec![tests::location(1, &[function("read", false)])]);
        let frames = [function("new;delete", true), function("main", false)];
        let user = store.intern(vec![tests::location(2, &frames)]);
        let samples = [
            Sample { kernel, user: Arc::clone(&user), ..of.clone() },
            Sample { user: Arc::clone(&user), ..of.clone() },
            Sample { user, ..of.clone() },
        ];
        let sources = [(*of.source).clone()];
        let Export::Whole(write) = FORMAT.export else { panic!() };
        let written = tests::written(write, &samples, &sources, 1 << 20);
        let profile = read(&written, &Limits::default()).unwrap();
        assert_eq!(profile.totals(), [3]);
        assert_eq!(
            names(&profile),
            [&["a", "main", "new:delete"][..], &["a", "main", "new:delete", "read"]]
        );
        let marks = |it: &Frame| (it.is_kernel, it.inlined);
        let marks: Vec<_> = profile.frames_of(&profile.stacks[1]).map(marks).collect();
        assert_eq!(marks, [(true, false), (false, true), (false, false), (false, false)]);
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (text, message) in [
            ("a 1\nb\n", "line 2: no count stands behind the stack"),
            ("a;b c\n", "line 1: no count stands behind the stack"),
            ("a;b -3\n", "line 1: no count stands behind the stack"),
            ("a 1\n\nb 1.5\n", "line 3: no count stands behind the stack"),
            ("a 9223372036854775808", "line 1: the count is larger than 2^63 - 1"),
            (" 5\n", "line 1: no stack stands before the count"),
        ] {
            assert_eq!(read(text.as_bytes(), &Limits::default()).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn there_is_a_limit() {
        let limits = Limits { bytes: 16, things: 9 };
        assert_eq!(read(b"a;b 1\nc;d 2", &limits).unwrap().totals(), [3]);
        assert_eq!(read(b"a;b 1\nc;d;e;f 2", &limits), Err(Error::TooMany { limit: 9 }));
        assert_eq!(read(b"a 1\na 1\na 1\na 1\na", &limits), Err(Error::TooLarge { limit: 16 }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in any::<Vec<u8>>()) {
            let _ = read(&bytes, &Limits::default());
        }

        #[test]
        fn nearly_folded_text_is_read_or_refused(text in "[ab;_ \\[\\]ki0-9\t\r\n]{0,60}") {
            if let Ok(profile) = read(text.as_bytes(), &Limits::default()) {
                for stack in &profile.stacks {
                    prop_assert_eq!(profile.frames_of(stack).count(), stack.frames.len());
                }
            }
        }
    }
}
