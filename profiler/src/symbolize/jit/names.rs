//! The names of one process, which the parser process holds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use profiler_profile::frame::{Missing, Origin};

use super::{
    super::owner::Owner,
    With,
    files::{self, Look, Tails},
    spans::Spans,
    tail_reader::{News, TailReader},
};
use crate::{
    parser::{Failure, JitKind, JitText, Parser, Subject},
    process::{
        space::{Mapped, SpaceId},
        table::Process,
    },
};

/// How long a file system may take for a step of a file. A disk under load takes a part of a second.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How often the parser process may end at a file before that is given up: the first time it may have been another
/// one's fault.
const MAX_FAILURES: u32 = 2;

/// A process as one that makes code.
pub(super) struct JitProcess<'a> {
    pub(super) tgid: u32,
    pub(super) space: SpaceId,
    pub(super) mappings: &'a [Mapped],
}

impl<'a> JitProcess<'a> {
    pub(super) fn of(process: &'a Process) -> Self {
        let (space, mappings) = (process.space.id(), &**process.space.mappings());
        Self { tgid: process.tgid, space, mappings }
    }
}

/// The process that writes files, as people know it.
#[derive(Clone, Copy, Debug)]
struct Author {
    tgid: u32,
    own_id: u32,
    uid: u32,
}

impl Author {
    fn file(self, kind: JitKind) -> String {
        let Self { tgid, own_id, .. } = self;
        match kind {
            JitKind::PerfMap => format!("{} of process {tgid}", files::perf_map_path(own_id)),
            JitKind::Jitdump => format!("the jitdump of process {tgid}"),
        }
    }
}

/// The names of a process, as last read.
#[derive(Debug)]
pub(super) struct Names {
    /// By which the parser process knows it.
    number: u64,
    /// Which parser process holds them.
    generation: Option<u64>,
    /// What they take there.
    held_bytes: u64,
    /// The mappings with which they were.
    pub(super) space: SpaceId,
    tails: Tails,
    /// Who writes the files.
    author: Option<Author>,
    /// How often the parser process has failed here, since it has last given names.
    failures: u32,
    /// Whether all that was written has been read. Before, nothing is known, since what was read last may stand
    /// against it.
    pub(super) is_all: bool,
    /// What the parser process has answered.
    spans: Spans,
    /// Whether there may be other answers now.
    is_outdated: bool,
    /// Why an address has no name.
    why: Origin,
    pub(super) look_again: Instant,
}

/// What reading on has brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is more.
    More,
    /// There is nothing more for now.
    End,
    /// The file system did not respond; for the files of this user, or of this process of root.
    Unanswered((u32, u32)),
}

impl Names {
    pub(super) fn new(number: u64, space: SpaceId, now: Instant) -> Self {
        Self {
            number,
            generation: None,
            held_bytes: 0,
            space,
            tails: Tails::default(),
            author: None,
            failures: 0,
            is_all: false,
            spans: Spans::default(),
            is_outdated: false,
            why: Origin::NoMap,
            look_again: now,
        }
    }

    /// The number by which the parser process knows it.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the parser process that runs now holds what was read.
    pub(super) fn is_held(&self, parser: &mut Parser) -> bool {
        self.generation.is_some() && self.generation == parser.generation().ok()
    }

    /// The function at an address, or why none is known.
    pub(super) fn find(&self, address: u64) -> Result<(u64, Arc<str>, Origin), Origin> {
        let named = self.spans.get(address).flatten().filter(|_| self.is_all);
        named.map(|it| (it.start, Arc::clone(&it.name), it.origin)).ok_or(self.why)
    }

