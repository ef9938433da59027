//! Answers of a parser process, checked as what a stranger sends: `None` where one makes no sense.

use profiler_common::build_id::BuildId;
use profiler_python::{
    code::{Code, Unnamed},
    image::Image,
    offsets::Unsupported,
    slot::{NoSlot, Slot},
    text::MAX_CHARS,
};
use profiler_symbols::{self as symbols, AltLink, Malformed};
use profiler_unwind::{NoTable, Standalone, report::Unreported, standalone};

use super::{
    jit,
    message::{Answer, FoundIn, Loaded, decoded},
};

/// Most bytes of an answer with a table: its head comes first.
pub(super) const MAX_TABLE_BYTES: usize = standalone::MAX_BYTES + 64;
/// Most bytes of a report, which is some lines, and of the file's name in it.
pub(super) const MAX_REPORT_BYTES: usize = 1 << 20;
/// Most bytes of an answer that says how a file was loaded, or which others it names.
pub(super) const MAX_LOADED_BYTES: usize = 64 << 10;
/// Most bytes of what is found: a stack has some hundred frames with what was inlined, and short names.
pub(super) const MAX_FOUND_BYTES: usize = 16 << 20;

pub(super) fn table(bytes: &[u8]) -> Option<Result<Standalone, NoTable>> {
    let (answer, rest) = postcard::take_from_bytes(bytes).ok()?;
    match answer {
        Answer::Table(Err(why)) => Some(Err(why)),
        Answer::Table(Ok(parts)) => {
            let rules = usize::try_from(parts.rules).ok()?;
            let flags = (parts.lacks_rules, parts.is_newer_go);
            Standalone::from_parts(rest, rules, flags).ok().map(Ok)
        }
        Answer::Panicked => Some(Err(NoTable::Unreadable)),
        _ => None,
    }
}

pub(super) fn report(bytes: &[u8]) -> Option<Result<String, Unreported>> {
    match decoded(bytes)? {
        Answer::Reported(report) => Some(report),
        Answer::Panicked => Some(Err(Unreported::NoTable(NoTable::Unreadable))),
        _ => None,
    }
}

pub(super) fn links(bytes: &[u8]) -> Option<Vec<AltLink>> {
    let link = |(path, id): (Vec<u8>, Vec<u8>)| {
        Some(AltLink { path, build_id: BuildId::from_slice(&id)? })
    };
    match decoded(bytes)? {
        Answer::Links(links) => Some(links.into_iter().filter_map(link).collect()),
        Answer::Panicked => Some(Vec::new()),
        _ => None,
    }
}

pub(super) fn loaded(bytes: &[u8]) -> Option<Result<Loaded, Malformed>> {
    match decoded(bytes)? {
        Answer::Loaded(loaded) => Some(loaded.ok_or(Malformed)),
        Answer::Panicked => Some(Err(Malformed)),
        _ => None,
    }
}

/// What was found, for this question.
pub(super) fn found(bytes: &[u8], wanted: &[(u64, Vec<u64>)]) -> Option<Vec<Option<FoundIn>>> {
    let Answer::Found(found) = decoded(bytes)? else { return None };
    let is_answered = |(found, (_, offsets)): (&Option<FoundIn>, &(u64, Vec<u64>))| {
        found
            .as_ref()
            .is_none_or(|it| it.answers.len() == offsets.len() && it.answers.iter().all(is_sane))
    };
    let is_whole = found.len() == wanted.len() && found.iter().zip(wanted).all(is_answered);
    is_whole.then_some(found)
}

/// What was taken of this text.
pub(super) fn taken_jit(bytes: &[u8], text: &jit::Text) -> Option<jit::Taken> {
    let Answer::TakenJit(taken) = decoded(bytes)? else { return None };
    let there = match text.kind {
        jit::Kind::PerfMap => text.bytes.len() as u64,
        jit::Kind::Jitdump => text.behind,
    };
    (taken.bytes <= there).then_some(taken)
}

/// What was found at these addresses; `Some(None)` if the process holds nothing there.
#[allow(clippy::option_option, reason = "an answer of nothing is not nonsense")]
pub(super) fn found_jit(bytes: &[u8], addresses: &[u64]) -> Option<Option<Vec<jit::Found>>> {
    let Answer::FoundJit(found) = decoded(bytes)? else { return None };
    let Some(found) = found else { return Some(None) };
    let is_sane = |(found, address): (&jit::Found, &u64)| {
        let is_function = |it: &jit::Function| {
            it.start <= found.first && (1..=jit::MAX_NAME).contains(&it.name.len())
        };
        (found.first..=found.last).contains(address)
            && found.function.as_ref().is_none_or(is_function)
    };
    let is_whole = found.len() == addresses.len() && found.iter().zip(addresses).all(is_sane);
    is_whole.then_some(Some(found))
}

pub(super) fn python(bytes: &[u8]) -> Option<Result<Option<Image>, Unsupported>> {
    match decoded(bytes)? {
        Answer::Python(image) => Some(image),
        Answer::Panicked => Some(Ok(None)),
        _ => None,
    }
}

pub(super) fn python_slot(bytes: &[u8]) -> Option<Result<Slot, NoSlot>> {
    match decoded(bytes)? {
        Answer::PythonSlot(slot) => Some(slot),
        Answer::Panicked => Some(Err(NoSlot::Implausible)),
        _ => None,
    }
}

/// What these code objects are.
pub(super) fn python_code(
    bytes: &[u8],
    wanted: &[(u64, u64)],
) -> Option<Vec<Result<Code, Unnamed>>> {
    const MAX_BYTES: usize = 4 * MAX_CHARS;
    let is_sane = |it: &Result<Code, Unnamed>| {
        it.as_ref().map_or(true, |code| {
            (1..=MAX_BYTES).contains(&code.name.len())
                && code.file.len() <= MAX_BYTES
                && code.lines.is_sane()
        })
    };
    match decoded(bytes)? {
        Answer::PythonCode(found) => {
            (found.len() == wanted.len() && found.iter().all(is_sane)).then_some(found)
        }
        Answer::Panicked => Some(vec![Err(Unnamed::NotCode); wanted.len()]),
        _ => None,
    }
}

pub(super) fn done(bytes: &[u8]) -> Option<()> {
    matches!(decoded(bytes)?, Answer::Done | Answer::Panicked).then_some(())
}

/// Whether this can be the answer of a reader that was not tampered with: no name is empty, and no name or path
/// is longer than names may be.
fn is_sane(answer: &symbols::Answer) -> bool {
    const MAX_BYTES: usize = symbols::demangle::MAX_NAME_BYTES + "@plt".len();
    match answer {
        symbols::Answer::None | symbols::Answer::Wants(_) => true,
        symbols::Answer::Found(found) => {
            let is_path = |it: &symbols::Location| it.path.len() <= MAX_BYTES;
            let is_name = |name: &str| (1..=MAX_BYTES).contains(&name.len());
            is_name(&found.name)
                && found.location.as_ref().is_none_or(is_path)
                && found
                    .inlined
                    .iter()
                    .all(|it| is_name(&it.name) && it.location.as_ref().is_none_or(is_path))
        }
    }
}
