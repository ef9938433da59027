//! Names for the code of mapped files, whose symbols a parser process holds within a limit of bytes.
//!
//! Nothing of a file is read here but its headers. Which files the process holds is known here, so that
//! another one can be given them again when it ends.

mod held;
mod load;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    fs::File,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use blazesym::symbolize::Symbolizer as Blazesym;
use profiler_common::build_id::BuildId;
use profiler_profile::{frame::Missing, ledger::memory::Cache};
use profiler_symbols::{Answer, Found, Malformed};
use rustc_hash::{FxHashMap, FxHashSet};

use self::held::{Held, Known, State, Twin};
use super::{companions, roots::Roots};
use crate::{
    parser::{Failure, FoundIn, Parser, Refusal, Subject},
    process::file::{FileKey, MappedFile},
    time_budget::TimeBudget,
};

/// The most rounds of `.dwo` files that are opened for the addresses of one stack, and files in each.
const MAX_DWO_ROUNDS: usize = 16;
const MAX_DWOS: usize = 64;
/// Debug files that were sent for and are kept open.
const MAX_SUPPLIED: usize = 64;
/// How often a file is asked about before it is given up, at most: twice with its debug information, twice
/// without, and once more for each time that the process is ended by another file.
const MAX_TRIES: usize = 8;

/// How long opening the companions of a file may take, with one checksum of a large debug file.
const COMPANIONS_WITHIN: Duration = Duration::from_secs(6);

/// The time whose share may be used at once: five seconds, since many files are read at the start.
const SAVED: Duration = Duration::from_secs(100);

/// Names for the code of files.
pub(super) struct ElfFiles {
    lines: bool,
    held: Held,
    last_number: u64,
    /// The time for checksums and for what files carry packed.
    time_budget: TimeBudget,
    /// Whether a file was read of which another one, read before, may have better names now.
    has_twin: bool,
    /// Debug files that were sent for.
    supplied: VecDeque<(BuildId, File)>,
    /// Of the stack at hand.
    answers: FxHashMap<(FileKey, u64), LookedUp>,
}

/// What was looked up: nothing if there is no symbol.
pub(super) type LookedUp = Result<Option<Found>, Malformed>;

/// Why nothing can be said of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It can't be opened.
    Missing(Missing),
    /// It was given up.
    Barred,
    /// There is no parser process now.
    NoParser,
}

impl From<Refusal> for Unread {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Barred => Self::Barred,
            Refusal::Unanswered => Self::Missing(Missing::Unanswered),
            Refusal::Unavailable => Self::NoParser,
        }
    }
}

/// A file, and the process that maps it by this name.
#[derive(Clone, Copy)]
pub(super) struct Mapped<'a> {
    pub(super) file: &'a Arc<MappedFile>,
    pub(super) tgid: u32,
    pub(super) name: &'a str,
}

impl Mapped<'_> {
    fn locality(&self) -> Locality {
        let owner = self.file.owner().unwrap_or_default();
        Locality { tgid: self.tgid, owner, path: self.name.into() }
    }
}

/// Where the companions of a file are looked for. It can be sent to another thread.
#[derive(Clone, Debug)]
struct Locality {
    tgid: u32,
    /// The user id of the file's owner.
    owner: u32,
    /// The file's path in the process's root.
    path: PathBuf,
}

impl Locality {
    fn roots(&self) -> Roots {
        Roots::of(self.tgid, self.owner)
    }
}

/// Why a file that is loaded was not answered for.
enum Unanswered {
    /// The process has failed.
    Failed(Failure),
    /// It does not hold the file any more.
    Lost,
    Refused(Refusal),
}

impl ElfFiles {
    /// No file yet; with `lines`, debug info is read, too.
    pub(super) fn new(lines: bool, limit_bytes: usize) -> Self {
        Self {
            lines,
            held: Held::new(limit_bytes as u64),
            last_number: 0,
            time_budget: TimeBudget::saving(SAVED, Instant::now()),
            has_twin: false,
            supplied: VecDeque::new(),
            answers: FxHashMap::default(),
        }
    }

    /// What the parser process holds.
    pub(super) fn account(&self) -> Cache {
        self.held.account()
    }

