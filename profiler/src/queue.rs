//! The bounded queue between the ring's reader and the symbolizing thread.
//!
//! The reader never waits: when the queue holds its limit of bytes, what comes is dropped and
//! counted by CPU.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use profiler_profile::ledger::{KernelSide, PerCpuCount};
use tokio::sync::mpsc;

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
    /// What happened before the samples that follow were taken or while they were.
    Happened {
        /// To processes, in the order of time.
        events: Vec<Event>,
        /// To the kernel: the records of its symbols.
        kernel_code: Vec<Record>,
        /// The samples that follow were taken since then.
        samples_since_ns: u64,
    },
    /// Samples, one behind the other.
    Samples(Samples),
    /// No more samples will come: here is what the kernel counted.
    Finish(Arc<KernelSide>),
}

/// Samples, one behind the other.
pub struct Samples {
    /// As they came from the ring.
    pub bytes: Vec<u8>,
    /// What of these bytes are copies of stacks.
    copy_bytes: usize,
}

/// The sending end.
pub struct Sender {
    messages: mpsc::UnboundedSender<Message>,
    shared: Arc<Shared>,
    behind: Arc<PerCpuCount>,
}

/// The receiving end, for a thread that may block.
pub struct Receiver {
    messages: mpsc::UnboundedReceiver<Message>,
    shared: Arc<Shared>,
}

struct Shared {
    /// Without copies.
    waiting_bytes: AtomicUsize,
    waiting_copy_bytes: AtomicUsize,
    waiting_event_bytes: AtomicUsize,
    limit_bytes: usize,
    spare: Mutex<Vec<Vec<u8>>>,
    /// Batches of samples that have been dealt with.
    done: AtomicU64,
}

/// A queue in which so many bytes may wait, and that counts what it drops in `behind`.
pub fn channel(behind: Arc<PerCpuCount>, limit_bytes: usize) -> (Sender, Receiver) {
    // The limit is in bytes, since a batch of a quiet machine is a hundred times smaller than one of
    // a busy machine.
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        waiting_bytes: AtomicUsize::new(0),
        waiting_copy_bytes: AtomicUsize::new(0),
        waiting_event_bytes: AtomicUsize::new(0),
        limit_bytes,
        spare: Mutex::new(Vec::new()),
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
        let copies = &self.shared.waiting_copy_bytes;
        if copies.fetch_add(copy_bytes, Ordering::Relaxed) + copy_bytes > self.shared.limit_bytes {
            copies.fetch_sub(copy_bytes, Ordering::Relaxed);
            sample::leave_out_copies(&mut bytes);
            copy_bytes = 0;
        }
        let rest = bytes.len().saturating_sub(copy_bytes);
        let waiting = self.shared.waiting_bytes.fetch_add(rest, Ordering::Relaxed);
        if waiting + rest > self.shared.limit_bytes {
            self.shared.waiting_bytes.fetch_sub(rest, Ordering::Relaxed);
            copies.fetch_sub(copy_bytes, Ordering::Relaxed);
            sample::each(&bytes).for_each(|sample| self.behind.add(sample.slot(), sample.cpu));
            return;
        }
        // Nobody receives any more when the output has failed; the ledger sees what is missing.
        let _ = self.messages.send(Message::Samples(Samples { bytes, copy_bytes }));
    }

    /// Sends what happened; `false` if it was dropped, since too much is waiting.
    #[must_use]
    pub fn tell(
        &self,
        events: Vec<Event>,
        kernel_code: Vec<Record>,
        samples_since_ns: u64,
    ) -> bool {
        let bytes = size_of(&events, &kernel_code);
        let waiting = self.shared.waiting_event_bytes.fetch_add(bytes, Ordering::Relaxed);
        if waiting > 0 && waiting + bytes > self.shared.limit_bytes / EVENT_SHARE {
            self.shared.waiting_event_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        let _ = self.messages.send(Message::Happened { events, kernel_code, samples_since_ns });
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
        self.shared.waiting_bytes.load(Ordering::Relaxed) > 0
    }

    /// Sends the last message.
    pub fn finish(self, kernel: Arc<KernelSide>) {
        let _ = self.messages.send(Message::Finish(kernel));
    }
}

impl Receiver {
    /// Waits for the next message; `None` when the sender is gone.
    pub fn receive(&mut self) -> Option<Message> {
        let message = self.messages.blocking_recv()?;
        if let Message::Happened { events, kernel_code, .. } = &message {
            let bytes = size_of(events, kernel_code);
            self.shared.waiting_event_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        Some(message)
    }

    /// Gives a buffer back after its samples have been dealt with.
    pub fn done(&self, Samples { mut bytes, copy_bytes }: Samples) {
        let rest = bytes.len().saturating_sub(copy_bytes);
        self.shared.waiting_bytes.fetch_sub(rest, Ordering::Relaxed);
        self.shared.waiting_copy_bytes.fetch_sub(copy_bytes, Ordering::Relaxed);
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
pub(crate) fn size_of(events: &[Event], kernel_code: &[Record]) -> usize {
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
            Message::Samples(samples) => Some(samples),
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
            (small.bytes.len(), small.copy_bytes),
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
        assert_eq!(behind.get(0, 0), LIMIT_BYTES as u64 / 64 / 2);
        for samples in samples {
            receiver.done(samples);
        }
        assert!(!sender.is_waiting() && sender.batches_done() == 2);
    }
}
