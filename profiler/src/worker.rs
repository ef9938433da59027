//! The thread that names samples and writes them: it may block, the ring's reader never waits for it.

mod finding;
mod spawning;
pub mod told;

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicUsize, mpsc},
    thread,
};

use profiler_common::sample::{RUNS_CODE, UserEnd};
use profiler_profile::{
    ledger::{Ledger, PerCpuCount, memory},
    sample::{Comm, Sample, Task},
    source::Source,
    stack::Stack,
    stack_end::StackEnd,
    store::Store,
};
use quick_cache::unsync::Cache;
use tokio::sync::oneshot;

use self::{
    finding::Finding,
    spawning::Spawning,
    told::{Named, Told},
};
use crate::{
    bpf::kernel_names::KernelNames,
    error::{Error, Result},
    kernel,
    output::{self, Outputs, Sink},
    parser::Bars,
    process::{
        self,
        interpreters::Interpreters,
        manager::Manager,
        space::{Space, SpaceId},
        table::Process,
        tracker::Tracker,
    },
    queue::{Message, Receiver},
    realtime::{Priority, Role},
    sample::{self, Addresses, DecodeError, RawSample},
    symbolize::{
        self,
        debug_package::{self, LISTS},
        debuginfod::Debuginfod,
        interpreted::{self, Merger},
        naming::Naming,
        stacks::Stacks,
        symbolizer::Symbolizer,
    },
    unwind::{
        self,
        walker::{Walked, Walker},
    },
};

/// What happened so long ago was told to the kernel, if it ever will be.
const TOLD_WITHIN_NS: u64 = 1_000_000_000;
/// Processes of which we remember when that was.
const MAX_MISSED: usize = 4096;

/// What the thread leaves when it ends.
pub type Ended = Result<Ledger>;

/// How the thread names samples, and what it writes.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of addresses.
    pub names: symbolize::config::Config,
    /// The walk of stack snapshots; `None` where the program takes none.
    pub walk: Option<unwind::config::Config>,
    /// What is written.
    pub output: output::config::Config,
    /// The processes that are asked for.
    pub process: process::config::Config,
    /// Show at the end how much of each file has names.
    pub shows_names: bool,
}

/// The thread, seen from outside.
pub struct Worker {
    /// Comes when the thread has read the kernel's debug info, if lines are wanted, so that samples need not
    /// wait for that.
    pub ready: oneshot::Receiver<()>,
    /// Comes when the thread ends.
    pub ended: oneshot::Receiver<Ended>,
    begin: mpsc::Sender<Work>,
}

/// What the thread is to do.
pub struct Work {
    /// What is sampled, by slot.
    pub sources: Vec<Arc<Source>>,
    /// Where the samples go, for each output.
    pub sinks: Vec<Sink>,
    /// Whom to ask for the names of the kernel's code, where that is possible.
    pub kernel_names: Option<KernelNames>,
    /// The processes that samples come from.
    pub processes: Manager,
    /// Who looks for processes that no record has told of.
    pub tracker: Tracker,
    /// Where the samples come from.
    pub receiver: Receiver,
    /// Counts those that were written.
    pub delivered: Arc<PerCpuCount>,
    /// Counts those for which there was no room on the way.
    pub behind: Arc<PerCpuCount>,
    /// Tells how many distinct stacks the profile has.
    pub stacks: Arc<AtomicUsize>,
    /// Tells what was counted so far, if anybody wants to know.
    pub told: Option<Arc<Told>>,
}