    /// Asks at once for all that a stack will be asked for: a question costs two changes of process. What is
    /// found is kept until the next stack. Files of which nothing can be said are left to
    /// [`find`](Self::find).
    pub(super) fn prefetch(&mut self, parser: &mut Parser, wanted: &[(Mapped<'_>, u64)]) {
        self.answers.clear();
        let mut by_file: Vec<(Mapped<'_>, FileKey, Vec<u64>)> = Vec::new();
        for (mapped, offset) in wanted {
            let Some(key) = mapped.file.key() else { continue };
            match by_file.iter_mut().find(|(_, of, _)| *of == key) {
                Some((_, _, offsets)) if offsets.contains(offset) => {}
                Some((_, _, offsets)) => offsets.push(*offset),
                None => by_file.push((*mapped, key, vec![*offset])),
            }
        }
        let begin = self.held.now();
        if by_file.len() > 1 {
            self.find_at_once(parser, &by_file);
        }
        for (mapped, key, mut offsets) in by_file {
            offsets.retain(|offset| !self.answers.contains_key(&(key, *offset)));
            if offsets.is_empty() {
                continue;
            }
            if let Ok(found) = self.find_in(parser, mapped, &offsets) {
                let found = offsets.into_iter().zip(found);
                self.answers.extend(found.map(|(offset, it)| ((key, offset), it)));
            }
        }
        parser.forget(self.held.evict(begin));
    }

    /// Asks about several files by one question. If the process does not survive it, each file has to be
    /// asked about on its own, to see which it was.
    fn find_at_once(&mut self, parser: &mut Parser, by_file: &[(Mapped<'_>, FileKey, Vec<u64>)]) {
        let mut question = Vec::new();
        let mut keys = Vec::new();
        for (mapped, key, offsets) in by_file {
            if self.ensure(parser, *mapped, *key).is_ok()
                && let Some(State::Loaded(number)) = self.held.get(*key).map(|it| it.state)
            {
                question.push((number, offsets.clone()));
                keys.push((*key, offsets));
            }
        }
        let Ok(Ok(answers)) = parser.find(question) else { return };
        for ((key, offsets), found) in keys.into_iter().zip(answers) {
            let Some(FoundIn { bytes, answers }) = found else { continue };
            self.held.set_bytes(key, bytes);
            for (offset, answer) in offsets.iter().zip(answers) {
                // What is not there may be in a twin, and a `.dwo` file may have to be opened.
                if let Answer::Found(found) = answer {
                    self.answers.insert((key, *offset), Ok(Some(found)));
                }
            }
        }
    }

    /// What is at an offset of a file.
    pub(super) fn find(
        &mut self,
        parser: &mut Parser,
        mapped: Mapped<'_>,
        offset: u64,
    ) -> Result<LookedUp, Unread> {
        let known = mapped.file.key().and_then(|key| self.answers.get(&(key, offset)));
        if let Some(answer) = known {
            return Ok(answer.clone());
        }
        let begin = self.held.now();
        let mut found = self.find_in(parser, mapped, &[offset])?;
        parser.forget(self.held.evict(begin));
        Ok(found.pop().unwrap_or(Ok(None)))
    }

    /// What is at offsets of a file, or of one with the same code, which may be here twice, stripped and not.
    fn find_in(
        &mut self,
        parser: &mut Parser,
        mapped: Mapped<'_>,
        offsets: &[u64],
    ) -> Result<Vec<LookedUp>, Unread> {
        let key = mapped.file.key().ok_or_else(|| Unread::Missing(mapped.file.missing()))?;
        let mut found = self.find_in_one(parser, mapped, key, offsets)?;
        for Twin { key, file, place: (tgid, name) } in self.held.twins_of(key) {
            let unnamed: Vec<usize> =
                (0..).zip(&found).filter(|(_, it)| **it == Ok(None)).map(|(at, _)| at).collect();
            if unnamed.is_empty() {
                break;
            }
            let offsets: Vec<u64> =
                unnamed.iter().filter_map(|at| offsets.get(*at).copied()).collect();
            let twin = Mapped { file: &file, tgid, name: &name };
            let Ok(of_twin) = self.find_in_one(parser, twin, key, &offsets) else { continue };
            for (at, looked_up) in unnamed.into_iter().zip(of_twin) {
                if let (Some(place), Ok(Some(_))) = (found.get_mut(at), &looked_up) {
                    *place = looked_up;
                }
            }
        }
        Ok(found)
    }

    /// What is at offsets of one file. When the process ends, it is asked once more, since who has ended it
    /// need not have been the file; then the file is read without its debug information; then it is given up.
    fn find_in_one(
        &mut self,
        parser: &mut Parser,
        mapped: Mapped<'_>,
        key: FileKey,
        offsets: &[u64],
    ) -> Result<Vec<LookedUp>, Unread> {
        let mut has_ended = false;
        for _ in 0..MAX_TRIES {
            self.ensure(parser, mapped, key)?;
            let known = self.held.get(key).ok_or(Unread::Missing(Missing::Gone))?;
            let State::Loaded(number) = known.state else {
                return Ok(vec![Err(Malformed); offsets.len()]);
            };
            let (has_lines, start) = (known.has_lines, Instant::now());
            match self.ask(parser, mapped, (key, number), offsets) {
                Ok(found) => return Ok(found.into_iter().map(Ok).collect()),
                Err(Unanswered::Refused(refusal)) => return Err(refusal.into()),
                Err(Unanswered::Lost) => {}
                Err(Unanswered::Failed(Failure::Ended(_))) if !has_ended => has_ended = true,
                Err(Unanswered::Failed(failure)) => {
                    let of = Subject::read(key, has_lines);
                    let file = mapped.file.file().ok_or(Unread::Missing(Missing::Gone))?;
                    parser.bar(of, file, start.elapsed(), failure);
                    if !has_lines {
                        return Err(Unread::Barred);
                    }
                    has_ended = false;
                }
            }
            // Another process runs by now, and is to read it.
            self.held.lose(key);
        }
        Err(Unread::NoParser)
    }

    /// Asks about a file that the process holds, and opens the `.dwo` files that it asks for.
    fn ask(
        &mut self,
        parser: &mut Parser,
        mapped: Mapped<'_>,
        (key, number): (FileKey, u64),
        offsets: &[u64],
    ) -> Result<Vec<Option<Found>>, Unanswered> {
        let mut all: Vec<Option<Found>> = vec![None; offsets.len()];
        let mut pending: Vec<(usize, u64)> = offsets.iter().copied().enumerate().collect();
        for _ in 0..MAX_DWO_ROUNDS {
            let question = vec![(number, pending.iter().map(|(_, offset)| *offset).collect())];
            let answers = asked(parser.find(question))?.pop().flatten();
            let FoundIn { bytes, answers } = answers.ok_or(Unanswered::Lost)?;
            self.held.set_bytes(key, bytes);
            let (mut again, mut wanted) = (Vec::new(), FxHashSet::default());
            for ((at, offset), answer) in pending.into_iter().zip(answers) {
                match answer {
                    Answer::None => {}
                    Answer::Found(found) => {
                        if let Some(place) = all.get_mut(at) {
                            *place = Some(found);
                        }
                    }
                    Answer::Wants(dwo) => {
                        again.push((at, offset));
                        if wanted.len() < MAX_DWOS && wanted.insert(dwo.id) {
                            let (id, locality) = (dwo.id, mapped.locality());
                            let file = open_companions(parser, &locality, move |of| {
                                companions::dwo(&dwo, &of.path, &of.roots())
                            });
                            let file = parser.checked_companion(file.flatten());
                            asked(parser.supply(number, id, file.as_ref()))?;
                        }
                    }
                }
            }
            if again.is_empty() {
                break;
            }
            pending = again;
        }
        Ok(all)
    }

    /// Has the process that runs now hold a file, unless it is malformed.
    fn ensure(
        &mut self,
        parser: &mut Parser,
        mapped: Mapped<'_>,
        key: FileKey,
    ) -> Result<(), Unread> {
        self.held.follow(parser.generation()?);
        if self.held.is_ready(key) {
            return Ok(());
        }
        let read = self.load(parser, mapped, key)?;
        // It may have been another process that has read it in the end.
        self.held.follow(parser.generation()?);
        self.has_twin |= self.held.insert(key, read);
        Ok(())
    }

    /// Whether names that were not found may be now; says so once.
    pub(super) fn has_better_names(&mut self) -> bool {
        std::mem::take(&mut self.has_twin)
    }

    /// Whether a debug file may be of use.
    pub(super) fn wants_debug_file(&self, file: &MappedFile) -> bool {
        let known = file.key().and_then(|key| self.held.get(key));
        known.is_some_and(|it| !it.has_debug_file && it.state != State::Malformed)
    }

    /// Takes a debug file that was sent for; whether it is of use.
    pub(super) fn add_debug_file(&mut self, parser: &mut Parser, id: BuildId, debug: File) -> bool {
        let Some(lost) = self.held.lose_all_of(id) else { return false };
        parser.forget(lost);
        self.supplied.retain(|(of, _)| *of != id);
        if self.supplied.len() >= MAX_SUPPLIED {
            self.supplied.pop_front();
        }
        self.supplied.push_back((id, debug));
        true
    }
}

/// Looks for companions of a file on a thread that may have to wait for a file system. `None` if that does not
/// respond.
fn open_companions<T: Send + 'static>(
    parser: &mut Parser,
    of: &Locality,
    open: impl FnOnce(&Locality) -> T + Send + 'static,
) -> Option<T> {
    let moved = of.clone();
    let name = || format!("debug files of {}", of.path.display());
    parser.ask_file_system(of.owner, COMPANIONS_WITHIN, name, move || open(&moved))
}

fn asked<T>(answer: Result<Result<T, Failure>, Refusal>) -> Result<T, Unanswered> {
    answer.map_err(Unanswered::Refused)?.map_err(Unanswered::Failed)
}

/// A blazesym for the kernel and the vDSO, with debug info if `lines` are asked for.
pub(super) fn blazesym(lines: bool) -> Blazesym {
    Blazesym::builder()
        // What the kernel has got since is followed elsewhere.
        .enable_auto_reload(false)
        .enable_code_info(lines)
        .enable_inlined_fns(lines)
        .build()
}
