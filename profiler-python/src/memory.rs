//! Memory of a process, which may change while it is read.

use std::cell::Cell;

use serde::{Deserialize, Serialize};

/// Something that can be read by address.
pub trait Memory {
    /// Fills `into` with what is at the address: all of it, or none.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault>;
}

/// Why something could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fault {
    /// Nothing is there.
    Unmapped,
    /// The process has ended, or runs another program now.
    Gone,
    /// As much was read as may be.
    Budget,
}

impl<M: Memory + ?Sized> Memory for &M {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        (**self).read(address, into)
    }
}

/// What one read costs beside its bytes: as long as copying so many.
const READ_COST: u64 = 512;

/// Memory of which only so much is read.
#[derive(Debug)]
pub struct Bounded<M> {
    memory: M,
    left: Cell<u64>,
}

impl<M: Memory> Bounded<M> {
    /// At most so many bytes, of which each read takes some more.
    pub fn new(memory: M, bytes: u64) -> Self {
        Self { memory, left: Cell::new(bytes) }
    }
}

impl<M: Memory> Memory for Bounded<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let cost = READ_COST.saturating_add(into.len() as u64);
        self.left.set(self.left.get().checked_sub(cost).ok_or(Fault::Budget)?);
        self.memory.read(address, into)
    }
}

/// Addresses of programs are below this on x86-64 and aarch64; what is above is no pointer.
const END: u64 = 1 << 52;

/// A pointer to an object: aligned, not null, and in the lower half.
pub(crate) fn is_object(address: u64) -> bool {
    address.is_multiple_of(8) && (0x1000..END).contains(&address)
}

/// Eight bytes.
pub(crate) fn word(memory: &impl Memory, address: u64) -> Result<u64, Fault> {
    let mut bytes = [0; 8];
    memory.read(address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The eight bytes at an offset of what was read; zero beyond it.
pub(crate) fn word_in(bytes: &[u8], at: u16) -> u64 {
    let bytes = bytes.get(usize::from(at)..).and_then(|it| it.first_chunk());
    bytes.map_or(0, |it| u64::from_le_bytes(*it))
}

/// The four bytes at an offset of what was read; zero beyond it.
pub(crate) fn half_in(bytes: &[u8], at: u16) -> u32 {
    let bytes = bytes.get(usize::from(at)..).and_then(|it| it.first_chunk());
    bytes.map_or(0, |it| u32::from_le_bytes(*it))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Memory that is made up: pieces by their address.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Pieces(pub(crate) BTreeMap<u64, Vec<u8>>);

    impl Memory for Pieces {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
            let (start, bytes) = self.0.range(..=address).next_back().ok_or(Fault::Unmapped)?;
            let at = usize::try_from(address - start).map_err(|_| Fault::Unmapped)?;
            let end = at.checked_add(into.len()).ok_or(Fault::Unmapped)?;
            into.copy_from_slice(bytes.get(at..end).ok_or(Fault::Unmapped)?);
            Ok(())
        }
    }

    #[test]
    fn no_more_is_read_than_may_be() {
        let memory = Pieces(BTreeMap::from([(0x1000, vec![7; 64])]));
        let bounded = Bounded::new(&memory, 2 * (READ_COST + 8));
        assert_eq!(word(&bounded, 0x1000), Ok(0x0707_0707_0707_0707));
        assert_eq!(word(&bounded, 0x103c), Err(Fault::Unmapped));
        assert_eq!(word(&bounded, 0x1000), Err(Fault::Budget));
    }
}
