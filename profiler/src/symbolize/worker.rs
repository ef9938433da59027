//! The thread that names samples and writes them: it may block, the ring's reader never waits for it.

use std::{
    path::Path,
    rc::Rc,
    sync::{Arc, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use profiler_common::sample::UserEnd;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::{
    debug_package::{self, LISTS},
    debuginfod::Debuginfod,
    frame::Stack,
    naming::Naming,
    symbolizer::Symbolizer,
};
use crate::{
    config::{Config, UserWalk},
    error::{Error, Result},
    ledger::{Ledger, PerCpuCount},
    output::{NamedSample, Output, Sink},
    process::{
        space::{Space, SpaceId},
        table::{Event, Process, Processes},
        tracker::Tracker,
    },
    queue::{Message, Receiver},
    sample::{self, Addresses, RawSample},
    unwind::{
        loader::Loader,
        walker::{Walked, Walker},
    },
};

/// Addresses in all cached stacks. An address takes some 100 bytes with its share of the text.
const CACHED_FRAMES: usize = 100_000;

/// A process is looked up in `/proc` again at most this often, and all of them at most for one part in
/// [`FIND_SHARE`] of the time.
const FIND_MIN: Duration = Duration::from_millis(100);
const FIND_SHARE: u32 = 20;
/// What happened so long ago was told to the kernel, if it ever will be.
const TOLD_WITHIN_NS: u64 = 1_000_000_000;
/// Processes of which we remember when that was.
const FOUND_LATELY: usize = 4096;

/// What the thread leaves when it ends.
pub type Ended = Result<Ledger>;

/// The thread, seen from outside.
pub struct Worker {
    /// Comes when the thread has read the kernel's symbols, and samples need not wait for that.
    pub ready: oneshot::Receiver<()>,
    /// Comes when the thread ends.
    pub ended: oneshot::Receiver<Ended>,
    begin: mpsc::Sender<Work>,
}

/// What the thread is to do.
pub struct Work {
    /// The event that is sampled.
    pub event: &'static str,
    /// Where the samples go.
    pub sink: Sink,
    /// Who looks for processes that no record has told of.
    pub tracker: Tracker,
    /// Where the samples come from.
    pub receiver: Receiver,
    /// Counts those that were written.
    pub delivered: Arc<PerCpuCount>,
    /// Counts those for which there was no room on the way.
    pub behind: Arc<PerCpuCount>,
    /// Who has to know what was found of a process.
    pub loader: Option<Weak<Loader>>,
}

impl Worker {
    /// Starts the thread, which reads the kernel's symbols and waits for its work: reading them takes as
    /// long as loading the program, and both can go on at once.
    pub fn start(config: &Config) -> Result<Self> {
        let (done, ended) = oneshot::channel();
        let (is_ready, ready) = oneshot::channel();
        let (begin, work) = mpsc::channel();
        let debuginfod = config.debuginfod.clone().map(Debuginfod::start).transpose()?;
        let config = config.clone();
        let run = move || {
            let mut symbolizer =
                Symbolizer::new(config.lines, config.symbol_cache_bytes, debuginfod);
            if config.kernel_stacks {
                symbolizer.read_kernel_symbols();
            }
            // Nobody waits for either any more if the run was broken off.
            let _ = is_ready.send(());
            let Ok(work) = work.recv() else { return };
            let Work { event, sink, tracker, receiver, delivered, behind, loader } = work;
            let walker = match config.user_walk {
                UserWalk::Tables { or_frame_pointers } => {
                    Some(Walker::new(config.frame_limit, or_frame_pointers))
                }
                UserWalk::Kernel | UserWalk::FramePointers => None,
            };
            let mut thread = Thread {
                walker,
                symbolizer,
                processes: Processes::new(config.max_processes),
                loader,
                missed: FxHashMap::default(),
                finding: Finding { tracker, lately: FxHashMap::default(), pause_until: None },
                stacks: FxHashMap::default(),
                cached_frames: 0,
                empty: Rc::default(),
                naming: Naming::default(),
                metadata: config.metadata,
                shows_names: config.shows_names,
                output: crate::output::new(&config, event, sink),
            };
            let _ = done.send(thread.run(receiver, &delivered, &behind));
        };
        thread::Builder::new()
            .name("symbolize".into())
            .spawn(run)
            .map_err(|error| Error::system("cannot start the symbolizing thread", error))?;
        Ok(Self { ready, ended, begin })
    }

    /// Gives the thread its work, which ends with the ledger after [`Message::Finish`], or with an error
    /// when it can't write.
    pub fn begin(&self, work: Work) {
        // A thread that has ended says so by `ended`.
        let _ = self.begin.send(work);
    }
}

/// Resolved halves of stacks, by the mappings they were resolved in and their bytes.
type Stacks = FxHashMap<SpaceId, FxHashMap<Box<[u8]>, Rc<Stack>>>;

fn cached(stacks: &Stacks, space: SpaceId, addresses: Addresses<'_>) -> Option<Rc<Stack>> {
    stacks.get(&space)?.get(addresses.as_bytes()).map(Rc::clone)
}

/// What the thread works with.
struct Thread {
    /// Of stacks that the eBPF program could not walk yet.
    walker: Option<Walker>,
    symbolizer: Symbolizer,
    processes: Processes,
    /// It ends when sampling does.
    loader: Option<Weak<Loader>>,
    finding: Finding,
    /// When walks have begun to miss mappings of a process, or when it was last looked for.
    missed: FxHashMap<u32, u64>,
    stacks: Stacks,
    cached_frames: usize,
    empty: Rc<Stack>,
    naming: Naming,
    /// Whether who a process is was asked for.
    metadata: bool,
    /// Whether the end shows how much of each file has names.
    shows_names: bool,
    output: Box<dyn Output>,
}

impl Thread {
    fn run(
        &mut self,
        mut receiver: Receiver,
        delivered: &PerCpuCount,
        behind: &PerCpuCount,
    ) -> Ended {
        while let Some(message) = receiver.receive() {
            match message {
                Message::Happened { events, kernel_code, samples_since_ns } => {
                    if !kernel_code.is_empty() {
                        self.symbolizer.kernel_has_changed(&kernel_code);
                        self.stacks.remove(&SpaceId::KERNEL);
                    }
                    for event in events {
                        self.processes.apply(event);
                    }
                    self.processes.forget_before(samples_since_ns);
                }
                Message::Samples(samples) => {
                    if self.symbolizer.follow_kernel_modules() {
                        self.stacks.remove(&SpaceId::KERNEL);
                    }
                    if self.symbolizer.take_debug_files() {
                        self.stacks.clear();
                        self.cached_frames = 0;
                    }
                    let mut cpus = Vec::new();
                    let mut rest = samples.bytes.as_slice();
                    while !rest.is_empty() {
                        let (sample, next) = sample::decode(rest)
                            .map_err(|error| Error::system("cannot decode a sample", error))?;
                        rest = next;
                        self.sample(&sample)?;
                        cpus.push(sample.cpu);
                    }
                    receiver.done(samples);
                    // What could not be written has not been delivered.
                    self.output.flush()?;
                    for cpu in cpus {
                        delivered.add(cpu);
                    }
                }
                Message::Finish(kernel) => {
                    let mut ledger = Ledger::settle(&kernel, delivered, behind);
                    ledger.user_ends = self.naming.ends();
                    // Only where it will be seen.
                    let stripped = self.naming.without_symbols().filter(|_| self.shows_names);
                    let packages = debug_package::find(Path::new(LISTS), stripped);
                    ledger.names = self.naming.files(&packages);
                    if let (Some(unwinding), Some(walker)) = (&mut ledger.unwinding, &self.walker) {
                        unwinding.walked_later = walker.walked();
                    }
                    ledger.evicted_processes = self.processes.evicted();
                    if let Err(error) = self.output.finish(&ledger) {
                        if self.output.is_written_at_end() {
                            delivered.clear();
                        }
                        return Err(error);
                    }
                    return Ok(ledger);
                }
            }
        }
        // The run was broken off.
        Err(Error::Interrupted)
    }

    fn sample(&mut self, raw: &RawSample<'_>) -> Result<()> {
        let process = self.process(raw);
        let walked = process.as_ref().and_then(|process| self.walk(raw, process));
        let of_copy = walked.as_ref().map(|Walked { addresses, end }| RawSample {
            user: Addresses::new(addresses),
            user_end: *end,
            ..*raw
        });
        let raw = of_copy.as_ref().unwrap_or(raw);
        let kernel = self.kernel_stack(raw.kernel);
        let (space, user) = self.user_stack(raw, process);
        let metadata = if self.metadata {
            self.processes.at(raw.tgid, raw.time_ns).and_then(|process| process.metadata)
        } else {
            None
        };
        let is_copied = of_copy.is_some();
        let sample = NamedSample { raw, space, kernel, user, is_copied, metadata };
        self.naming.add(&sample.user, sample.user_end());
        self.output.sample(&sample)
    }

    fn kernel_stack(&mut self, addresses: Addresses<'_>) -> Rc<Stack> {
        if addresses.is_empty() {
            return Rc::clone(&self.empty);
        }
        if let Some(stack) = cached(&self.stacks, SpaceId::KERNEL, addresses) {
            return stack;
        }
        let stack = Rc::new(self.symbolizer.kernel_stack(addresses));
        self.keep(SpaceId::KERNEL, addresses, &stack);
        stack
    }

    /// What was sampled; `None` without a user half, or if nobody knows.
    fn process(&mut self, raw: &RawSample<'_>) -> Option<Process> {
        let in_user = raw.user.iter().next()?;
        let known = self.processes.at(raw.tgid, raw.time_ns);
        let mut process = known.or_else(|| self.find(raw))?;
        // Within exec, user space is still that of the last program.
        let is_in = |space: &Space| space.find(in_user, raw.time_ns).is_some();
        if let Some(before) = process.before_exec.take()
            && !is_in(&process.space)
            && is_in(&before)
        {
            process.space = before;
        }
        // A record may have been lost, and with what `/proc` tells the copy can be walked.
        let is_untold = raw.copy.is_some() && !is_in(&process.space);
        if is_untold || self.is_untold_to_kernel(raw) {
            process = self.find(raw).unwrap_or(process);
        }
        Some(process)
    }

    /// The user half from its copy, if there is one and more is known by now.
    fn walk(&mut self, raw: &RawSample<'_>, process: &Process) -> Option<Walked> {
        let copy = raw.copy?;
        let so_far = (raw.user, raw.user_end);
        self.walker.as_mut()?.walk(&copy, &process.space, raw.time_ns, so_far)
    }

    /// The user half, and the mappings that it was named by.
    fn user_stack(
        &mut self,
        raw: &RawSample<'_>,
        process: Option<Process>,
    ) -> (SpaceId, Rc<Stack>) {
        if raw.user.is_empty() {
            return (SpaceId::KERNEL, Rc::clone(&self.empty));
        }
        let Some(process) = process else {
            return (SpaceId::KERNEL, Rc::new(self.symbolizer.unknown_stack(raw.user)));
        };
        let space = process.space.id();
        // What holds now need not have held then.
        let is_current = process.space.changed_ns() <= raw.time_ns;
        if is_current && let Some(stack) = cached(&self.stacks, space, raw.user) {
            return (space, stack);
        }
        let (stack, all_known) = self.symbolizer.user_stack(&process, raw.user, raw.time_ns);
        if all_known {
            let stack = Rc::new(stack);
            if is_current {
                self.keep(space, raw.user, &stack);
            }
            return (space, stack);
        }
        // A record may have been lost. A stack that stays outside of every mapping, as a chain of
        // frame pointers does when code has none, is not kept.
        if let Some(process) = self.find(raw).filter(|found| found.space.id() != space) {
            let (stack, _) = self.symbolizer.user_stack(&process, raw.user, raw.time_ns);
            return (process.space.id(), Rc::new(stack));
        }
        (space, Rc::new(stack))
    }

    /// Whether walks in the kernel have missed mappings of the process for long. They were forgotten there for
    /// others that have begun since, or are more than there is room for, of which most may have been unmapped.
    fn is_untold_to_kernel(&mut self, raw: &RawSample<'_>) -> bool {
        if raw.user_end != UserEnd::NotMapped {
            return false;
        }
        if self.missed.len() >= FOUND_LATELY {
            self.missed.clear();
        }
        let since_ns = self.missed.entry(raw.tgid).or_insert(raw.time_ns);
        let is_long = raw.time_ns.saturating_sub(*since_ns) > TOLD_WITHIN_NS;
        if is_long {
            *since_ns = raw.time_ns;
        }
        is_long
    }

    /// Reads from `/proc` what no record has told.
    fn find(&mut self, raw: &RawSample<'_>) -> Option<Process> {
        let found = self.finding.find(raw.tgid)?;
        // What it misses of that is found again.
        let loader = self.loader.as_ref().and_then(Weak::upgrade);
        let _ = loader.is_some_and(|loader| loader.tell(vec![found.clone()]));
        self.processes.apply(found);
        self.processes.at(raw.tgid, raw.time_ns)
    }

    fn keep(&mut self, space: SpaceId, addresses: Addresses<'_>, stack: &Rc<Stack>) {
        self.cached_frames += addresses.iter().len();
        if self.cached_frames > CACHED_FRAMES {
            self.stacks.clear();
            self.cached_frames = addresses.iter().len();
        }
        self.stacks.entry(space).or_default().insert(addresses.as_bytes().into(), Rc::clone(stack));
    }
}

/// Processes read from `/proc`, not too often.
struct Finding {
    tracker: Tracker,
    lately: FxHashMap<u32, Instant>,
    pause_until: Option<Instant>,
}

impl Finding {
    fn find(&mut self, tgid: u32) -> Option<Event> {
        let start = Instant::now();
        let is_recent = |last: &Instant| start.duration_since(*last) < FIND_MIN;
        if self.pause_until.is_some_and(|until| start < until)
            || self.lately.get(&tgid).is_some_and(is_recent)
        {
            return None;
        }
        if self.lately.len() >= FOUND_LATELY {
            self.lately.retain(|_, last| is_recent(last));
        }
        let found = self.tracker.find(tgid);
        let now = Instant::now();
        self.lately.insert(tgid, now);
        self.pause_until = Some(now + now.duration_since(start) * FIND_SHARE);
        found
    }
}