    /// The memory it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let held = if self.generation.is_some() { self.held_bytes } else { 0 };
        self.spans.bytes() + usize::try_from(held).unwrap_or(usize::MAX)
    }

    /// Asks the parser process for what it was not asked yet.
    pub(super) fn ask(&mut self, with: &mut With<'_>, addresses: &[u64]) {
        let mut unknown: Vec<u64> =
            addresses.iter().copied().filter(|it| self.spans.get(*it).is_none()).collect();
        if !self.is_all || unknown.is_empty() || !self.is_held(with.parser) {
            return;
        }
        unknown.sort_unstable();
        unknown.dedup();
        let start = Instant::now();
        match with.parser.find_jit(self.number, unknown) {
            Ok(Ok(Some(found))) => {
                self.failures = 0;
                for it in found {
                    self.spans.insert(it, with.interned);
                }
            }
            Ok(Ok(None)) => self.generation = None,
            Ok(Err(failure)) => {
                self.blame_all(with.parser, start.elapsed(), &failure);
            }
            Err(_) => {}
        }
    }

    /// Reads a step of what is new. Of a process that is gone, what was read stays.
    pub(super) fn read_on(
        &mut self,
        parser: &mut Parser,
        process: &JitProcess<'_>,
        is_silent: impl Fn((u32, u32)) -> bool,
    ) -> Step {
        let Some(owner) = Owner::of(process.tgid) else { return Step::End };
        let user = (owner.uid, if owner.uid == 0 { process.tgid } else { 0 });
        if is_silent(user) {
            self.why = Origin::NoFile(Missing::Unanswered);
            return Step::End;
        }
        let Ok(generation) = parser.generation() else {
            self.why = Origin::NoParser;
            return Step::End;
        };
        if self.generation != Some(generation) {
            // It knows nothing yet.
            self.generation = Some(generation);
            self.tails = Tails::default();
            (self.held_bytes, self.is_all) = (0, false);
        }
        let author = Author { tgid: process.tgid, own_id: owner.own_id, uid: owner.uid };
        self.author = Some(author);
        let jit_dump = files::jit_dump(process.mappings).cloned();
        let tails = self.tails.clone();
        let look = move || tails.look(&owner, jit_dump);
        let name = || author.file(JitKind::PerfMap);
        let Some(look) = parser.ask_file_system(author.uid, ANSWERS_WITHIN, name, look) else {
            self.why = Origin::NoFile(Missing::Unanswered);
            return Step::Unanswered(user);
        };
        self.take_look(parser, look, author)
    }

    /// Has the parser process take what is new.
    fn take_look(&mut self, parser: &mut Parser, look: Look, author: Author) -> Step {
        self.why = look.perf_map.as_ref().err().copied().unwrap_or(Origin::NoMap);
        let looks = [(JitKind::PerfMap, look.perf_map.ok()), (JitKind::Jitdump, look.jit_dump)];
        let mut is_all = true;
        for (kind, look) in looks {
            match look {
                Some(Ok(news)) if is_barred(parser, &news.tail, author) => {
                    self.why = Origin::Barred;
                }
                Some(Ok(news)) => match self.take(parser, news, kind, author) {
                    Ok(is_all_of_it) => is_all &= is_all_of_it,
                    Err(step) => return step,
                },
                Some(Err(error)) => {
                    tracing::debug!("cannot read {}: {error}", author.file(kind));
                }
                // It is gone, and what it has said with it.
                None if self.tails.of(kind).has_begun() => {
                    let gone = self.tails.of(kind).gone();
                    if let Err(step) = self.take(parser, gone, kind, author) {
                        return step;
                    }
                }
                None => {}
            }
        }
        if self.tails.are_malformed() {
            self.why = Origin::BadMap;
        }
        self.is_all = is_all;
        if is_all && std::mem::take(&mut self.is_outdated) {
            self.spans.clear();
        }
        if is_all { Step::End } else { Step::More }
    }

    /// Has the parser process take what is new in a file, and says whether that was all.
    fn take(
        &mut self,
        parser: &mut Parser,
        news: News,
        kind: JitKind,
        author: Author,
    ) -> Result<bool, Step> {
        if !news.is_any() {
            return Ok(true);
        }
        let start = Instant::now();
        let text = JitText {
            process: self.number,
            kind,
            is_new: news.is_new,
            is_cut: news.is_cut,
            behind: news.behind,
            bytes: news.bytes.clone(),
        };
        let taken = match parser.take_jit(text) {
            Ok(Ok(taken)) => taken,
            Ok(Err(failure)) => {
                self.has_failed(parser, &[(kind, &news.tail)], start.elapsed(), &failure);
                return Err(Step::More);
            }
            Err(_) => {
                self.why = Origin::NoParser;
                return Err(Step::End);
            }
        };
        if let Some(problem) = taken.problem {
            tracing::debug!("cannot read {}: {problem}", author.file(kind));
        }
        self.held_bytes = taken.held_bytes;
        self.is_outdated |= news.is_new || taken.bytes > 0;
        let (tail, is_all) = news.taken(&taken);
        *self.tails.of_mut(kind) = tail;
        Ok(is_all)
    }

    /// The parser process has failed at what it has taken from both files.
    pub(super) fn blame_all(&mut self, parser: &Parser, took: Duration, failure: &Failure) {
        let tails = self.tails.clone();
        let files = [JitKind::PerfMap, JitKind::Jitdump].map(|kind| (kind, tails.of(kind)));
        self.has_failed(parser, &files, took, failure);
    }

    /// The parser process has failed at one of these files, and another one runs.
    fn has_failed(
        &mut self,
        parser: &Parser,
        files: &[(JitKind, &TailReader)],
        took: Duration,
        failure: &Failure,
    ) {
        self.generation = None;
        self.failures += 1;
        if matches!(failure, Failure::Ended(_)) && self.failures < MAX_FAILURES {
            return;
        }
        self.failures = 0;
        let Some(author) = self.author else { return };
        for (kind, tail) in files {
            if let Some(subject) = subject(tail) {
                parser.give_up(subject, author.uid, took, failure.clone(), &author.file(*kind));
            }
        }
    }
}

fn is_barred(parser: &Parser, tail: &TailReader, author: Author) -> bool {
    subject(tail).is_some_and(|it| !parser.may_parse(it, author.uid))
}

/// What is given up in place of a file.
fn subject(tail: &TailReader) -> Option<Subject> {
    tail.id().map(|(device, inode)| Subject::Companion(device, inode))
}
