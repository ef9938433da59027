//! The profiler's own processes, which the eBPF program skips.

use aya::maps::{HashMap, MapData};

use crate::error::{Error, Result};

/// The set of their tgids, in the kernel. It can be changed while the program runs.
#[derive(Debug)]
pub struct OwnProcesses(HashMap<MapData, u32, u8>);

impl OwnProcesses {
    /// The set that the program reads.
    pub(super) fn new(map: HashMap<MapData, u32, u8>) -> Self {
        Self(map)
    }

    /// Adds a process, such as a helper that was just started. Fails if there are
    /// [`MAX_OWN`](profiler_common::settings::MAX_OWN) already.
    pub fn add(&mut self, tgid: u32) -> Result<()> {
        let added = self.0.insert(tgid, 0, 0);
        added.map_err(|error| {
            Error::system(format!("cannot exclude the profiler's own process {tgid}"), error)
        })
    }

    /// Removes a process that has ended: its id may be another's next.
    pub fn remove(&mut self, tgid: u32) {
        // One that is not in the set needs no removal.
        let _ = self.0.remove(&tgid);
    }
}
