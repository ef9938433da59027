//! Ends sampling in time, also where events leave the reader no time to.

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use perf_event_open_sys as sys;

use crate::{
    bpf::gate::Gate,
    error::{Error, Result},
    realtime::{Priority, Role},
};

/// A thread that disables the events when the time asked for has passed. It ends when this is dropped.
pub struct Deadline {
    shared: Arc<Shared>,
    _alive: mpsc::Sender<()>,
}

#[derive(Default)]
struct Shared {
    events: Mutex<Vec<Weak<OwnedFd>>>,
    gates: Vec<Weak<Gate>>,
    passed: OnceLock<Instant>,
}

impl Deadline {
    /// Starts the thread, which disables these events and closes these gates; the time begins now.
    pub fn start(
        after: Duration,
        events: Vec<Weak<OwnedFd>>,
        gates: Vec<Weak<Gate>>,
    ) -> Result<Self> {
        let shared = Arc::new(Shared { gates, ..Shared::default() });
        let (alive, ended) = mpsc::channel();
        let of_thread = Arc::clone(&shared);
        let run = move || {
            let _priority = Priority::enter(Role::Deadline);
            if ended.recv_timeout(after) == Err(mpsc::RecvTimeoutError::Timeout) {
                of_thread.disable();
            }
        };
        thread::Builder::new()
            .name("deadline".into())
            .spawn(run)
            .map_err(|error| Error::system("cannot start the thread that ends the run", error))?;
        let deadline = Self { shared, _alive: alive };
        deadline.follow(events);
        Ok(deadline)
    }

    /// Takes the events that are open now in place of those before.
    pub fn follow(&self, events: Vec<Weak<OwnedFd>>) {
        *self.shared.events.lock().unwrap_or_else(PoisonError::into_inner) = events;
    }

    /// When the events were disabled; `None` before that.
    #[must_use]
    pub fn passed(&self) -> Option<Instant> {
        self.shared.passed.get().copied()
    }
}

impl Shared {
    fn disable(&self) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events.iter().filter_map(Weak::upgrade) {
            // The reader disables all of them again, and says what it can't.
            // SAFETY: the ioctl takes no pointer, and `event` is open until the end of this block.
            unsafe { sys::ioctls::DISABLE(event.as_raw_fd(), 0) };
        }
        for gate in self.gates.iter().filter_map(Weak::upgrade) {
            // As above.
            let _ = gate.close();
        }
        let _ = self.passed.set(Instant::now());
    }
}
