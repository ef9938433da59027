//! Learns what happens to processes, from the kernel's records and from `/proc`, and has the files
//! opened that they map before they are gone.
//!
//! A file system may not answer, and a process may be stuck with its memory locked. So whatever reads what
//! a process has mapped or opens a file is done on a thread apart, and who asks for it gets an [`Answer`] to
//! wait for as long as one likes, or to look at when [told](Tracker::answered). What a record tells is known at once; its file may be opened later.

use std::{
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    file::{MappedAt, MappedFile},
    files::{Files, Opening},
    headless::{Headless, other_threads},
    metadata,
    space::Mapped,
    table::{Event, Kind},
    watchdog_pool::{self, WatchdogPool},
};
use profiler_profile::sample::Comm;
use tokio::sync::Notify;

use crate::{
    kernel,
    perf::record::{Record, Timed},
    procfs::{
        self, comm,
        maps::{self, Backing, MappedId, Mapping},
        status,
    },
};

/// For how long samples wait for the files that they need: somewhat longer than it takes to see that
/// one is stuck, so that the others are there.
pub const DEADLINE: Duration = Duration::from_millis(150);
/// How often whoever waits looks whether a thread is stuck.
pub(crate) const LOOK: Duration = Duration::from_millis(25);

/// Threads of a process that are asked for its mappings where the main one has ended.
const ASKED_THREADS: usize = 4;

/// How often a command line is asked for that is not there yet, and after which time again.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(1);

/// The source of events. Its clones share the open files and the threads.
#[derive(Clone, Debug)]
pub struct Tracker {
    sight: Sight,
    pool: Arc<WatchdogPool<Task>>,
    /// Who is told when an answer is complete.
    answered: Arc<Notify>,
}

/// What it takes to see what a process is.
#[derive(Clone, Debug)]
struct Sight {
    files: Arc<Mutex<Files>>,
    headless: Arc<Mutex<Headless>>,
    metadata: bool,
}

/// What was asked for: events come one after another.
#[derive(Debug)]
pub struct Answer {
    events: Receiver<Event>,
    pool: Arc<WatchdogPool<Task>>,
}

/// Something to be done apart.
#[derive(Debug)]
struct Task {
    what: What,
    sight: Sight,
    answer: Asker,
}

/// Who has asked. The answer is complete when no task has this any more.
#[derive(Clone, Debug)]
struct Asker {
    /// Closed before the other is dropped.
    events: Sender<Event>,
    _complete: Arc<Complete>,
}

/// Tells when it is dropped.
#[derive(Debug)]
struct Complete(Option<Arc<Notify>>);

impl Drop for Complete {
    fn drop(&mut self) {
        if let Some(to) = &self.0 {
            to.notify_one();
        }
    }
}

#[derive(Debug)]
enum What {
    Open(Opening),
    Find(u32),
    /// These, the last first; one after another, so that nothing else has to wait for all.
    FindAll(Vec<u32>),
    /// Who a process is that has called exec, and when it did.
    Describe {
        tgid: u32,
        exec_ns: u64,
        tries: u32,
    },
}

impl Tracker {
    /// A source that, with `metadata`, also reads who each process is.
    #[must_use]
    pub fn new(metadata: bool) -> Self {
        let headless = Arc::new(Mutex::new(Headless::new()));
        let sight = Sight { files: Arc::default(), headless, metadata };
        Self { sight, pool: Arc::new(WatchdogPool::new()), answered: Arc::default() }
    }

    /// Waits until an answer is complete, but to [`find`](Self::find). To be used by one task.
    pub async fn answered(&self) {
        self.answered.notified().await;
    }

    /// Asks what runs now; what happens from here on, records have to tell.
    #[must_use]
    pub fn find_all(&self) -> Answer {
        let mut tgids: Vec<u32> = procfs::processes().collect();
        tgids.reverse();
        self.ask([What::FindAll(tgids)], Some(&self.answered))
    }

    /// Reads one process's mappings; `None` if it is gone, is a thread of the kernel, or does not
    /// answer before the [deadline](DEADLINE). Some of its files may not be open even then.
    #[must_use]
    pub fn find(&self, tgid: u32) -> Option<Event> {
        let mut events = Vec::new();
        self.ask([What::Find(tgid)], None).wait(DEADLINE, &mut events);
        events.pop()
    }

    /// What records mean for processes, and the answer that is complete when their files are open.
    #[must_use]
    pub fn tell(&self, records: Vec<Timed>) -> (Vec<Event>, Answer) {
        let (mut events, mut todo) = (Vec::new(), Vec::new());
        {
            let mut files = Files::lock(&self.sight.files);
            let mut headless = self.sight.headless.lock().unwrap_or_else(PoisonError::into_inner);
            todo.extend(files.due(Instant::now()).into_iter().map(What::Open));
            for record in records {
                todo.extend(self.sight.description(&record));
                let mut file = |id, place| {
                    let (file, opening) = files.get(id, place);
                    todo.extend(opening.map(What::Open));
                    file
                };
                events.extend(event(record, &mut headless, &mut file));
            }
            let time_ns = kernel::monotonic_ns();
            let ended = headless.ended().into_iter();
            events.extend(ended.map(|tgid| Event { time_ns, tgid, kind: Kind::Ended }));
        }
        // Nobody is told of what is complete at once.
        let answered = (!todo.is_empty()).then_some(&self.answered);
        (events, self.ask(todo, answered))
    }

