//! Which stacks of a profile are wanted.

use regex::Regex;

use super::{Imported, Stack};

/// Which stacks of a profile are wanted; by default all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only stacks with a function whose name matches.
    pub focus: Option<Regex>,
    /// No stacks with a function whose name matches.
    pub ignore: Option<Regex>,
    /// Only stacks of this service.
    pub service: Option<String>,
}

impl Filter {
    /// The stacks that are wanted.
    pub fn stacks<'a>(&'a self, profile: &'a Imported) -> impl Iterator<Item = &'a Stack> {
        // Each frame once, and not in each stack that has it.
        let matching = |pattern: &Regex| -> Vec<bool> {
            profile.frames.iter().map(|frame| pattern.is_match(frame.shown_name())).collect()
        };
        let focus = self.focus.as_ref().map(matching);
        let ignore = self.ignore.as_ref().map(matching);
        let has_one = |matching: &[bool], stack: &Stack| {
            let mut places = stack.frames.iter().filter_map(|it| usize::try_from(*it).ok());
            places.any(|place| matching.get(place).copied().unwrap_or(false))
        };
        profile.stacks.iter().filter(move |stack| {
            self.service
                .as_ref()
                .is_none_or(|it| stack.label("service").is_some_and(|label| label.text() == *it))
                && focus.as_ref().is_none_or(|it| has_one(it, stack))
                && !ignore.as_ref().is_some_and(|it| has_one(it, stack))
        })
    }
}
