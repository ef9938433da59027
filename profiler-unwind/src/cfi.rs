//! Reads call frame information (`.eh_frame`, `.debug_frame`) into rows: a range of addresses and its rule.
//!
//! Only the CFA, the frame pointer and the return address matter here. gimli decodes the instructions, and `state`
//! runs them, rather than gimli's `UnwindTable`, which keeps all registers.
//!
//! The input belongs to others. Each entry is read once for its address and once for its rows, so time grows
//! with the size of the section only. Entries that others refer to (CIEs) have limits of their own.

use std::{collections::BTreeMap, marker::PhantomData};

use gimli::{
    BaseAddresses, CommonInformationEntry, EndianSlice, FrameDescriptionEntry, LittleEndian,
    Reader as _, UnwindOffset, UnwindSection,
};
use profiler_common::unwind::{
    rule::{Cfa, Rule},
    step::Arch,
};

pub(crate) mod expression;
mod rule;
mod state;
#[cfg(test)]
pub(crate) mod tests;

pub use state::Unsupported;
use state::{Run, State};

/// The bytes of a section.
pub type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// The most different CIEs of a file. Linkers merge equal ones: real files have some dozens.
const MAX_CIES: usize = 1 << 14;
/// The most bytes of a CIE. They overlap in hostile files only, but each of [`MAX_CIES`] is read.
const MAX_CIE_BYTES: usize = 1 << 12;
/// The most rows of one function. The largest real ones have some thousands.
pub(crate) const MAX_ROWS: u64 = 1 << 20;

/// A rule and where it holds, in addresses of the ELF image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// The rule.
    pub rule: Rule,
}

/// The function that one entry (FDE) describes, in addresses of the ELF image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// The offset of the entry in its section, or its index in `.gopclntab`.
    pub at: u32,
}

/// What was read in a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that describe code.
    pub functions: u64,
    /// Entries that can't be read, so that it's unknown what they describe.
    pub malformed: u64,
    /// Rows.
    pub rows: u64,
    /// Rows that no rule can express, by [`Unsupported`].
    pub unsupported: [u64; Unsupported::ALL.len()],
}

impl Counts {
    /// The sums of both.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        self.functions += other.functions;
        self.malformed += other.malformed;
        self.rows += other.rows;
        for (sum, count) in self.unsupported.iter_mut().zip(&other.unsupported) {
            *sum += count;
        }
        self
    }
}

/// The entries of a section, for one machine.
#[derive(Debug)]
pub struct Frames<'a, S, A> {
    section: S,
    bytes: Bytes<'a>,
    bases: BaseAddresses,
    ends_at_zero: bool,
    /// By their offset; `None` is a malformed one.
    cies: BTreeMap<usize, Option<Cie<'a>>>,
    counts: Counts,
    arch: PhantomData<A>,
}

/// What functions share, and the state that they start with.
#[derive(Clone, Debug)]
struct Cie<'a> {
    entry: CommonInformationEntry<Bytes<'a>>,
    initial: State,
}

/// An entry, with the state that it starts with.
type Entry<'a> = (Function, State, FrameDescriptionEntry<Bytes<'a>>);

