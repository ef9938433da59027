//! What describes code, of whatever kind: a file may have several, each for a part of it.

use std::borrow::Cow;

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian, UnwindSection, Vendor};
use profiler_common::unwind::step::Arch;

use super::{
    cfi::{Bytes, Counts, Frames, Function, Row},
    pclntab::Pclntab,
    source::Place,
};

/// A section that describes code.
#[derive(Clone, Debug)]
pub struct Section<'d> {
    /// Where it was found.
    pub place: Place,
    /// Its bytes, unpacked.
    pub bytes: Cow<'d, [u8]>,
    /// What the pointers in them are relative to.
    pub bases: BaseAddresses,
}

/// The functions that a section tells of, and their rows.
pub(super) trait Describes {
    /// Tells what each entry describes, in the order of the section.
    fn functions(&mut self, tell: &mut dyn FnMut(Function));
    /// Tells the rows of the entry there, in the order of their addresses, without gaps.
    fn rows(&mut self, at: u32, tell: &mut dyn FnMut(Row));
    /// What was met so far.
    fn counts(&self) -> Counts;
}

impl Section<'_> {
    /// What it says; nothing if it can't be read at all.
    pub(super) fn read<A: Arch + 'static>(
        &self,
        vendor: Vendor,
    ) -> Option<Box<dyn Describes + '_>> {
        let bytes = &*self.bytes;
        let bases = self.bases.clone();
        Some(match self.place {
            Place::Pclntab => Box::new(Pclntab::new(bytes)?),
            Place::DebugFrame => {
                let mut section = DebugFrame::new(bytes, LittleEndian);
                section.set_address_size(8);
                section.set_vendor(vendor);
                Box::new(Frames::<_, A>::new(section, bytes, bases, false))
            }
            Place::EhFrame | Place::EhFrameHdr => {
                let mut section = EhFrame::new(bytes, LittleEndian);
                section.set_address_size(8);
                section.set_vendor(vendor);
                let ends_at_zero = self.place == Place::EhFrameHdr;
                Box::new(Frames::<_, A>::new(section, bytes, bases, ends_at_zero))
            }
        })
    }
}

impl<'a, S: UnwindSection<Bytes<'a>>, A: Arch> Describes for Frames<'a, S, A> {
    fn functions(&mut self, tell: &mut dyn FnMut(Function)) {
        Self::functions(self, tell);
    }

    fn rows(&mut self, at: u32, tell: &mut dyn FnMut(Row)) {
        Self::rows(self, at, tell);
    }

    fn counts(&self) -> Counts {
        Self::counts(self)
    }
}

impl Describes for Pclntab<'_> {
    fn functions(&mut self, tell: &mut dyn FnMut(Function)) {
        Self::functions(self, tell);
    }

    fn rows(&mut self, at: u32, tell: &mut dyn FnMut(Row)) {
        Self::rows(self, at, tell);
    }

    fn counts(&self) -> Counts {
        Self::counts(self)
    }
}