impl Worker {
    /// Starts the thread, which waits for its work.
    ///
    /// Files that are given up are shared by `bars`. In processes of `interpreters` what these run is named, too.
    pub fn start(
        config: &Config,
        bars: Arc<Bars>,
        interpreters: Arc<Interpreters>,
    ) -> Result<Self> {
        let (done, ended) = oneshot::channel();
        let (is_ready, ready) = oneshot::channel();
        let (begin, work) = mpsc::channel();
        let config = config.clone();
        let debuginfod = config.names.debuginfod.clone().map(Debuginfod::start).transpose()?;
        let run = move || {
            let priority = Priority::enter(Role::Naming);
            let symbolize::config::Config { lines, kernel_stacks, budget, .. } = config.names;
            let mut symbolizer =
                Symbolizer::new(lines, budget.symbols, debuginfod, Arc::clone(&bars));
            symbolizer.keep_within(&budget);
            if kernel_stacks && lines {
                symbolizer.read_kernel_symbols();
            }
            // Nobody waits for either any more if the run was broken off.
            let _ = is_ready.send(());
            let Ok(work) = work.recv() else { return };
            let Work { sources, sinks, kernel_names, processes, tracker, receiver, told, .. } =
                work;
            let (delivered, behind) = (work.delivered, work.behind);
            if let Some(names) = kernel_names {
                symbolizer.ask_kernel(names);
            }
            let walker = config.walk.map(|walk| {
                Walker::new(walk.frame_limit, walk.or_frame_pointers).keeping(walk.cache_bytes)
            });
            let python = config.names.python;
            let mut thread = Thread {
                merger: python.merges().then(|| Merger::new(python, interpreters)),
                appended: 0,
                priority,
                bars,
                walker,
                symbolizer,
                processes,
                missed: Cache::new(MAX_MISSED),
                finding: Finding::new(tracker),
                stacks: Stacks::new(budget.stacks),
                store: Store::default(),
                sources,
                naming: Naming::default(),
                spawning: spawning_of(&config),
                shows_names: config.shows_names,
                told,
                outputs: Outputs::new(&config.output, sinks, delivered.zeroed(), work.stacks),
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

/// What the thread works with.
struct Thread {
    priority: Priority,
    bars: Arc<Bars>,
    /// Of stacks that the eBPF program could not walk yet.
    walker: Option<Walker>,
    symbolizer: Symbolizer,
    /// Of what interpreters run, if that is wanted.
    merger: Option<Merger>,
    /// Frames of theirs that had no place among the native ones.
    appended: u64,
    processes: Manager,
    finding: Finding,
    /// When walks have begun to miss mappings of a process, or when it was last looked for.
    missed: Cache<u32, u64>,
    stacks: Stacks,
    /// All stacks that are held anywhere.
    store: Store,
    naming: Naming,
    /// The screen that is told of processes that begin, if there is one.
    spawning: Option<Spawning>,
    /// Whether the end shows how much of each file has names.
    shows_names: bool,
    sources: Vec<Arc<Source>>,
    outputs: Outputs,
    told: Option<Arc<Told>>,
}

impl Thread {
    fn run(
        &mut self,
        mut receiver: Receiver,
        delivered: &PerCpuCount,
        behind: &PerCpuCount,
    ) -> Ended {
        while let Some(message) = receiver.receive() {
            self.priority.renew();
            match message {
                Message::Happened { events, kernel_code, samples_since_ns } => {
                    if !kernel_code.is_empty() {
                        self.symbolizer.kernel_has_changed(&kernel_code);
                        self.stacks.remove(SpaceId::KERNEL);
                    }
                    if let Some(spawning) = &self.spawning {
                        spawning.apply(&events, &self.processes);
                    }
                    self.processes.forget_before(samples_since_ns);
                }
                Message::Samples(samples) => {
                    if self.symbolizer.follow_kernel_modules() {
                        self.stacks.remove(SpaceId::KERNEL);
                    }
                    if self.symbolizer.take_debug_files() {
                        self.stacks.clear();
                    }
                    let mut named = Vec::new();
                    let mut rest = samples.bytes.as_slice();
                    while !rest.is_empty() {
                        let (sample, next) = sample::decode(rest)
                            .map_err(|error| Error::system("cannot decode a sample", error))?;
                        rest = next;
                        let source = self.sources.get(sample.slot()).map(Arc::clone);
                        let source = source.ok_or_else(|| {
                            Error::system(
                                "cannot decode a sample",
                                DecodeError::Source(sample.source),
                            )
                        })?;
                        named.push(self.sample(&sample, source));
                    }
                    self.outputs.add(&named)?;
                    receiver.done(samples);
                    self.outputs.flush(delivered)?;
                    self.tell();
                }
                Message::Window { kernel, end_ns } => {
                    let mut ledger = Ledger::so_far(&kernel, delivered, behind);
                    self.complete(&mut ledger);
                    self.outputs.end_window(ledger, end_ns);
                }
                Message::Finish(kernel) => {
                    let mut ledger = Ledger::settle(&kernel, delivered, behind);
                    self.complete(&mut ledger);
                    // Only where it will be seen.
                    let stripped = self.naming.without_symbols().filter(|_| self.shows_names);
                    let packages = debug_package::find(Path::new(LISTS), stripped);
                    ledger.names = self.naming.files(&packages);
                    ledger.memory.caches = self.caches();
                    self.outputs.finish(&ledger, delivered)?;
                    ledger.unwritten = self.outputs.unwritten().to_vec();
                    return Ok(ledger);
                }
            }
        }
        // The run was broken off.
        Err(Error::Interrupted)
    }

    /// Tells what was counted so far.
    fn tell(&self) {
        if let Some(told) = &self.told {
            told.tell(Named {
                user_ends: self.naming.ends(),
                user_frames: self.naming.frames(),
                evicted_processes: self.processes.evicted(),
                beyond_memory: self.outputs.beyond_memory(),
            });
        }
    }

    /// Adds what this thread has counted.
    fn complete(&self, ledger: &mut Ledger) {
        ledger.parsing = self.bars.account();
        ledger.user_ends = self.naming.ends();
        if let (Some(unwinding), Some(walker)) = (&mut ledger.unwinding, &self.walker) {
            unwinding.walked_from_snapshots = walker.walked();
            unwinding.python_appended = self.appended;
        }
        ledger.evicted_processes = self.processes.evicted();
        ledger.beyond_memory = self.outputs.beyond_memory();
    }

    /// What takes memory, of this thread and those that it can see.
    fn caches(&self) -> Vec<memory::Cache> {
        let mut caches = self.symbolizer.caches();
        caches.push(self.stacks.account());
        caches.extend(self.walker.as_ref().map(Walker::account));
        caches.push(self.processes.account());
        caches.extend(self.outputs.account());
        caches
    }

    /// Names a sample.
    fn sample(&mut self, raw: &RawSample<'_>, source: Arc<Source>) -> Sample {
        let process = self.process(raw);
        let walked = process.as_ref().and_then(|process| self.walk(raw, process));
        let of_copy = walked.as_ref().map(|Walked { addresses, end }| RawSample {
            user: Addresses::new(addresses),
            user_end: *end,
            ..*raw
        });
        let raw = of_copy.as_ref().unwrap_or(raw);
        let of_code = process.as_ref().and_then(|process| frames_of_code(raw, &process.space));
        let of_code = of_code.map(|user| RawSample { user, ..*raw });
        let raw = of_code.as_ref().unwrap_or(raw);
        let kernel = self.kernel_stack(raw.kernel);
        let user = self.user_stack(raw, process);
        self.appended += interpreted::appended(raw);
        let of = self.processes.at(raw.tgid, raw.time_ns);
        let main_comm = of.as_ref().map_or_else(Comm::default, |it| it.name);
        let process = of.and_then(|it| it.metadata);
        // Where the native frames are whole, but not what they run, the stack has more frames than there was room for.
        let is_deep =
            self.merger.is_some() && raw.user_end == UserEnd::Complete && interpreted::is_cut(raw);
        let end = if is_deep { UserEnd::Depth } else { raw.user_end };
        let user_end = StackEnd::of(end, &user, &kernel);
        self.naming.add(&user, user_end);
        let &RawSample { tgid, tid, cgroup_id, .. } = raw;
        Sample {
            source,
            time_ns: raw.time_ns,
            value: raw.period,
            cpu: raw.cpu,
            task: Task { tgid, tid, comm: Comm(raw.comm), main_comm, cgroup_id, process },
            kernel,
            user,
            user_end,
            from_snapshot: of_copy.is_some(),
        }
    }

    fn kernel_stack(&mut self, addresses: Addresses<'_>) -> Arc<Stack> {
        if addresses.is_empty() {
            return self.store.empty();
        }
        if let Some(stack) = self.stacks.get(SpaceId::KERNEL, addresses) {
            return stack;
        }
        let stack = self.store.intern(self.symbolizer.kernel_stack(addresses));
        self.stacks.keep(SpaceId::KERNEL, addresses, &stack);
        stack
    }

    /// What was sampled; `None` without a user half, or if nobody knows.
    fn process(&mut self, raw: &RawSample<'_>) -> Option<Process> {
        let in_user = raw.user.iter().next()? & !RUNS_CODE;
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
        let walker = self.walker.as_mut()?;
        let records = raw.interpreter.records();
        walker.walk(self.symbolizer.parser(), &copy, &process.space, raw.time_ns, so_far, records)
    }

    /// The user half.
    fn user_stack(&mut self, raw: &RawSample<'_>, process: Option<Process>) -> Arc<Stack> {
        if raw.user.is_empty() {
            return self.store.empty();
        }
        let Some(process) = process else {
            return self.store.intern(self.symbolizer.unknown_stack(raw.user));
        };
        let space = process.space.id();
        // What holds now need not have held then.
        let is_current = process.space.changed_ns() <= raw.time_ns;
        let merger = self.merger.as_ref().filter(|_| !raw.interpreter.is_empty());
        let key = merger.map(|it| it.key(raw));
        let key = key.as_deref().map_or(raw.user, Addresses::new);
        if is_current && let Some(stack) = self.stacks.get(space, key) {
            return stack;
        }
        let (mut locations, mut all_known) =
            self.symbolizer.user_stack(&process, raw.user, raw.time_ns);
        if let Some(merger) = merger {
            let is_final;
            (locations, is_final) = merger.merge(&mut self.symbolizer, raw, locations);
            all_known &= is_final;
        }
        if all_known {
            let stack = self.store.intern(locations);
            if is_current {
                self.stacks.keep(space, key, &stack);
            }
            return stack;
        }
        // A record may have been lost. A stack that stays outside of every mapping, as a chain of
        // frame pointers does when code has none, is not kept.
        if let Some(process) = self.find(raw).filter(|found| found.space.id() != space) {
            let (mut locations, _) = self.symbolizer.user_stack(&process, raw.user, raw.time_ns);
            if let Some(merger) = self.merger.as_ref().filter(|_| !raw.interpreter.is_empty()) {
                (locations, _) = merger.merge(&mut self.symbolizer, raw, locations);
            }
            return self.store.intern(locations);
        }
        self.store.intern(locations)
    }

    /// Whether walks in the kernel have missed mappings of the process for long. They were forgotten there for
    /// others that have begun since, or are more than there is room for, of which most may have been unmapped.
    fn is_untold_to_kernel(&mut self, raw: &RawSample<'_>) -> bool {
        if raw.user_end != UserEnd::NotMapped {
            return false;
        }
        let since_ns = self.missed.get(&raw.tgid).copied();
        let is_long = since_ns.is_some_and(|it| raw.time_ns.saturating_sub(it) > TOLD_WITHIN_NS);
        if is_long || since_ns.is_none() {
            self.missed.insert(raw.tgid, raw.time_ns);
        }
        is_long
    }

    /// Reads from `/proc` what no record has told.
    fn find(&mut self, raw: &RawSample<'_>) -> Option<Process> {
        let found = self.finding.find(raw.tgid)?;
        self.processes.apply([found], kernel::monotonic_ns());
        self.processes.at(raw.tgid, raw.time_ns)
    }
}

fn spawning_of(config: &Config) -> Option<Spawning> {
    let live = config.output.live.clone();
    live.map(|live| Spawning::new(live, config.process.pids.clone()))
}

/// The addresses up to the first that is not of code, where the kernel has followed frame pointers, which it
/// does of programs of 32 bits: what lies there is no frame, nor is what that leads to. `None` if all are.
fn frames_of_code<'a>(raw: &RawSample<'a>, space: &Space) -> Option<Addresses<'a>> {
    if raw.user_end != UserEnd::ChainEnded {
        return None;
    }
    let is_code = |address: u64| space.find(address.wrapping_sub(1), raw.time_ns).is_some();
    let end = raw.user.iter().skip(1).position(|address| !is_code(address))? + 1;
    raw.user.as_bytes().get(..end.checked_mul(8)?).map(Addresses::new)
}

#[cfg(test)]
mod replay;
