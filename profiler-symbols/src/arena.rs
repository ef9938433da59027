//! Bytes that are added while others already borrow from them.

use std::{
    cell::{Cell, OnceCell},
    fmt,
};

use crate::image::Bytes;

/// A fixed number of places for bytes. What was kept stays as long as the arena does.
pub(crate) struct Arena {
    places: Box<[OnceCell<Bytes>]>,
    used: Cell<usize>,
    /// How many bytes may still be unpacked.
    budget: Cell<u64>,
}

impl Arena {
    pub(crate) fn new(places: usize, budget_bytes: u64) -> Self {
        let places = std::iter::repeat_with(OnceCell::new).take(places).collect();
        Self { places, used: Cell::new(0), budget: Cell::new(budget_bytes) }
    }

    /// Keeps the bytes; `None` if all places are in use.
    pub(crate) fn keep(&self, bytes: Bytes) -> Option<&[u8]> {
        let at = self.used.get();
        let place = self.places.get(at)?;
        self.used.set(at + 1);
        Some((**place.get_or_init(|| bytes)).as_ref())
    }

    /// Takes so many bytes from the budget for unpacking; `false` if less is left.
    pub(crate) fn spend(&self, bytes: u64) -> bool {
        let left = self.budget.get().checked_sub(bytes);
        self.budget.set(left.unwrap_or(self.budget.get()));
        left.is_some()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("used", &self.used).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn keeps_as_many_as_it_has_places_for() {
        let arena = Arena::new(2, 10);
        let first = arena.keep(Arc::new(vec![1]));
        assert_eq!(arena.keep(Arc::new(vec![2])), Some(&[2][..]));
        assert_eq!(arena.keep(Arc::new(vec![3])), None);
        assert_eq!(first, Some(&[1][..]));
    }

    #[test]
    fn the_budget_is_spent_once() {
        let arena = Arena::new(0, 10);
        assert!(arena.spend(4) && !arena.spend(7) && arena.spend(6) && !arena.spend(1));
    }
}
