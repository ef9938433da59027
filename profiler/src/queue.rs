//! The bounded queue between the ring's reader and the symbolizing thread.
//!
//! The reader never waits: when the queue holds its limit of bytes, what comes is dropped and
//! counted by CPU.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use profiler_profile::ledger::{KernelSide, PerCpuCount};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::{
    perf::record::Record,
    process::{
        space::Mapped,
        table::{Event, Kind},
    },
    sample,
};

/// What of these bytes the events of processes may take.
const EVENT_SHARE: usize = 2;
/// Buffers kept for use again.
const SPARE_BUFFERS: usize = 4;

/// What the reader sends.
pub enum Message {
    /// What happened before the samples that follow were taken or while they were. The process manager knows it.
    Happened {
        /// To processes, in the order of time, for who shows that.
        events: Vec<Event>,
        /// To the kernel: the records of its symbols.
        kernel_code: Vec<Record>,
        /// The samples that follow were taken since then.
        samples_since_ns: u64,
    },
    /// Samples, one behind the other.
    Samples(Samples),
    /// A window ends with the samples before this.
    Window {
        /// What the kernel has counted so far.
        kernel: Arc<KernelSide>,
        /// When it ends; CLOCK_MONOTONIC.
        end_ns: u64,
    },
    /// No more samples will come: here is what the kernel counted.
    Finish(Arc<KernelSide>),
}

/// Samples, one behind the other.
pub struct Samples {
    /// As they came from the ring.
    pub bytes: Vec<u8>,
    /// The room that they take, and that of copies of stacks among them: free again when this is dropped.
    room: Taken,
    copies: Taken,
}

/// The sending end.
pub struct Sender {
    messages: mpsc::UnboundedSender<Waiting>,
    shared: Arc<Shared>,
    behind: Arc<PerCpuCount>,
}

/// How full the queue is, for whoever wants to know.
#[derive(Clone)]
pub struct Depth(Arc<Shared>);

/// A part of the queue that has a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What waits there.
    pub name: &'static str,
    /// What it takes.
    pub bytes: u64,
    /// What it may take.
    pub limit_bytes: u64,
}

/// The receiving end, for a thread that may block.
pub struct Receiver {
    messages: mpsc::UnboundedReceiver<Waiting>,
    shared: Arc<Shared>,
}

/// A message, and what it takes of the room while it waits. Samples take theirs until they have been dealt with.
type Waiting = (Message, Option<Taken>);

struct Shared {
    samples: Room,
    copies: Room,
    events: Room,
    spare: Mutex<Vec<Vec<u8>>>,
    /// Batches of samples that were sent.
    sent: AtomicU64,
    /// Batches of samples that have been dealt with.
    done: AtomicU64,
}

/// Room for so many bytes.
struct Room {
    free: Arc<Semaphore>,
    bytes: u32,
}

/// A part of it, which is free again when this is dropped.
type Taken = OwnedSemaphorePermit;

impl Room {
    fn new(bytes: usize) -> Self {
        let bytes = u32::try_from(bytes.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self { free: Arc::new(Semaphore::new(bytes as usize)), bytes }
    }

    /// Takes so much of it, if so much is free.
    fn take(&self, bytes: usize) -> Option<Taken> {
        Arc::clone(&self.free).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }

    /// The same, but what is larger than all of it takes that.
    fn take_at_most_all(&self, bytes: usize) -> Option<Taken> {
        self.take(bytes.min(self.bytes as usize))
    }

    fn is_used(&self) -> bool {
        self.used() > 0
    }

    fn used(&self) -> usize {
        (self.bytes as usize).saturating_sub(self.free.available_permits())
    }

    fn part(&self, name: &'static str) -> Part {
        let bytes = u64::try_from(self.used()).unwrap_or(u64::MAX);
        Part { name, bytes, limit_bytes: self.bytes.into() }
    }
}

impl Depth {
    /// What waits, by what it is.
    #[must_use]
    pub fn parts(&self) -> [Part; 3] {
        let Shared { samples, copies, events, .. } = &*self.0;
        [samples.part("samples"), copies.part("stack_snapshots"), events.part("events")]
    }

