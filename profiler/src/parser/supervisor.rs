//! Keeps one parser process running for a thread of the agent: when it ends, another is started.

use std::{
    os::fd::BorrowedFd,
    process::Child,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    bars::Bars,
    message::{Hello, decoded},
    process::{Budget, Failure, Process},
    sandbox::Step,
};
use crate::{
    limits::{budget, memory},
    realtime::{self, Role},
    stderr,
};

/// For the start of a process, which a busy machine may delay.
const START: Budget = Budget { cpu: Duration::from_secs(2), wall: Duration::from_secs(10) };
const MAX_HELLO_BYTES: usize = 64 << 10;
/// If a process can't be started, the next attempt comes after this long.
const RETRY: Duration = Duration::from_millis(500);
/// Processes that were killed and have not ended, because a file system does not respond. No further one is
/// started while there are so many.
const MAX_STUCK: usize = 4;

/// A parser process, replaced when it ends. It belongs to one thread, and ends with it.
pub(super) struct Supervisor {
    bars: Arc<Bars>,
    role: Role,
    memory_bytes: u64,
    process: Option<Process>,
    /// Processes started so far.
    generation: u64,
    /// Killed, but not gone yet.
    stuck: Vec<Child>,
    retry_at: Option<Instant>,
    lacks: Vec<(Step, String)>,
    /// Whether the process keeps a budget of real-time priority, and so may be lent some.
    keeps_budget: bool,
}

impl Supervisor {
    /// Starts no process yet. Each will have this much memory.
    pub(super) fn new(bars: Arc<Bars>, role: Role, memory_bytes: u64) -> Self {
        Self {
            bars,
            role,
            memory_bytes,
            process: None,
            generation: 0,
            stuck: Vec::new(),
            retry_at: None,
            lacks: Vec::new(),
            keeps_budget: false,
        }
    }

    /// The pid of the process that runs now.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// The number of the process that runs now, counted from the first one; starts one if none runs. `None`
    /// if none can be started now.
    pub(super) fn generation(&mut self) -> Option<u64> {
        self.start_if_due();
        self.process.as_ref().map(|_| self.generation)
    }

    /// What the process could not give up, and why.
    pub(super) fn lacks(&self) -> &[(Step, String)] {
        &self.lacks
    }

    /// Sends a request and waits for the answer. `None` if there is no process now. After a failure the
    /// caller must [`restart`](Self::restart).
    pub(super) fn ask(
        &mut self,
        request: &[u8],
        files: &[BorrowedFd<'_>],
        budget: Budget,
        limit: usize,
    ) -> Option<Result<Vec<u8>, Failure>> {
        self.start_if_due();
        let process = self.process.as_mut()?;
        if self.keeps_budget {
            // Before it has anything to do. If this is refused, so is the agent's own priority, which is
            // reported.
            let _ = realtime::lend(process.pid(), self.role);
        }
        Some(process.ask(request, files, budget, limit))
    }

    fn start_if_due(&mut self) {
        if self.process.is_none() && self.retry_at.is_none_or(|it| it <= Instant::now()) {
            self.restart();
        }
    }

    /// Starts a process, and kills the current one if there is one.
    pub(super) fn restart(&mut self) {
        if let Some(process) = self.process.take() {
            self.bars.ended(process.pid());
            self.stuck.extend(process.kill());
        }
        self.stuck.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        self.retry_at = Some(Instant::now() + RETRY);
        if self.stuck.len() >= MAX_STUCK {
            return self
                .tell("killed parser processes do not end: a file system is not responding");
        }
        match self.start() {
            Ok((process, Hello { lacks, keeps_budget })) => {
                self.bars.started(process.pid(), self.generation > 0);
                self.generation += 1;
                self.process = Some(process);
                self.retry_at = None;
                (self.lacks, self.keeps_budget) = (lacks, keeps_budget);
                for (step, why) in &self.lacks {
                    let line = format!("the parser process runs without {step}: {why}");
                    if self.bars.is_news(&line) {
                        tracing::info!("{line}");
                    }
                }
            }
            Err(why) => self.tell(&format!(
                "cannot start the parser process: {why}; until it starts, frames have no names from files"
            )),
        }
    }

    fn start(&mut self) -> Result<(Process, Hello), String> {
        let start = Instant::now();
        let memory_bytes = budget::parser_bytes(self.memory_bytes, memory::of_cgroup());
        let mut process =
            Process::start(memory_bytes, self.role).map_err(|error| error.to_string())?;
        let hello = process.hear(START, MAX_HELLO_BYTES);
        match hello.and_then(|bytes| decoded(&bytes).ok_or(Failure::Nonsense)) {
            Ok(hello) => {
                tracing::debug!(
                    "parser process {} started in {:?}",
                    process.pid(),
                    start.elapsed()
                );
                Ok((process, hello))
            }
            Err(why) => {
                self.stuck.extend(process.kill());
                Err(why.to_string())
            }
        }
    }

    fn tell(&self, line: &str) {
        if self.bars.is_news(line) {
            stderr::notice(line);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            self.bars.ended(process.pid());
            process.kill();
        }
    }
}
