//! The periods that the agent moves, told to the eBPF program.

use std::sync::{Arc, Mutex, PoisonError};

use aya::maps::{Array, MapData, MapError};
use profiler_common::settings::{self, MAX_SOURCES};

/// Where the program finds the periods of one source.
#[derive(Clone)]
pub struct Periods {
    slot: u32,
    map: Arc<Mutex<Array<MapData, u64>>>,
}

impl Periods {
    /// Those of each slot, in one map.
    pub(super) fn of_slots(map: Array<MapData, u64>) -> impl Iterator<Item = Self> {
        let map = Arc::new(Mutex::new(map));
        (0..).take(MAX_SOURCES).map(move |slot| Self { slot, map: Arc::clone(&map) })
    }

    /// Tells the period of the source on a CPU from now on, in ns. The program looks for it only if the source
    /// was loaded as one whose periods are moved.
    pub fn set(&self, cpu: u32, period_ns: u64) -> Result<(), MapError> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        map.set(settings::period_index(cpu, self.slot), period_ns, 0)
    }
}
