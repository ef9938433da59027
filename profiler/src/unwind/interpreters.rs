//! Which processes run CPython, and where the walk finds the frames of their threads.
//!
//! A file that walks have come through is looked at once: whether it is an interpreter does not depend on its name.
//! Where a process has one mapped, its memory says where threads keep their state, once it has a thread.

use std::{
    cell::OnceCell,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use profiler_common::{
    python::{INTERPRETERS, Interpreter, Layout},
    unwind::table::TABLES,
};
use profiler_profile::frame::Origin;
use profiler_python::{
    image::{Image, Loaded},
    offsets::Unsupported,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::builder::Job;
use crate::{
    bpf::{features::thread_pointer, unwind::UnwindMaps},
    parser::Parser,
    process::{
        file::{FileKey, MappedFile},
        interpreters::{self, Interpreters as Shared},
        space::Mapped,
    },
    procfs::maps::Backing,
    stderr,
    symbolize::python::{
        attach::{self, NotAttached},
        memory,
    },
};

/// The thread pointer is that far above `pthread_self()`. On aarch64 it depends on the C library, and nothing finds it out yet.
const POINTER_ABOVE: Option<u64> = if cfg!(target_arch = "x86_64") { Some(0) } else { None };
/// How often a process is looked at again that has no thread with a state yet: first so soon, and each time later.
const FIRST_AGAIN: Duration = Duration::from_millis(5);
const LAST_AGAIN: Duration = Duration::from_secs(2);
/// How often at most: some programs link the interpreter and never run it.
const TRIES: u32 = 30;
/// Files that are known. Of more, nothing is asked.
const MAX_FILES: usize = 2 * TABLES as usize;
/// Questions that may wait for their answers: they share a queue with tables that are to be made.
const MAX_ASKED: usize = 8;
/// Versions that are said to be unknown: a file may claim any.
const MAX_NOTICED: usize = 10;

/// What the thread that has a parser process is asked.
pub(super) enum Question {
    /// Whether a file is an interpreter.
    File(FileKey, Arc<MappedFile>),
    /// How threads of a process keep their frames: its pid, its number, and the interpreter.
    Layout(u32, u64, Arc<Loaded>),
}

/// What it has found.
pub(super) enum Answer {
    /// Of a file.
    File(FileKey, Result<Option<Image>, NotAttached>),
    /// Of a process, and what it was asked with.
    Layout(u32, u64, Result<Layout, NotAttached>),
}

impl Question {
    /// Answers it.
    pub(super) fn answer(self, parser: &mut Parser) -> Answer {
        match self {
            Self::File(key, file) => {
                let image = match file.unchanged() {
                    Ok(open) => attach::image(parser, key, open),
                    Err(why) => Err(NotAttached::Unread(Origin::NoFile(why))),
                };
                Answer::File(key, image)
            }
            Self::Layout(tgid, image, python) => {
                let process = memory::Process { tgid, image, python: &python };
                let layout = POINTER_ABOVE
                    .map_or(Err(NotAttached::NoThreads), |it| attach::layout(parser, process, it));
                Answer::Layout(tgid, image, layout)
            }
        }
    }
}

/// What is known of a file.
enum Known {
    Asked,
    Other,
    Interpreter(Arc<Image>),
}

/// A process with an interpreter.
struct Process {
    number: u64,
    loaded: Arc<Loaded>,
    state: State,
}

enum State {
    Asked {
        tries: u32,
    },
    /// It has no thread yet.
    Waits {
        until: Instant,
        tries: u32,
    },
    /// The eBPF program is told: one more than the element.
    Told(u32),
    /// It can't be found out.
    Unknown,
}

/// Interpreters, and what is known of files and processes.
pub(super) struct Interpreters {
    shared: Arc<Shared>,
    questions: mpsc::SyncSender<Job>,
    answers: mpsc::Receiver<Answer>,
    /// Questions whose answers are to come.
    asked: usize,
    files: FxHashMap<FileKey, Known>,
    /// Whether one of them is an interpreter.
    is_any: bool,
    processes: FxHashMap<u32, Process>,
    /// What the eBPF program has, in the order of its elements.
    layouts: Vec<Layout>,
    /// Where the kernel keeps the thread pointer of a task, once it is needed.
    thread_pointer: OnceCell<Option<u32>>,
    last_number: u64,
    /// Whether it was said that no other layout has room.
    is_full: bool,
    noticed: FxHashSet<Unsupported>,
}

impl Interpreters {
    /// None yet. Who answers has the other ends.
    pub(super) fn new(
        shared: Arc<Shared>,
        questions: mpsc::SyncSender<Job>,
        answers: mpsc::Receiver<Answer>,
    ) -> Self {
        Self {
            shared,
            questions,
            answers,
            asked: 0,
            files: FxHashMap::default(),
            is_any: false,
            processes: FxHashMap::default(),
            layouts: Vec::new(),
            thread_pointer: OnceCell::new(),
            last_number: 0,
            is_full: false,
            noticed: FxHashSet::default(),
        }
    }

    /// Has a file looked at that a walk has come through.
    pub(super) fn look_at(&mut self, key: FileKey, file: impl FnOnce() -> Option<Arc<MappedFile>>) {
        // Without it, frames stay native, and no file is read for nothing.
        if POINTER_ABOVE.is_none() || self.files.contains_key(&key) {
            return;
        }
        if self.files.len() >= MAX_FILES {
            self.files.retain(|_, it| !matches!(it, Known::Other));
        }
        if self.files.len() < MAX_FILES
            && let Some(file) = file()
            && self.ask(Question::File(key, file))
        {
            self.files.insert(key, Known::Asked);
        }
    }

    /// Asks, if there is room for another question.
    fn ask(&mut self, question: Question) -> bool {
        let asked =
            self.asked < MAX_ASKED && self.questions.try_send(Job::Python(question)).is_ok();
        self.asked += usize::from(asked);
        asked
    }

    /// What the eBPF program is to know of a process: one more than an element, or 0.
    pub(super) fn of(&self, tgid: u32) -> u32 {
        match self.processes.get(&tgid) {
            Some(Process { state: State::Told(element), .. }) => *element,
            _ => 0,
        }
    }

    /// A process has something else mapped, which these others have, too: it was just begun by one of them.
    pub(super) fn changed<'a>(
        &mut self,
        tgid: u32,
        mut mappings: impl Iterator<Item = &'a Mapped>,
        mut others: impl Iterator<Item = u32>,
    ) {
        if !self.is_any {
            return;
        }
        let loaded = mappings.find_map(|mapped| {
            let Backing::File(file) = &mapped.backing else { return None };
            let Some(Known::Interpreter(image)) = self.files.get(&file.key()?) else { return None };
            image.loaded_at(mapped.start, mapped.file_offset)
        });
        let Some(loaded) = loaded else { return self.forget(tgid) };
        let is_same = |it: &Process| it.loaded.runtime == loaded.runtime;
        if self.processes.get(&tgid).is_some_and(is_same) {
            return;
        }
        self.forget(tgid);
        // A child has what its parent has, and also where.
        let told = others.find_map(|other| match self.processes.get(&other)? {
            it @ Process { state: State::Told(at), .. } if is_same(it) => Some(*at),
            _ => None,
        });
        self.last_number += 1;
        let (number, loaded) = (self.last_number, Arc::new(loaded));
        if told.is_some() {
            let loaded = Arc::clone(&loaded);
            self.shared.add(tgid, interpreters::Interpreter { number, loaded });
        }
        let state = told.map_or(State::Waits { until: Instant::now(), tries: 0 }, State::Told);
        self.processes.insert(tgid, Process { number, loaded, state });
    }

    /// A process has nothing mapped any more, or something else.
    pub(super) fn forget(&mut self, tgid: u32) {
        if let Some(Process { number, .. }) = self.processes.remove(&tgid) {
            self.shared.remove(tgid, number);
        }
    }

    /// Whether an answer is to come.
    pub(super) fn is_busy(&self) -> bool {
        let is_asked = |it: &Process| matches!(it.state, State::Asked { .. });
        self.processes.values().any(is_asked)
            || self.files.values().any(|it| matches!(it, Known::Asked))
    }

    /// Takes answers, and asks what is due. Gives the processes of which the eBPF program is to be told, and whether
    /// a file has turned out to be an interpreter, so that all processes are to be looked through.
    pub(super) fn go_on(&mut self, maps: &mut UnwindMaps) -> (Vec<u32>, bool) {
        let (mut told, mut is_new) = (Vec::new(), false);
        while let Ok(answer) = self.answers.try_recv() {
            self.asked = self.asked.saturating_sub(1);
            match answer {
                Answer::File(key, Ok(Some(image))) => {
                    tracing::debug!("Python {} in {key:?}", image.offsets.version);
                    self.files.insert(key, Known::Interpreter(Arc::new(image)));
                    (self.is_any, is_new) = (true, true);
                }
                Answer::File(key, Ok(None)) => drop(self.files.insert(key, Known::Other)),
                // It may be had the next time that a walk comes through it.
                Answer::File(key, Err(NotAttached::Unread(Origin::Unread))) => {
                    self.files.remove(&key);
                }
                Answer::File(key, Err(why)) => {
                    self.files.insert(key, Known::Other);
                    if let NotAttached::Unsupported(why) = why
                        && self.noticed.len() < MAX_NOTICED
                        && self.noticed.insert(why.clone())
                    {
                        stderr::notice(&format!("stacks of Python have native frames only: {why}"));
                    }
                }
                Answer::Layout(tgid, number, layout) => {
                    if self.found(tgid, number, layout, maps) {
                        told.push(tgid);
                    }
                }
            }
        }
        self.ask_due();
        (told, is_new)
    }

    /// Asks where threads of those processes have their state whose time has come: the one that waits for longest first.
    fn ask_due(&mut self) {
        let now = Instant::now();
        let due = self.processes.iter().filter_map(|(&tgid, process)| match process.state {
            State::Waits { until, tries } if until <= now => Some((until, tgid, tries)),
            _ => None,
        });
        let mut due: Vec<(Instant, u32, u32)> = due.collect();
        due.sort_unstable();
        for (_, tgid, tries) in due {
            let Some(process) = self.processes.get(&tgid) else { continue };
            let question = Question::Layout(tgid, process.number, Arc::clone(&process.loaded));
            // Else later.
            if !self.ask(question) {
                return;
            }
            if let Some(process) = self.processes.get_mut(&tgid) {
                process.state = State::Asked { tries: tries + 1 };
            }
        }
    }

    /// Takes what was found of a process; whether the eBPF program is to be told.
    fn found(
        &mut self,
        tgid: u32,
        number: u64,
        layout: Result<Layout, NotAttached>,
        maps: &mut UnwindMaps,
    ) -> bool {
        let asked = self.processes.get(&tgid).filter(|it| it.number == number);
        let Some(&Process { state: State::Asked { tries }, ref loaded, .. }) = asked else {
            return false;
        };
        let loaded = Arc::clone(loaded);
        let state = match layout {
            Ok(layout) => {
                let element = self.element(layout, maps);
                tracing::debug!("Python in process {tgid}: {layout:?}, element {element:?}");
                element.map_or(State::Unknown, State::Told)
            }
            // It is still being started, or about to end.
            Err(
                NotAttached::NoThreads
                | NotAttached::NoSlot(_)
                | NotAttached::Unread(Origin::Unread),
            ) if tries < TRIES => {
                let until = Instant::now() + (FIRST_AGAIN * (1 << tries.min(10))).min(LAST_AGAIN);
                State::Waits { until, tries }
            }
            Err(why) => {
                tracing::debug!("Python in process {tgid}: {why:?}");
                State::Unknown
            }
        };
        let is_told = matches!(state, State::Told(_));
        if is_told {
            self.shared.add(tgid, interpreters::Interpreter { number, loaded });
        }
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.state = state;
        }
        is_told
    }

    /// One more than the element of the eBPF program's map that has this layout.
    fn element(&mut self, layout: Layout, maps: &mut UnwindMaps) -> Option<u32> {
        let known = self.layouts.iter().position(|it| *it == layout);
        if let Some(at) = known {
            return u32::try_from(at + 1).ok();
        }
        let found = || {
            let found = thread_pointer();
            if found.is_none() {
                stderr::notice(
                    "stacks of Python have native frames only: the kernel does not say where a task has its thread \
                     pointer (/sys/kernel/btf/vmlinux)",
                );
            }
            found
        };
        let thread_pointer = u64::from((*self.thread_pointer.get_or_init(found))?);
        let at = u32::try_from(self.layouts.len()).ok().filter(|at| *at < INTERPRETERS);
        if at.is_none() && !self.is_full {
            self.is_full = true;
            stderr::notice(&format!(
                "stacks of Python in new processes may have native frames only: {INTERPRETERS} builds of the interpreter are \
                 known, and there is no room for another"
            ));
        }
        let at = at?;
        maps.set_interpreter(at, Interpreter { layout, thread_pointer }).ok()?;
        self.layouts.push(layout);
        Some(at + 1)
    }
}
