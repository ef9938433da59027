//! Debug files from debuginfod servers, which distributions run: by build id, on a thread that may
//! wait for them.
//!
//! The protocol is that of `debuginfod(8)`, the variables and the cache those of
//! `debuginfod-client-config(7)`, so that what gdb or perf has downloaded is found.

mod downloads;
mod settings;

use std::{
    fs::File,
    sync::mpsc::{self, Receiver, SyncSender, TrySendError},
    thread,
};

use profiler_common::build_id::BuildId;
use rustc_hash::FxHashSet;

use self::downloads::Downloads;
pub use self::settings::Settings;
use crate::{
    error::{Error, Result},
    nss,
};

/// Build ids that wait for their turn, and files that wait to be taken.
const QUEUE: usize = 64;
/// Build ids that are asked for in a run.
const ASKED_LIMIT: usize = 16 << 10;

/// Asks for debug files, and has them some time later.
#[derive(Debug)]
pub struct Debuginfod {
    wanted: SyncSender<BuildId>,
    found: Receiver<(BuildId, File)>,
    asked: FxHashSet<BuildId>,
}

impl Debuginfod {
    /// Starts the thread, which ends when nobody waits for it any more.
    pub fn start(settings: Settings) -> Result<Self> {
        nss::stay_inside();
        let (wanted, next_wanted) = mpsc::sync_channel(QUEUE);
        let (is_found, found) = mpsc::sync_channel(QUEUE);
        let work = move || {
            let mut downloads = Downloads::new(settings);
            for id in next_wanted {
                if let Some(file) = downloads.get(id)
                    && is_found.send((id, file)).is_err()
                {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("debuginfod".into())
            .spawn(work)
            .map_err(|error| Error::system("cannot start the thread of --debuginfod", error))?;
        Ok(Self { wanted, found, asked: FxHashSet::default() })
    }

    /// Wants a debug file. One that no server has is asked for once in a run, another again when it has
    /// come; while too many are waited for, a further one has to be asked for again.
    pub fn ask(&mut self, id: BuildId) {
        if self.asked.len() >= ASKED_LIMIT || self.asked.contains(&id) {
            return;
        }
        if !matches!(self.wanted.try_send(id), Err(TrySendError::Full(_))) {
            self.asked.insert(id);
        }
    }

    /// A debug file that has come, and was not taken yet; does not wait. It can be asked for again, in
    /// case that it is given back meanwhile to make room: then it is in the cache.
    pub fn arrived(&mut self) -> Option<(BuildId, File)> {
        let (id, file) = self.found.try_recv().ok()?;
        self.asked.remove(&id);
        Some((id, file))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        downloads::tests::{ID, Server, id, settings},
        settings::TIMEOUT,
        *,
    };
    use profiler_testing::elf::with_build_id;
    use tempfile::TempDir;

    #[test]
    fn each_is_asked_for_once_and_comes_by_itself() {
        let cache = TempDir::new().unwrap();
        let server = Server::with(with_build_id(&ID));
        let mut debuginfod = Debuginfod::start(settings(&cache, &[&server], TIMEOUT)).unwrap();
        let nowhere = BuildId::from_slice(&[9; 20]).unwrap();
        assert!(debuginfod.arrived().is_none());
        for _ in 0..3 {
            debuginfod.ask(nowhere);
            debuginfod.ask(id());
        }
        let (found, file) = loop {
            if let Some(arrived) = debuginfod.arrived() {
                break arrived;
            }
        };
        assert_eq!((found, profiler_elf::build_id(&file)), (id(), Some(id())));
        // The thread ends when it has no more to do, and by then it has asked for all.
        drop(std::mem::replace(&mut debuginfod.wanted, mpsc::sync_channel(1).0));
        assert!(debuginfod.found.recv().is_err());
        assert_eq!(server.calls(), 2);
    }

    #[test]
    fn what_has_come_can_be_asked_for_again() {
        let cache = TempDir::new().unwrap();
        let server = Server::with(with_build_id(&ID));
        let mut debuginfod = Debuginfod::start(settings(&cache, &[&server], TIMEOUT)).unwrap();
        for _ in 0..2 {
            debuginfod.ask(id());
            while debuginfod.arrived().is_none() {}
        }
        // The second time it was in the cache.
        assert_eq!(server.calls(), 1);
    }

    #[test]
    fn what_can_not_be_queued_is_not_forgotten() {
        let (wanted, next_wanted) = mpsc::sync_channel(1);
        let (_, found) = mpsc::sync_channel(1);
        let mut debuginfod = Debuginfod { wanted, found, asked: FxHashSet::default() };
        let other = BuildId::from_slice(&[1]).unwrap();
        debuginfod.ask(id());
        debuginfod.ask(other);
        assert_eq!(next_wanted.recv(), Ok(id()));
        debuginfod.ask(other);
        assert_eq!(next_wanted.recv(), Ok(other));
    }
}