    /// How often something was left undone that may be worth another try by now.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.pool.missed()
    }

    fn ask(&self, what: impl IntoIterator<Item = What>, answered: Option<&Arc<Notify>>) -> Answer {
        let (sender, events) = mpsc::channel();
        let complete = Arc::new(Complete(answered.cloned()));
        let answer = Asker { events: sender, _complete: complete };
        let task = |what| Task { what, sight: self.sight.clone(), answer: answer.clone() };
        self.pool.give(what.into_iter().map(task).collect());
        Answer { events, pool: Arc::clone(&self.pool) }
    }
}

impl Answer {
    /// Takes what comes within this time; whether that is all.
    pub fn wait(&mut self, time: Duration, events: &mut Vec<Event>) -> bool {
        let until = Instant::now() + time;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(rest.min(LOOK)) {
                Ok(event) => events.push(event),
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => {
                    self.pool.relieve();
                    if rest.is_zero() {
                        return false;
                    }
                }
            }
        }
    }
}

impl watchdog_pool::Task for Task {
    fn place(&self) -> watchdog_pool::WaitsFor {
        match &self.what {
            What::Open(opening) => {
                let MappedAt { tgid, name, .. } = opening.place();
                watchdog_pool::WaitsFor { tgid: *tgid, path: Some(Arc::clone(name)) }
            }
            What::Find(tgid) | What::Describe { tgid, .. } => {
                watchdog_pool::WaitsFor { tgid: *tgid, path: None }
            }
            // Asks none itself.
            What::FindAll(_) => watchdog_pool::WaitsFor { tgid: 0, path: None },
        }
    }

    fn user_of(place: &watchdog_pool::WaitsFor) -> Option<u32> {
        status::user_of(place.tgid)
    }

    fn run(self) -> Vec<Self> {
        let Self { what, sight, answer } = self;
        let mut todo = Vec::new();
        let event = match what {
            What::Open(opening) => {
                opening.open(&sight.files);
                None
            }
            What::Find(tgid) => sight.find(tgid, &mut todo),
            What::FindAll(mut tgids) => {
                todo.extend(tgids.pop().map(What::Find));
                if !tgids.is_empty() {
                    todo.push(What::FindAll(tgids));
                }
                None
            }
            What::Describe { tgid, exec_ns, tries } => {
                let metadata = metadata::read(tgid);
                // The record is written within exec, a while before the arguments are in place.
                // One that has ended has none, nor a program.
                let runs = || fs::read_link(format!("/proc/{tgid}/exe")).is_ok();
                if metadata.command_line.is_none() && tries > 0 && runs() {
                    thread::sleep(AGAIN);
                    todo.push(What::Describe { tgid, exec_ns, tries: tries - 1 });
                    None
                } else {
                    let kind = Kind::Described(Box::new(metadata));
                    Some(Event { time_ns: exec_ns, tgid, kind })
                }
            }
        };
        // Nobody may wait for it any more.
        event.map(|event| answer.events.send(event));
        let task = |what| Self { what, sight: sight.clone(), answer: answer.clone() };
        todo.into_iter().map(task).collect()
    }

    fn refuse(self) {
        if let What::Open(opening) = self.what {
            opening.refuse(&self.sight.files);
        }
    }
}

impl Sight {
    /// Reads what a process has mapped.
    fn find(&self, tgid: u32, todo: &mut Vec<What>) -> Option<Event> {
        // What is mapped while this is read may be in it or not, and is told again.
        let time_ns = kernel::monotonic_ns();
        let read = |id: u32| fs::read(format!("/proc/{id}/maps")).ok().filter(|it| !it.is_empty());
        // Threads of the kernel have no mappings, and a main thread that has ended has none any more.
        let mut threads = other_threads(tgid).take(ASKED_THREADS);
        let (alive, text) = match read(tgid) {
            Some(text) => (tgid, text),
            None => threads.find_map(|tid| Some((tid, read(tid)?)))?,
        };
        let metadata = self.metadata.then(|| Box::new(metadata::read(tgid)));
        let mut files = Files::lock(&self.files);
        let mut file = |id, place| {
            let (file, opening) = files.get(id, place);
            todo.extend(opening.map(What::Open));
            file
        };
        let mappings =
            maps::parse(&text).into_iter().map(|it| mapped(it, (alive, time_ns, false), &mut file));
        let name = comm::read(tgid).unwrap_or_default();
        let kind = Kind::Found { mappings: mappings.collect(), name, metadata };
        drop(files);
        if alive != tgid {
            self.headless.lock().unwrap_or_else(PoisonError::into_inner).add(tgid);
        }
        Some(Event { time_ns, tgid, kind })
    }

