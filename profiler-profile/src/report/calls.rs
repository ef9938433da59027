//! A tree of calls, callers first.

use std::{borrow::Cow, fmt::Write as _};

use rustc_hash::FxHashMap;

use super::{Selected, elided, places, share};
use crate::{import::Frame, printable::printable};

/// Calls with a smaller share are left out.
const MIN_SHARE: f64 = 0.005;

/// The place of what begins everything.
const ROOT: usize = 0;

/// A function as it was called by a chain of others.
#[derive(Clone, Copy, Default)]
struct Call {
    name: usize,
    caller: usize,
    total: i128,
}

/// Calls in one list, which takes little of each and may be as deep as it likes.
struct Calls<'a> {
    numbers: FxHashMap<Cow<'a, str>, usize>,
    places: FxHashMap<(usize, usize), usize>,
    all: Vec<Call>,
}

impl<'a> Calls<'a> {
    fn of(selected: &Selected<'a>) -> Self {
        let root = Call { total: selected.total, ..Call::default() };
        let mut calls =
            Self { numbers: FxHashMap::default(), places: FxHashMap::default(), all: vec![root] };
        let frames = selected.profile.frames.iter();
        let names: Vec<usize> = frames.map(|it| calls.number(it.shown_name().into())).collect();
        for (stack, value) in &selected.stacks {
            // What is the outermost frame of folded stacks stands beside the others.
            let process = selected.profile.process_of(stack);
            let outermost = selected.profile.frames_of(stack).next_back().map(Frame::shown_name);
            let begin = (outermost != Some(&*process)).then(|| calls.number(process));
            let rest = places(stack).rev().filter_map(|place| names.get(place).copied());
            let mut caller = ROOT;
            for name in begin.into_iter().chain(rest) {
                caller = calls.add(caller, name, *value);
            }
        }
        calls
    }

    /// The number of a name.
    fn number(&mut self, name: Cow<'a, str>) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(name).or_insert(next)
    }

    fn add(&mut self, caller: usize, name: usize, value: i128) -> usize {
        let next = self.all.len();
        let place = *self.places.entry((caller, name)).or_insert(next);
        if place == next {
            self.all.push(Call { name, caller, total: 0 });
        }
        if let Some(call) = self.all.get_mut(place) {
            call.total += value;
        }
        place
    }
}

/// Writes the calls, hottest first, indented where they branch.
pub(super) fn write(selected: &Selected<'_>, text: &mut String) {
    let _ = writeln!(text, "{:>9} {:>6}  CALLS", "TOTAL", "%");
    let calls = Calls::of(selected);
    let mut names: Vec<(&str, usize)> =
        calls.numbers.iter().map(|(name, number)| (&**name, *number)).collect();
    names.sort_unstable_by_key(|(_, number)| *number);
    let name_of = |call: &Call| names.get(call.name).map_or("", |(name, _)| *name);

    let is_shown = |it: &Call| it.total as f64 >= selected.total as f64 * MIN_SHARE;
    let mut callees: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
    let of_root = calls.all.iter().enumerate().skip(1);
    let mut left_out = 0;
    for (place, call) in of_root {
        if is_shown(call) {
            callees.entry(call.caller).or_default().push(place);
        } else if call.caller == ROOT || calls.all.get(call.caller).is_some_and(is_shown) {
            left_out += 1;
        }
    }
    // Hottest last: that is where the next one is taken from.
    let sorted = |place: usize| -> Vec<(usize, &Call)> {
        let of = callees.get(&place).into_iter().flatten();
        let mut of: Vec<_> = of.filter_map(|it| Some((*it, calls.all.get(*it)?))).collect();
        of.sort_by(|(_, a), (_, b)| a.total.cmp(&b.total).then_with(|| name_of(b).cmp(name_of(a))));
        of
    };
    let mut rows = selected.options.table.rows.unwrap_or(usize::MAX);
    let mut waiting = vec![(ROOT, None, 0_usize)];
    while let Some((place, call, depth)) = waiting.pop() {
        if let Some(call) = call {
            let Some(left) = rows.checked_sub(1) else {
                left_out += 1;
                continue;
            };
            rows = left;
            let width = selected.options.table.columns.map(|it| it.saturating_sub(18 + 2 * depth));
            let name = elided(&printable(name_of(call)), width.map(|it| it.max(20)));
            let (total, share) = (selected.cell(call.total), share(call.total, selected.total));
            let _ = writeln!(text, "{total:>9} {share:>6}  {:1$}{name}", "", 2 * depth);
        }
        let of = sorted(place);
        // A call that is the only one is no branch.
        let depth = depth + usize::from(of.len() > 1);
        waiting.extend(of.into_iter().map(|(place, call)| (place, Some(call), depth)));
    }
    if left_out > 0 {
        let percent = 100.0 * MIN_SHARE;
        let _ = writeln!(text, "{left_out} calls are left out: below {percent} %, or beyond --top");
    }
}
