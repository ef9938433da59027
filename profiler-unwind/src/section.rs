//! A section with unwind information, of whatever kind. A file may have several, each for a part of its code.

use std::borrow::Cow;

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian, UnwindSection, Vendor};
use profiler_common::unwind::step::Arch;

use crate::{
    cfi::{Bytes, Counts, Frames, Function, Row},
    pclntab::Pclntab,
    source::Place,
};

/// A section with unwind information.
#[derive(Clone, Debug)]
pub struct Section<'d> {
    /// Where it was found.
    pub place: Place,
    /// Its bytes, decompressed.
    pub bytes: Cow<'d, [u8]>,
    /// What the pointers in them are relative to; for `.gopclntab`, the start of the code.
    pub bases: BaseAddresses,
}

/// A reader of functions and their rows.
pub(crate) trait Describes {
    /// Calls `tell` with each function, in the order of the section.
    fn functions(&mut self, tell: &mut dyn FnMut(Function));
    /// Calls `tell` with each row of the [function](Function::at) there, in the order of their addresses, without gaps.
    fn rows(&mut self, at: u32, tell: &mut dyn FnMut(Row));
    /// What was read so far.
    fn counts(&self) -> Counts;
}

impl Section<'_> {
    /// A reader of it; `None` if it can't be read at all.
    pub(crate) fn read<A: Arch + 'static>(
        &self,
        vendor: Vendor,
    ) -> Option<Box<dyn Describes + '_>> {
        let bytes = &*self.bytes;
        let bases = self.bases.clone();
        Some(match self.place {
            Place::Pclntab => Box::new(Pclntab::new(bytes, bases.eh_frame.text?)?),
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
