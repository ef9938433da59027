//! Where a file has its code.

use std::ops::Range;

use object::{Endianness, elf::ProgramHeader64, read::elf::ProgramHeader as _};

use super::ENDIAN;

/// The executable segments of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) addresses: Range<u64>,
    pub(super) offset: u64,
}

impl Code {
    pub(super) fn of_segments(segments: impl Iterator<Item = Segment>) -> Self {
        Self(segments.collect())
    }

    /// How many segments there are.
    pub(super) fn segments(&self) -> usize {
        self.0.len()
    }

    /// One segment at these addresses of the ELF image, and at this offset in the file.
    pub(crate) fn of(addresses: Range<u64>, offset: u64) -> Self {
        Self(vec![Segment { addresses, offset }])
    }

    /// The offset in the file of the first of these addresses, and how many bytes of the range lie in the same
    /// segment. `None` if that is no code.
    #[must_use]
    pub fn offsets(&self, addresses: &Range<u64>) -> Option<(u64, u64)> {
        let start = addresses.start;
        let segment = self.0.iter().find(|it| it.addresses.contains(&start))?;
        let bytes = addresses.end.min(segment.addresses.end).saturating_sub(start);
        Some(((start - segment.addresses.start).checked_add(segment.offset)?, bytes))
    }

    /// Where the segments are in the file.
    pub(crate) fn in_file(&self) -> impl Iterator<Item = Range<u64>> {
        let bytes = |it: &Segment| it.addresses.end - it.addresses.start;
        self.0.iter().map(move |it| it.offset..it.offset.saturating_add(bytes(it)))
    }

    /// The offset in the file of an address of the ELF image; `None` if that is no code.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        self.offsets(&(address..address.checked_add(1)?)).map(|(offset, _)| offset)
    }
}

/// The segment of a header; `None` if it reaches beyond the last address.
pub(super) fn segment(header: &ProgramHeader64<Endianness>) -> Option<Segment> {
    let start = header.p_vaddr(ENDIAN);
    let (offset, bytes) = header.file_range(ENDIAN);
    // What is beyond the file's bytes is zero.
    let addresses = start..start.checked_add(bytes)?;
    offset.checked_add(bytes).map(|_| Segment { addresses, offset })
}
