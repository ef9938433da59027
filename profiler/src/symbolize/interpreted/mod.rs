//! What an interpreter runs, among the native frames.

mod merge;

use std::sync::Arc;

use profiler_common::{
    python::wire::Frame as Found,
    sample::{InterpreterEnd, RUNS_CODE, UserEnd},
};
use profiler_profile::{address::Address, stack::Location};

pub use self::merge::View;
use self::merge::{Native, groups, mark_evaluators, mark_last, merge};
use super::{
    python::{memory::Process, names::Wanted},
    symbolizer::Symbolizer,
};
use crate::{
    process::interpreters::Interpreters,
    sample::{Addresses, RawSample},
};

/// Puts the frames of interpreters among the native ones.
#[derive(Debug)]
pub struct Merger {
    view: View,
    interpreters: Arc<Interpreters>,
}

impl Merger {
    /// Shows stacks so, of the interpreters that are known of.
    #[must_use]
    pub fn new(view: View, interpreters: Arc<Interpreters>) -> Self {
        Self { view, interpreters }
    }

    /// What tells the user half of a sample from others. Where the evaluator's records are on the stack makes no
    /// difference.
    #[must_use]
    pub fn key(&self, raw: &RawSample<'_>) -> Vec<u8> {
        let image = self.interpreters.of(raw.tgid).map_or(0, |it| it.number);
        let words = raw.interpreter.iter().flat_map(|frame| match frame {
            Found::Entry { record } => Found::Entry { record: u64::from(record != 0) }.to_wire(),
            code @ Found::Code { .. } => code.to_wire(),
        });
        let bytes = std::iter::once(image).chain(words).flat_map(u64::to_ne_bytes);
        bytes.chain(raw.user.as_bytes().iter().copied()).collect()
    }

    /// Merges a sample's frames, of which the native ones have been named. Also says whether the result would be the
    /// same another time.
    pub fn merge(
        &self,
        symbolizer: &mut Symbolizer,
        raw: &RawSample<'_>,
        native: Vec<Location>,
    ) -> (Vec<Location>, bool) {
        let Some(interpreter) = self.interpreters.of(raw.tgid) else {
            // It was forgotten: its process has ended long ago.
            return (native, false);
        };
        let wanted = raw.interpreter.iter().filter_map(|frame| match frame {
            Found::Code { code, instruction, check } => Some(Wanted { code, check, instruction }),
            Found::Entry { .. } => None,
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let (tgid, image) = (raw.tgid, interpreter.number);
        let named =
            symbolizer.python(Process { tgid, image, python: &interpreter.loaded }, &wanted);
        let mut frames = named.frames.into_iter();
        let mut has_records = true;
        let found = raw.interpreter.iter().filter_map(|frame| match frame {
            Found::Entry { record } => {
                has_records &= record != 0;
                Some(None)
            }
            Found::Code { code, instruction, .. } => {
                let frame = frames.next()??;
                let address = Address::sampled(code.wrapping_add(u64::from(instruction)));
                Some(Some(Location { address, frames: Arc::from([frame]) }))
            }
        });
        let groups = groups(found);
        let mut native = marked(native, raw.user);
        let is_whole = raw.user_end == UserEnd::Complete && !is_cut(raw);
        if !has_records {
            mark_evaluators(&mut native, groups.len(), is_whole);
        } else if is_cut(raw) {
            mark_last(&mut native);
        }
        (merge(native, groups, self.view == View::Only), named.is_final)
    }
}

/// Whether there are more frames of the interpreter: more than fit, or than could be read.
#[must_use]
pub fn is_cut(raw: &RawSample<'_>) -> bool {
    matches!(raw.interpreter.end, InterpreterEnd::Depth | InterpreterEnd::Unreadable)
        && raw.interpreter.iter().last().is_some_and(|it| matches!(it, Found::Code { .. }))
}

/// How many frames have no place among the native ones, since these end before. Not where the interpreter keeps no
/// records: there names tell the places.
#[must_use]
pub fn appended(raw: &RawSample<'_>) -> u64 {
    let mut groups = raw.user.iter().filter(|address| address & RUNS_CODE != 0).count();
    let (mut appended, mut of_group, mut has_records) = (0, 0, true);
    for frame in raw.interpreter.iter() {
        match frame {
            Found::Code { .. } => of_group += u64::from(groups == 0),
            Found::Entry { record } => {
                appended += std::mem::take(&mut of_group);
                has_records &= record != 0;
                groups = groups.saturating_sub(1);
            }
        }
    }
    // The last group of those that were cut has its place.
    let appended = if is_cut(raw) { appended } else { appended + of_group };
    if has_records { appended } else { 0 }
}

/// The native frames, and which of them run code. They are named without the zero that a walk may end with.
fn marked(native: Vec<Location>, addresses: Addresses<'_>) -> Vec<Native> {
    let marks = addresses.iter().filter(|address| address & !RUNS_CODE != 0);
    let native = native.into_iter().zip(marks);
    native.map(|(location, it)| Native { location, runs_code: it & RUNS_CODE != 0 }).collect()
}
