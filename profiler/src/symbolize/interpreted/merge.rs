//! A stack of native frames and those of an interpreter, as one.

use std::mem;

use profiler_profile::stack::Location;

/// Which frames are shown where an interpreter runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Those of the interpreter, and none of the language.
    Native,
    /// Those of the language, each group in the place of the interpreter's frame that runs it.
    #[default]
    Merged,
    /// Those of the language alone.
    Only,
}

impl View {
    /// Whether there are frames of the language.
    #[must_use]
    pub fn merges(self) -> bool {
        self != Self::Native
    }
}

/// A native frame.
pub(super) struct Native {
    pub(super) location: Location,
    /// Whether it runs the next group.
    pub(super) runs_code: bool,
}

impl Native {
    fn is_evaluator(&self) -> bool {
        let name = self.location.frames.last().and_then(|frame| frame.name());
        name.is_some_and(|name| name.split('.').next() == Some(EVALUATOR))
    }
}

/// The groups of the interpreter's frames, innermost first, each in its place among the native ones. Those that have none
/// come last: the native walk has ended before it came to what runs them.
pub(super) fn merge(native: Vec<Native>, groups: Vec<Vec<Location>>, only: bool) -> Vec<Location> {
    let mut groups = groups.into_iter();
    let mut merged = Vec::new();
    for Native { location, runs_code } in native {
        match runs_code.then(|| groups.next()).flatten() {
            Some(group) => merged.extend(group),
            None if only => {}
            None => merged.push(location),
        }
    }
    merged.extend(groups.flatten());
    merged
}

/// Cuts frames into groups: each ends with one of which this says so.
pub(super) fn groups<T>(frames: impl IntoIterator<Item = Option<T>>) -> Vec<Vec<T>> {
    let (mut groups, mut group, mut is_open) = (Vec::new(), Vec::new(), false);
    for frame in frames {
        is_open = frame.is_some();
        match frame {
            Some(frame) => group.push(frame),
            None => groups.push(mem::take(&mut group)),
        }
    }
    groups.extend(is_open.then_some(group));
    groups
}

/// Marks native frames where the interpreter leaves no record of which run its code: those of its evaluator, of
/// which each runs one group. The outermost ones belong together if the stack is whole, else the innermost.
pub(super) fn mark_evaluators(native: &mut [Native], groups: usize, is_whole: bool) {
    let marks = |it: &mut Native| it.runs_code = true;
    let is_evaluator = |it: &&mut Native| it.is_evaluator();
    if is_whole {
        native.iter_mut().rev().filter(is_evaluator).take(groups).for_each(marks);
    } else {
        native.iter_mut().filter(is_evaluator).take(groups).for_each(marks);
    }
}

/// Marks the native frame that runs the last group, of which the walk has not come to the end, nor so to the record: the next
/// evaluator.
pub(super) fn mark_last(native: &mut [Native]) {
    let next = native.iter().rposition(|it| it.runs_code).map_or(0, |it| it + 1);
    if let Some(evaluator) = native.iter_mut().skip(next).find(|it| it.is_evaluator()) {
        evaluator.runs_code = true;
    }
}

/// Compilers add what they have split off, as in `_PyEval_EvalFrameDefault.cold`.
const EVALUATOR: &str = "_PyEval_EvalFrameDefault";

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_profile::{address::Address, frame::Frame};
    use std::sync::Arc;

    fn location(name: &str) -> Location {
        let frame = Frame { symbol: Some(Arc::from(name)), ..Frame::default() };
        Location { address: Address::sampled(1), frames: Arc::from([frame]) }
    }

    fn names(locations: &[Location]) -> Vec<&str> {
        locations.iter().filter_map(|it| it.frames[0].name()).collect()
    }

    /// Names, of which those in capitals run code.
    fn native(names: &[&str]) -> Vec<Native> {
        let native = |name: &&str| Native {
            location: location(name),
            runs_code: name.chars().all(char::is_uppercase),
        };
        names.iter().map(native).collect()
    }

    fn groups_of(text: &[&[&str]]) -> Vec<Vec<Location>> {
        text.iter().map(|it| it.iter().map(|name| location(name)).collect()).collect()
    }

    #[test]
    fn groups_take_the_place_of_what_runs_them() {
        let stack = ["memcpy", "EVAL", "sort", "EVAL", "main"];
        let groups = || groups_of(&[&["key", "by"], &["run", "<module>"]]);
        let merged = merge(native(&stack), groups(), false);
        assert_eq!(names(&merged), ["memcpy", "key", "by", "sort", "run", "<module>", "main"]);
        let merged = merge(native(&stack), groups(), true);
        assert_eq!(names(&merged), ["key", "by", "run", "<module>"]);
    }

    #[test]
    fn what_was_not_reached_comes_last() {
        let groups = groups_of(&[&["key"], &["run"], &["<module>"]]);
        let merged = merge(native(&["memcpy", "EVAL", "sort"]), groups, false);
        assert_eq!(names(&merged), ["memcpy", "key", "sort", "run", "<module>"]);
        // A frame that runs nothing yet is itself.
        let merged = merge(native(&["EVAL", "main"]), Vec::new(), false);
        assert_eq!(names(&merged), ["EVAL", "main"]);
    }

    #[test]
    fn a_group_ends_with_an_entry() {
        let frames = [Some(1), Some(2), None, None, Some(3), None];
        assert_eq!(groups(frames), [vec![1, 2], vec![], vec![3]]);
        assert_eq!(groups([Some(1), None, Some(2)]), [[1], [2]]);
        assert_eq!(groups(std::iter::empty::<Option<u8>>()), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn what_the_walk_has_not_come_to_the_end_of_is_where_the_next_evaluator_is() {
        let stack = ["EVAL", EVALUATOR, "sort", EVALUATOR, "main"];
        let mut native = native(&stack);
        mark_last(&mut native);
        let merged = merge(native, groups_of(&[&["key"], &["recurse", "recurse"]]), false);
        let last = ["key", "recurse", "recurse", "sort", EVALUATOR, "main"];
        assert_eq!(names(&merged), last);
    }

    #[test]
    fn without_records_the_evaluator_is_known_by_name() {
        let stack = ["a", EVALUATOR, "b", "_PyEval_EvalFrameDefault.cold", "c", EVALUATOR];
        let marked = |groups, is_whole| {
            let mut native = native(&stack);
            mark_evaluators(&mut native, groups, is_whole);
            native.iter().map(|it| u8::from(it.runs_code)).collect::<Vec<_>>()
        };
        assert_eq!(marked(3, true), [0, 1, 0, 1, 0, 1]);
        assert_eq!(marked(2, true), [0, 0, 0, 1, 0, 1]);
        assert_eq!(marked(2, false), [0, 1, 0, 1, 0, 0]);
        assert_eq!(marked(9, false), [0, 1, 0, 1, 0, 1]);
    }
}
