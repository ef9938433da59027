//! Distinct things by number.
//!
//! They are numbered as they come, and at the end once more in the order of what they are: then a profile has the
//! same bytes whatever came first.

use std::{borrow::Borrow, hash::Hash};

use rustc_hash::FxHashMap;

/// Distinct things, each with its number.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    numbers: FxHashMap<T, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { numbers: FxHashMap::default() }
    }
}

impl<T: Eq + Hash> Numbered<T> {
    /// The number of this one. 2^32 of them would not fit into memory.
    pub(super) fn number(&mut self, it: T) -> u32 {
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(it).or_insert(next)
    }

    /// The same by what it can be looked up by, and is made from if it is new.
    pub(super) fn number_of<'a, Q: Eq + Hash + ?Sized>(&mut self, it: &'a Q) -> u32
    where
        T: Borrow<Q> + From<&'a Q>,
    {
        match self.numbers.get(it) {
            Some(number) => *number,
            None => self.number(it.into()),
        }
    }

    /// All in their order, as they are written, and the place of each. What is written must differ where they do.
    pub(super) fn in_order<U: Ord>(
        self,
        mut as_written: impl FnMut(T, u32) -> U,
    ) -> (Vec<U>, Places) {
        let numbers = self.numbers.into_iter();
        let mut all: Vec<_> =
            numbers.map(|(it, number)| (as_written(it, number), number)).collect();
        all.sort_unstable();
        let mut places = vec![0; all.len()];
        for ((_, number), place) in all.iter().zip(0..) {
            if let Some(it) = places.get_mut(index(*number)) {
                *it = place;
            }
        }
        (all.into_iter().map(|(it, _)| it).collect(), Places(places))
    }
}

/// Where things stand that had a number.
#[derive(Debug)]
pub(super) struct Places(Vec<u32>);

impl Places {
    /// The place of the one with this number, from 0 on.
    pub(super) fn of(&self, number: u32) -> u32 {
        self.0.get(index(number)).copied().unwrap_or_default()
    }
}

/// The id of what stands at this place, since 0 means none.
pub(super) fn id(place: u32) -> u64 {
    u64::from(place) + 1
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_first_does_not_matter() {
        for words in [["b", "", "c", "a", "b"], ["a", "b", "a", "c", ""]] {
            let mut numbered = Numbered::<Box<str>>::default();
            let numbers = words.map(|word| numbered.number_of(word));
            assert_eq!(numbered.number(words[2].into()), numbers[2]);
            let (order, places) = numbered.in_order(|word, _| word);
            assert_eq!(order.iter().map(|it| &**it).collect::<Vec<_>>(), ["", "a", "b", "c"]);
            let words_at = numbers.map(|number| &*order[places.of(number) as usize]);
            assert_eq!(words_at, words);
        }
        assert_eq!(id(0), 1);
    }
}
