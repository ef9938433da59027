//! The thread that names samples and writes them: it may block, the ring's reader never waits for it.

use std::{rc::Rc, sync::Arc, thread};

use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::{frame::Stack, symbolizer::Symbolizer};
use crate::{
    config::Config,
    error::{Error, Result},
    ledger::{Ledger, PerCpuCount},
    output::{NamedSample, Output, Sink},
    process::table::{Processes, SpaceId},
    queue::{Message, Receiver},
    sample::{self, Addresses, RawSample},
};

/// Addresses in all cached stacks. An address takes some 100 bytes with its share of the text.
const CACHED_FRAMES: usize = 100_000;

/// What the thread leaves when it ends.
pub type Ended = Result<Ledger>;

/// The thread, seen from outside.
pub struct Worker {
    /// Comes when the thread has read the kernel's symbols, and samples need not wait for that.
    pub ready: oneshot::Receiver<()>,
    /// Comes when the thread ends.
    pub ended: oneshot::Receiver<Ended>,
}

/// Starts the thread. It ends with the ledger after [`Message::Finish`], or with an error when it
/// can't write.
pub fn spawn(
    config: &Config,
    event: &'static str,
    sink: Sink,
    receiver: Receiver,
    delivered: Arc<PerCpuCount>,
    behind: Arc<PerCpuCount>,
) -> Result<Worker> {
    let (done, ended) = oneshot::channel();
    let (is_ready, ready) = oneshot::channel();
    let config = config.clone();
    thread::Builder::new()
        .name("symbolize".into())
        .spawn(move || {
            let output = crate::output::new(&config, event, sink);
            let symbolizer = Symbolizer::new(config.lines);
            if config.kernel_stacks {
                symbolizer.read_kernel_symbols();
            }
            // Nobody waits for either any more if the run was broken off.
            let _ = is_ready.send(());
            let mut naming = Naming {
                symbolizer,
                processes: Processes::default(),
                stacks: FxHashMap::default(),
                cached_frames: 0,
                empty: Rc::default(),
                output,
            };
            let _ = done.send(naming.run(receiver, &delivered, &behind));
        })
        .map_err(|error| Error::system("cannot start the symbolizing thread", error))?;
    Ok(Worker { ready, ended })
}

/// Resolved halves of stacks, by the mappings they were resolved in and their bytes.
type Stacks = FxHashMap<SpaceId, FxHashMap<Box<[u8]>, Rc<Stack>>>;

fn cached(stacks: &Stacks, space: SpaceId, addresses: Addresses<'_>) -> Option<Rc<Stack>> {
    stacks.get(&space)?.get(addresses.as_bytes()).map(Rc::clone)
}

/// What the thread works with.
struct Naming {
    symbolizer: Symbolizer,
    processes: Processes,
    stacks: Stacks,
    cached_frames: usize,
    empty: Rc<Stack>,
    output: Box<dyn Output>,
}

impl Naming {
    fn run(
        &mut self,
        mut receiver: Receiver,
        delivered: &PerCpuCount,
        behind: &PerCpuCount,
    ) -> Ended {
        while let Some(message) = receiver.receive() {
            match message {
                Message::Samples(samples) => {
                    let mut cpus = Vec::new();
                    let mut rest = samples.as_slice();
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
                    let ledger = Ledger::settle(&kernel, delivered, behind);
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
        let kernel = self.kernel_stack(raw.kernel);
        let (space, user) = self.user_stack(raw);
        self.output.sample(&NamedSample { raw, space, kernel, user })
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

    /// The user half, and the mappings that it was named by.
    fn user_stack(&mut self, raw: &RawSample<'_>) -> (SpaceId, Rc<Stack>) {
        if raw.user.is_empty() {
            return (SpaceId::KERNEL, Rc::clone(&self.empty));
        }
        let main_name = (raw.tid == raw.tgid).then_some(&raw.comm);
        let process = self.processes.get(raw.tgid, main_name);
        if let Some(stack) = cached(&self.stacks, process.space, raw.user) {
            return (process.space, stack);
        }
        let (mut stack, all_known) = self.symbolizer.user_stack(process, raw.user);
        let mut space = process.space;
        if all_known {
            let stack = Rc::new(stack);
            self.keep(space, raw.user, &stack);
            return (space, stack);
        }
        // A library may have been loaded since. A stack that stays outside of every mapping, as a
        // chain of frame pointers does when code has none, is not kept.
        if let Some(process) = self.processes.reread(raw.tgid) {
            stack = self.symbolizer.user_stack(process, raw.user).0;
            space = process.space;
        }
        (space, Rc::new(stack))
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
