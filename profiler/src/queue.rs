//! The bounded queue between the ring's reader and the symbolizing thread.
//!
//! The reader never waits: when the queue holds its limit of bytes, what comes is dropped and
//! counted by CPU.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::mpsc;

use crate::{
    ledger::{KernelSide, PerCpuCount},
    perf::record::Record,
    process::{
        space::Mapped,
        table::{Event, Kind},
    },
    sample,
};

/// Bytes that may wait. At 99 Hz on 64 CPUs this is more than four seconds.
const LIMIT_BYTES: usize = 8 << 20;
/// What of these bytes may be used up by copies of stacks, for which no sample is to be lost.
const COPY_SHARE: usize = 2;
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
    Samples(Vec<u8>),
    /// No more samples will come: here is what the kernel counted.
    Finish(Arc<KernelSide>),
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
    waiting_bytes: AtomicUsize,
    waiting_event_bytes: AtomicUsize,
    spare: Mutex<Vec<Vec<u8>>>,
}

/// A queue that counts what it drops in `behind`.
pub fn channel(behind: Arc<PerCpuCount>) -> (Sender, Receiver) {
    // The limit is in bytes, since a batch of a quiet machine is a hundred times smaller than one of
    // a busy machine.
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        waiting_bytes: AtomicUsize::new(0),
        waiting_event_bytes: AtomicUsize::new(0),
        spare: Mutex::new(Vec::new()),
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

    /// Sends the samples, or drops and counts them if too much is waiting.
    pub fn offer(&self, mut samples: Vec<u8>) {
        let waiting = self.shared.waiting_bytes.load(Ordering::Relaxed);
        if waiting + samples.len() > LIMIT_BYTES / COPY_SHARE {
            sample::leave_out_copies(&mut samples);
        }
        let bytes = samples.len();
        let waiting = self.shared.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if waiting + bytes > LIMIT_BYTES {
            self.shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let mut rest = samples.as_slice();
            while let Ok((sample, behind)) = sample::decode(rest) {
                self.behind.add(sample.cpu);
                rest = behind;
            }
            return;
        }
        // Nobody receives any more when the output has failed; the ledger sees what is missing.
        let _ = self.messages.send(Message::Samples(samples));
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
        if waiting > 0 && waiting + bytes > LIMIT_BYTES / EVENT_SHARE {
            self.shared.waiting_event_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        let _ = self.messages.send(Message::Happened { events, kernel_code, samples_since_ns });
        true
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
    pub fn done(&self, mut samples: Vec<u8>) {
        self.shared.waiting_bytes.fetch_sub(samples.len(), Ordering::Relaxed);
        samples.clear();
        if let Ok(mut spare) = self.shared.spare.lock()
            && spare.len() < SPARE_BUFFERS
        {
            spare.push(samples);
        }
    }
}

/// What only these hold.
fn size_of(events: &[Event], kernel_code: &[Record]) -> usize {
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