impl<'a, S: UnwindSection<Bytes<'a>>, A: Arch> Frames<'a, S, A> {
    /// The entries of a section. `section` is made from the same `bytes`. If it `ends_at_zero`, an empty entry is its
    /// end, as where its size is unknown.
    pub fn new(section: S, bytes: &'a [u8], bases: BaseAddresses, ends_at_zero: bool) -> Self {
        Self {
            section,
            bytes: EndianSlice::new(bytes, LittleEndian),
            bases,
            ends_at_zero,
            cies: BTreeMap::new(),
            counts: Counts::default(),
            arch: PhantomData,
        }
    }

    /// What was read so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Calls `tell` with each function, in the order of the section.
    pub fn functions(&mut self, mut tell: impl FnMut(Function)) {
        let mut input = self.bytes;
        // Entries are skipped by their length, so that one that can't be read costs only itself.
        loop {
            let at = input.offset_from(self.bytes);
            let length = match input.read_initial_length() {
                Ok((0, _)) if self.ends_at_zero => break,
                Ok((length, _)) => length,
                Err(_) => {
                    self.counts.malformed += u64::from(!input.is_empty());
                    break;
                }
            };
            if length == 0 {
                continue;
            }
            if input.skip(length).is_err() {
                self.counts.malformed += 1;
                break;
            }
            match self.function(at) {
                Some(Ok((function, ..))) => {
                    self.counts.functions += 1;
                    tell(function);
                }
                Some(Err(())) => self.counts.malformed += 1,
                None => {}
            }
        }
    }

    /// The entry at an offset; `None` if it is a CIE.
    fn function(&mut self, at: usize) -> Option<Result<Entry<'a>, ()>> {
        let Self { section, bases, cies, .. } = self;
        let partial = match section.partial_fde_from_offset(bases, at.into()) {
            Ok(partial) => partial,
            Err(gimli::Error::NotCiePointer(_)) => return None,
            Err(_) => return Some(Err(())),
        };
        let mut initial = State::NOTHING_SAID;
        let parsed = partial.parse(|section, bases, offset| {
            let cie = cie::<S, A>(cies, section, bases, offset)?;
            initial = cie.initial;
            Ok(cie.entry.clone())
        });
        let Ok(entry) = parsed else { return Some(Err(())) };
        let start = entry.initial_address();
        let Some(end) = start.checked_add(entry.len()) else { return Some(Err(())) };
        let Ok(at) = u32::try_from(at) else { return Some(Err(())) };
        Some(Ok((Function { start, end, at }, initial, entry)))
    }

    /// Calls `tell` with each row of the [entry](Function::at) there, in the order of their addresses, without gaps.
    pub fn rows(&mut self, at: u32, mut tell: impl FnMut(Row)) {
        let Ok(at) = usize::try_from(at) else { return };
        let Some(Ok((Function { start, end: function_end, .. }, initial, entry))) =
            self.function(at)
        else {
            return;
        };
        let Self { section, bases, counts, .. } = self;
        let mut row = |start: u64, end: u64, rule: Result<Rule, Unsupported>| {
            let end = end.min(function_end);
            if start >= end {
                return;
            }
            counts.rows += 1;
            let rule = rule.unwrap_or_else(|why| {
                if let Some(count) = counts.unsupported.get_mut(why as usize) {
                    *count += 1;
                }
                Rule::of(Cfa::UNSUPPORTED)
            });
            tell(Row { start, end, rule });
        };
        let mut run = Run::<A>::of_function(entry.cie(), initial);
        let mut instructions = entry.instructions(section, bases);
        let mut from = start;
        for _ in 0..MAX_ROWS {
            match run.next_row(&mut instructions, from) {
                Ok(Some(next)) => {
                    if from < next {
                        row(from, next, run.rule(section));
                    }
                    from = next;
                }
                Ok(None) => {
                    return row(from, function_end, run.rule(section));
                }
                Err(()) => break,
            }
        }
        row(from, function_end, Err(Unsupported::Instructions));
    }
}

/// The CIE at an offset, which is read once.
fn cie<'c, 'a, S: UnwindSection<Bytes<'a>>, A: Arch>(
    cies: &'c mut BTreeMap<usize, Option<Cie<'a>>>,
    section: &S,
    bases: &BaseAddresses,
    offset: S::Offset,
) -> gimli::Result<&'c Cie<'a>> {
    let at: usize = UnwindOffset::into(offset);
    let malformed = gimli::Error::NotCieId(at as u64);
    if cies.len() >= MAX_CIES && !cies.contains_key(&at) {
        return Err(malformed);
    }
    let read = || {
        let entry = section.cie_from_offset(bases, offset).ok()?;
        if entry.entry_len() > MAX_CIE_BYTES {
            return None;
        }
        let mut run = Run::<A>::of_cie(&entry);
        let mut instructions = entry.instructions(section, bases);
        while run.next_row(&mut instructions, 0).ok()?.is_some() {}
        let initial = run.state;
        Some(Cie { entry, initial })
    };
    cies.entry(at).or_insert_with(read).as_ref().ok_or(malformed)
}
