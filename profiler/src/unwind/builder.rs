//! The thread that makes tables: that of a large program takes a while, in which the mappings of others
//! must not wait.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use profiler_common::unwind::rule::Rule;

use super::{NoTable, Rules, Table};
use crate::process::{
    file::MappedFile,
    maps::{self, Backing},
};

/// Tables that may wait to be made.
const QUEUE: usize = 64;

/// What a table is to be made of.
pub(super) enum Code {
    File(Arc<MappedFile>),
    Vdso,
}

impl Code {
    /// How large it is.
    fn bytes(&self) -> u64 {
        match self {
            Self::File(file) => {
                file.file().and_then(|it| it.metadata().ok()).map_or(0, |it| it.len())
            }
            Self::Vdso => 0,
        }
    }
}

/// A table's place, and which of those that are there in turn it is.
pub(super) type Ticket = (u32, u64);

/// A table that was made.
pub(super) struct Built {
    /// What it was asked with.
    pub(super) ticket: Ticket,
    /// The number of the first of the rules that it brought.
    pub(super) first_rule: u32,
    /// Rules that no table before had.
    pub(super) rules: Vec<Rule>,
    /// The table, or why there is none; `None` where the file can't be used now.
    pub(super) table: Option<Result<Table, NoTable>>,
}

/// The thread, seen from outside. It ends when this is dropped.
pub(super) struct Builder {
    jobs: mpsc::SyncSender<(Ticket, Code)>,
    built: mpsc::Receiver<Built>,
    waiting: usize,
}

impl Builder {
    pub(super) fn start() -> std::io::Result<Self> {
        let (sender, jobs) = mpsc::sync_channel(QUEUE);
        let (done, built) = mpsc::channel();
        thread::Builder::new().name("unwind-tables".into()).spawn(move || build(&jobs, &done))?;
        Ok(Self { jobs: sender, built, waiting: 0 })
    }

    /// Has a table made; whether there was room.
    pub(super) fn ask(&mut self, ticket: Ticket, code: Code) -> bool {
        let asked = self.jobs.try_send((ticket, code)).is_ok();
        self.waiting += usize::from(asked);
        asked
    }

    /// Whether there is a table to come.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting > 0
    }

    /// The next table that is done.
    pub(super) fn built(&mut self) -> Option<Built> {
        let built = self.built.try_recv().ok()?;
        self.waiting -= 1;
        Some(built)
    }
}

fn build(jobs: &mpsc::Receiver<(Ticket, Code)>, done: &mpsc::Sender<Built>) {
    let mut rules = Rules::new();
    let mut told = 0;
    let mut waiting: Vec<(Ticket, Code)> = Vec::new();
    loop {
        if waiting.is_empty() {
            let Ok(job) = jobs.recv() else { break };
            waiting.push(job);
        }
        waiting.extend(jobs.try_iter());
        // The smallest first: what takes long holds up only what takes longer.
        let smallest = waiting.iter().enumerate().min_by_key(|(_, (_, code))| code.bytes());
        let Some((at, _)) = smallest else { continue };
        let (ticket, code) = waiting.swap_remove(at);
        let start = Instant::now();
        let table = match &code {
            Code::Vdso => Some(Table::of_vdso(&vdso(), &mut rules)),
            Code::File(file) => file.unchanged().ok().map(|file| Table::of_file(file, &mut rules)),
        };
        let bytes = table.as_ref().map(|it| it.as_ref().map(|it| size_of_val(it.chunks())));
        tracing::debug!("unwind table {ticket:?}: {bytes:?} bytes in {:?}", start.elapsed());
        let first_rule = u32::try_from(told).unwrap_or(u32::MAX);
        let new = rules.since(told).to_vec();
        told = rules.len();
        if done.send(Built { ticket, first_rule, rules: new, table }).is_err() {
            break;
        }
    }
}

/// The vDSO as it is mapped here, which is as it is mapped everywhere.
fn vdso() -> Vec<u8> {
    let read = || {
        let text = fs::read("/proc/self/maps").ok()?;
        let vdso = maps::parse(&text).into_iter().find(|it| it.backing == Backing::Vdso)?;
        let mut bytes = vec![0; usize::try_from(vdso.end - vdso.start).ok()?];
        let memory = fs::File::open("/proc/self/mem").ok()?;
        memory.read_exact_at(&mut bytes, vdso.start).ok()?;
        Some(bytes)
    };
    read().unwrap_or_default()
}
