//! Which blocks of mappings are in use.

/// Blocks by their numbers. Those that were given back are used again as late as can be: a walk may
/// still be looking at them.
#[derive(Debug)]
pub(super) struct FreeBlocks {
    in_use: Vec<bool>,
    /// From where on the next search begins.
    next: usize,
}

impl FreeBlocks {
    /// So many blocks, none of them in use.
    #[must_use]
    pub(super) fn new(count: u32) -> Self {
        Self { in_use: vec![false; count as usize], next: 0 }
    }

    /// Takes consecutive blocks; `None` if there are not so many.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        let count = count as usize;
        let last = self.in_use.len().checked_sub(count)?;
        for mut start in [self.next, 0] {
            while start <= last {
                let run = self.in_use.get_mut(start..start + count)?;
                match run.iter().rposition(|in_use| *in_use) {
                    Some(taken) => start += taken + 1,
                    None => {
                        run.fill(true);
                        self.next = start + count;
                        return u32::try_from(start).ok();
                    }
                }
            }
        }
        None
    }

    /// Gives blocks back.
    pub(super) fn give_back(&mut self, first: u32, count: u32) {
        let first = first as usize;
        if let Some(run) = self.in_use.get_mut(first..first + count as usize) {
            run.fill(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_used_again_last() {
        let mut free = FreeBlocks::new(4);
        assert_eq!(free.take(1), Some(0));
        free.give_back(0, 1);
        assert_eq!((free.take(2), free.take(1), free.take(1)), (Some(1), Some(3), Some(0)));
        assert_eq!(free.take(1), None);
        free.give_back(1, 2);
        assert_eq!(free.take(3), None);
        assert_eq!(free.take(2), Some(1));
        assert_eq!(FreeBlocks::new(4).take(5), None);
    }

    #[test]
    fn every_free_run_is_found() {
        for hole in 0..6 {
            for start in 0..8 {
                let mut free = FreeBlocks::new(8);
                free.take(8);
                free.next = start;
                free.give_back(hole, 3);
                assert_eq!(free.take(3), Some(hole), "from {start}");
            }
        }
    }
}