    /// What is to be asked about a process that runs another program now.
    fn description(&self, record: &Timed) -> Option<What> {
        match record.record {
            Record::Comm { tgid, exec: true, .. } if self.metadata => {
                Some(What::Describe { tgid, exec_ns: record.time_ns, tries: TRIES })
            }
            _ => None,
        }
    }
}

/// Takes the events from before a time out of those that have come, in the order of time.
pub(crate) fn take_before(events: &mut Vec<Event>, time_ns: u64) -> Vec<Event> {
    // Stable: what happened to a process at one time stays in its order.
    events.sort_by_key(|event| event.time_ns);
    let rest = events.split_off(events.partition_point(|event| event.time_ns < time_ns));
    std::mem::replace(events, rest)
}

/// Gives the file that is mapped at a place.
type FileOf<'a> = dyn FnMut(MappedId, MappedAt) -> Arc<MappedFile> + 'a;

/// What a record means for a process, if anything.
pub(crate) fn event(
    record: Timed,
    headless: &mut Headless,
    file_of: &mut FileOf<'_>,
) -> Option<Event> {
    let Timed { time_ns, record } = record;
    let (tgid, kind) = match record {
        Record::Mmap { tgid, start, bytes, file_offset, file, name, .. } => {
            let name = String::from_utf8_lossy(&name);
            // perf's word for what has no file.
            let name = if name == "//anon" { "" } else { &name };
            let backing = Backing::of(name, file);
            let end = start.checked_add(bytes)?;
            let mapping = Mapping { start, end, file_offset, backing, name: name.into() };
            (tgid, Kind::Mapped(mapped(mapping, (tgid, time_ns, true), file_of)))
        }
        Record::Comm { tgid, exec: true, comm, .. } => (tgid, Kind::Exec(Comm(comm))),
        Record::Comm { tgid, tid, comm, .. } if tgid == tid => (tgid, Kind::Named(Comm(comm))),
        Record::Fork { tgid, parent_tgid, .. } if tgid != parent_tgid => {
            (tgid, Kind::Forked(parent_tgid))
        }
        Record::Exit { tgid, tid } if tgid == tid && headless.main_thread_ended(tgid) => {
            (tgid, Kind::Ended)
        }
        _ => return None,
    };
    Some(Event { time_ns, tgid, kind })
}

/// What is mapped since a time in a process that can be looked at by one of its threads, as a rule the
/// main one; and whether the kernel has just reported it.
fn mapped(
    mapping: Mapping<MappedId>,
    (tgid, since_ns, is_new): (u32, u64, bool),
    file_of: &mut FileOf<'_>,
) -> Mapped {
    let Mapping { start, end, file_offset, backing, name } = mapping;
    let backing: Backing<Arc<MappedFile>> = match backing {
        Backing::File(id) => {
            let place = MappedAt { tgid, start, end, name: Arc::clone(&name), since_ns, is_new };
            Backing::File(file_of(id, place))
        }
        Backing::Vdso => Backing::Vdso,
        Backing::Anonymous => Backing::Anonymous,
    };
    Mapped { start, end, file_offset, backing, name }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::process::table::Processes;

    /// What an answer is complete without.
    pub(crate) struct Pending(Sender<Event>);

    impl Pending {
        pub(crate) fn new() -> (Self, Answer) {
            let (sender, events) = mpsc::channel();
            (Self(sender), Answer { events, pool: Arc::new(WatchdogPool::new()) })
        }

        pub(crate) fn tell(&self, event: Event) {
            self.0.send(event).unwrap();
        }
    }

    #[test]
    fn an_answer_is_told_of_when_it_is_complete() {
        let tracker = Tracker::new(false);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // Nothing is to be done for these.
        let (_, mut answer) = tracker.tell(Vec::new());
        assert!(answer.wait(Duration::ZERO, &mut Vec::new()));
        assert!(tracker.find(std::process::id()).is_some());
        let mut answer = tracker.find_all();
        runtime.block_on(tracker.answered());
        let mut events = Vec::new();
        assert!(answer.wait(Duration::ZERO, &mut events));
        assert!(events.iter().any(|it| it.tgid == std::process::id()));
    }

    #[test]
    fn knows_its_own_mappings() {
        let tracker = Tracker::new(false);
        let mut processes = Processes::new(10);
        processes.apply(tracker.find(std::process::id()).unwrap());
        let process = processes.at(std::process::id(), 0).unwrap();
        let here = knows_its_own_mappings as fn() as usize as u64;
        let mapping = process.space.find(here, 0).unwrap();
        assert_eq!(&*mapping.name, std::env::current_exe().unwrap().to_str().unwrap());
        let Backing::File(file) = &mapping.backing else { panic!("{mapping:?}") };
        let opened = file.unchanged().unwrap().metadata().unwrap();
        assert_eq!(opened.len(), fs::metadata("/proc/self/exe").unwrap().len());
    }

    #[test]
    fn a_process_that_is_gone_is_not_found() {
        assert!(Tracker::new(false).find(u32::MAX).is_none());
    }
}