    /// How many batches of samples were sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// How many of those have been dealt with.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }
}

/// A queue in which so many bytes may wait, and that counts what it drops in `behind`.
pub fn channel(behind: Arc<PerCpuCount>, limit_bytes: usize) -> (Sender, Receiver) {
    // The limit is in bytes, since a batch of a quiet machine is a hundred times smaller than one of
    // a busy machine.
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        samples: Room::new(limit_bytes),
        copies: Room::new(limit_bytes),
        events: Room::new(limit_bytes / EVENT_SHARE),
        spare: Mutex::new(Vec::new()),
        sent: AtomicU64::new(0),
        done: AtomicU64::new(0),
    });
    (
        Sender { messages: sender, shared: Arc::clone(&shared), behind },
        Receiver { messages: receiver, shared },
    )
}

impl Sender {
    /// An empty buffer to fill.
    #[must_use]
    pub fn buffer(&self) -> Vec<u8> {
        self.shared.spare.lock().ok().and_then(|mut spare| spare.pop()).unwrap_or_default()
    }

    /// Sends the samples, or drops and counts them if too much is waiting. Copies of stacks are left out
    /// before that.
    pub fn offer(&self, mut bytes: Vec<u8>) {
        let mut copy_bytes: usize = sample::each(&bytes).map(|sample| sample.copy_bytes()).sum();
        let mut copies = self.shared.copies.take(copy_bytes);
        if copies.is_none() {
            sample::leave_out_copies(&mut bytes);
            copy_bytes = 0;
            copies = self.shared.copies.take(0);
        }
        let room = self.shared.samples.take(bytes.len().saturating_sub(copy_bytes));
        let Some((room, copies)) = room.zip(copies) else {
            sample::each(&bytes).for_each(|sample| self.behind.add(sample.slot(), sample.cpu));
            return;
        };
        self.shared.sent.fetch_add(1, Ordering::Relaxed);
        // Nobody receives any more when the output has failed; the ledger sees what is missing.
        let _ = self.messages.send((Message::Samples(Samples { bytes, room, copies }), None));
    }

    /// Sends what happened; `false` if it was dropped, since too much is waiting.
    #[must_use]
    pub fn tell(
        &self,
        events: Vec<Event>,
        kernel_code: Vec<Record>,
        samples_since_ns: u64,
    ) -> bool {
        let room = self
            .shared
            .events
            .take_at_most_all(size_of::<Waiting>() + size_of_all(&events, &kernel_code));
        let Some(room) = room else { return false };
        let message = Message::Happened { events, kernel_code, samples_since_ns };
        let _ = self.messages.send((message, Some(room)));
        true
    }

    /// How many batches of samples have been dealt with.
    #[must_use]
    pub fn batches_done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Whether samples wait, or are being dealt with.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.shared.samples.is_used()
    }

    /// What tells how full the queue is.
    #[must_use]
    pub fn depth(&self) -> Depth {
        Depth(Arc::clone(&self.shared))
    }

    /// Ends a window.
    pub fn end_window(&self, kernel: Arc<KernelSide>, end_ns: u64) {
        let _ = self.messages.send((Message::Window { kernel, end_ns }, None));
    }

    /// Sends the last message.
    pub fn finish(self, kernel: Arc<KernelSide>) {
        let _ = self.messages.send((Message::Finish(kernel), None));
    }
}

impl Receiver {
    /// Waits for the next message; `None` when the sender is gone.
    pub fn receive(&mut self) -> Option<Message> {
        self.messages.blocking_recv().map(|(message, _)| message)
    }

    /// Gives a buffer back after its samples have been dealt with.
    pub fn done(&self, Samples { mut bytes, room, copies }: Samples) {
        drop((room, copies));
        self.shared.done.fetch_add(1, Ordering::Relaxed);
        bytes.clear();
        if let Ok(mut spare) = self.shared.spare.lock()
            && spare.len() < SPARE_BUFFERS
        {
            spare.push(bytes);
        }
    }
}

/// What only these hold.
pub(crate) fn size_of_all(events: &[Event], kernel_code: &[Record]) -> usize {
    let held = |event: &Event| match &event.kind {
        Kind::Found { mappings, .. } => mappings.iter().map(size_of_mapping).sum(),
        Kind::Mapped(mapping) => size_of_mapping(mapping),
        _ => 0,
    };
    // The names of kernel symbols are short.
    size_of_val(events) + events.iter().map(held).sum::<usize>() + size_of_val(kernel_code)
}

