//! How samples come into the window, and what a screen is told beside them.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{Begun, Snapshot, Span, Spawns, Window};
use crate::{
    export::{Exporter, Row},
    ledger::{Lost, memory::Cache},
};

/// What a run knows of itself, once a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Samples lost so far, as far as that is known before the end.
    pub lost: Lost,
    /// CPU time of the agent and its parser processes since they began.
    pub cpu: Duration,
    /// What they have in RAM, in bytes.
    pub memory_bytes: u64,
    /// Whether samples wait for their names.
    pub is_behind: bool,
}

/// What a run and its screen share.
#[derive(Debug)]
pub struct Live {
    window: Mutex<Window>,
    spawns: Mutex<Spawns>,
    vitals: Mutex<Vitals>,
    is_over: AtomicBool,
}

impl Live {
    /// Nothing sampled yet.
    #[must_use]
    pub fn new(window: Window) -> Arc<Self> {
        let (length, begun_ns) = window.extent();
        Arc::new(Self {
            window: Mutex::new(window),
            spawns: Mutex::new(Spawns::new(length, begun_ns)),
            vitals: Mutex::default(),
            is_over: AtomicBool::new(false),
        })
    }

    /// What was sampled until now (CLOCK_MONOTONIC, in nanoseconds), or where samples wait for their names, until the
    /// last that has them: else on a busy machine all might be too old to be seen.
    #[must_use]
    pub fn snapshot(&self, span: Span, now_ns: u64) -> Snapshot {
        let is_behind = self.vitals().is_behind;
        let mut window = self.window();
        let until_ns = window.latest_ns().filter(|_| is_behind).map_or(now_ns, |it| it.min(now_ns));
        let behind = Duration::from_nanos(now_ns.saturating_sub(until_ns));
        Snapshot { behind, ..window.snapshot(span, until_ns) }
    }

    /// What the reader of snapshots holds of them by now, in bytes: it counts towards the window's limit.
    pub fn set_beside(&self, bytes: usize) {
        self.window().set_beside(bytes);
    }

    /// From here on something is sampled (CLOCK_MONOTONIC, in nanoseconds).
    pub fn begin_at(&self, now_ns: u64) {
        self.window().begin_at(now_ns);
        self.spawns().begin_at(now_ns);
    }

    /// The processes that have begun until now (CLOCK_MONOTONIC, in nanoseconds).
    #[must_use]
    pub fn begun(&self, span: Span, now_ns: u64) -> Begun {
        self.spawns().snapshot(span, now_ns)
    }

    /// The processes that have begun, for whoever is told of them.
    pub fn spawns(&self) -> MutexGuard<'_, Spawns> {
        self.spawns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is left that could be sampled: all that was asked for has ended.
    pub fn be_over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Tells the screen how the run goes on.
    pub fn tell(&self, vitals: Vitals) {
        *self.vitals.lock().unwrap_or_else(PoisonError::into_inner) = vitals;
    }

    /// What was told last.
    #[must_use]
    pub fn vitals(&self) -> Vitals {
        *self.vitals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each change is whole as soon as it can be seen, also by one who finds that the other has panicked.
    pub(super) fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An output that is a screen.
#[derive(Debug)]
pub struct Feed(pub Arc<Live>);

impl Exporter for Feed {
    fn add(&mut self, row: Row<'_>, _: &mut dyn Write) -> io::Result<()> {
        self.0.window().add(&row);
        Ok(())
    }

    fn account(&self) -> Vec<Cache> {
        vec![self.0.window().account(), self.0.spawns().account()]
    }
}
