//! The pieces of a file that were asked for, within a budget.

use std::{cell::Cell, fs::File, ops::Range, os::unix::fs::FileExt as _};

use object::read::{ReadCache, ReadCacheOps, ReadRef};

/// What the name of a section costs at most: `ReadCache` looks no further for its end.
const NAME_COST: u64 = 4096;

/// Has `ask` read a file, of which it gets at most `budget_bytes`; a read beyond that is an error.
pub fn read_within<T>(file: &File, budget_bytes: u64, ask: impl FnOnce(Pieces<'_>) -> T) -> T {
    let cache = ReadCache::new(Positioned { file, at: 0 });
    ask(Pieces { cache: &cache, budget: &Cell::new(budget_bytes) })
}

/// A file read at given places, so that its own position, which others share, stays.
#[derive(Debug)]
struct Positioned<'a> {
    file: &'a File,
    at: u64,
}

impl ReadCacheOps for Positioned<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        // Not by `statx`, which the parser process may not call, since it takes paths.
        let stat = rustix::fs::fstat(self.file).map_err(drop)?;
        u64::try_from(stat.st_size).map_err(drop)
    }

    fn seek(&mut self, at: u64) -> Result<u64, ()> {
        self.at = at;
        Ok(at)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        let bytes = self.file.read_at(buffer, self.at).map_err(drop)?;
        self.at = self.at.checked_add(bytes as u64).ok_or(())?;
        Ok(bytes)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.file.read_exact_at(buffer, self.at).map_err(drop)
    }
}

/// A file as `object` reads it: the pieces that it has asked for, within the budget.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a> {
    cache: &'a ReadCache<Positioned<'a>>,
    budget: &'a Cell<u64>,
}

impl Pieces<'_> {
    fn spend(self, bytes: u64) -> Result<(), ()> {
        let left = self.budget.get().checked_sub(bytes).ok_or(())?;
        self.budget.set(left);
        Ok(())
    }
}

impl<'a> ReadRef<'a> for Pieces<'a> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.spend(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.spend(NAME_COST)?;
        self.cache.read_bytes_at_until(range, delimiter)
    }
}