fn size_of_mapping(mapping: &Mapped) -> usize {
    size_of_val(mapping) + mapping.name.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::budget::QUEUE_BYTES as LIMIT_BYTES;
    use profiler_common::sample::{COPY_BYTES, COPY_REGISTERS};

    /// A batch of samples of no frames, each with a copy of so many bytes.
    fn batch(samples: usize, copy_bytes: usize) -> Vec<u8> {
        let mut sample = vec![0; 64];
        sample[58..60].copy_from_slice(&u16::try_from(copy_bytes).unwrap().to_ne_bytes());
        sample.resize(64 + copy_bytes, 1);
        sample.repeat(samples)
    }

    fn received(receiver: &mut Receiver) -> Option<Samples> {
        match receiver.messages.try_recv().ok()? {
            (Message::Samples(samples), _) => Some(samples),
            _ => None,
        }
    }

    #[test]
    fn copies_are_left_out_before_a_sample_is() {
        let behind = Arc::new(PerCpuCount::new(1, 1));
        let (sender, mut receiver) = channel(Arc::clone(&behind), LIMIT_BYTES);
        let full = batch(LIMIT_BYTES / COPY_BYTES, COPY_BYTES);
        sender.offer(full.clone());
        sender.offer(batch(2, COPY_REGISTERS * 8));
        sender.offer(full.clone());
        let first = received(&mut receiver).unwrap();
        assert!(first.bytes == full);
        // There was room for small ones.
        let small = received(&mut receiver).unwrap();
        assert_eq!(
            (small.bytes.len(), small.copies.num_permits()),
            (2 * (64 + COPY_REGISTERS * 8), 2 * COPY_REGISTERS * 8)
        );
        let without = received(&mut receiver).unwrap();
        assert!(without.bytes == batch(LIMIT_BYTES / COPY_BYTES, 0));
        assert_eq!(sample::each(&without.bytes).count(), LIMIT_BYTES / COPY_BYTES);
        // When they are dealt with there is room again.
        for samples in [first, small, without] {
            receiver.done(samples);
        }
        sender.offer(full.clone());
        assert!(received(&mut receiver).unwrap().bytes == full);
        assert_eq!(behind.get(0, 0), 0);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let behind = Arc::new(PerCpuCount::new(1, 1));
        let (sender, mut receiver) = channel(Arc::clone(&behind), LIMIT_BYTES);
        let half = batch(LIMIT_BYTES / 64 / 2, 0);
        for _ in 0..3 {
            sender.offer(half.clone());
        }
        let samples: Vec<Samples> = std::iter::from_fn(|| received(&mut receiver)).collect();
        assert_eq!(samples.len(), 2);
        assert!(sender.is_waiting() && sender.batches_done() == 0);
        let depth = sender.depth();
        let limit_bytes = LIMIT_BYTES as u64;
        let full = Part { name: "samples", bytes: limit_bytes, limit_bytes };
        assert_eq!((depth.parts()[0], depth.parts()[1].bytes), (full, 0));
        assert_eq!((depth.sent(), depth.done()), (2, 0));
        assert_eq!(behind.get(0, 0), LIMIT_BYTES as u64 / 64 / 2);
        for samples in samples {
            receiver.done(samples);
        }
        assert!(!sender.is_waiting() && sender.batches_done() == 2);
        assert_eq!((depth.parts()[0].bytes, depth.sent(), depth.done()), (0, 2, 2));
    }
    #[test]
    fn what_happened_takes_room_until_it_is_received() {
        let (sender, mut receiver) = channel(Arc::new(PerCpuCount::new(1, 1)), 1 << 10);
        let ended = |count| vec![Event { time_ns: 1, tgid: 1, kind: Kind::Ended }; count];
        // More than there is room for, which is better than nothing.
        assert!(sender.tell(ended(1000), Vec::new(), 0));
        assert!(!sender.tell(ended(1), Vec::new(), 0));
        assert!(matches!(receiver.receive(), Some(Message::Happened { .. })));
        assert!(sender.tell(ended(1), Vec::new(), 0));
    }
}
