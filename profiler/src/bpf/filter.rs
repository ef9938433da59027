//! What the program's filters look up.

use std::fs::File;

use aya::{
    Ebpf,
    maps::{Array, CgroupArray, HashMap},
};
use profiler_common::{comm_patterns::States, settings::flag};

use super::load::take_map;
use crate::{
    error::{Error, Result},
    filter::Filter,
};

/// The filters that are on, as bits of [`flag`].
pub(super) fn flags(filter: &Filter) -> [(u32, bool); 5] {
    [
        (flag::ONLY_PIDS, !filter.pids.is_empty()),
        (flag::ONLY_TIDS, !filter.tids.is_empty()),
        (flag::ONLY_UIDS, !filter.uids.is_empty()),
        (flag::ONLY_COMMS, !filter.comms.is_empty()),
        (flag::ONLY_CGROUPS, !filter.cgroups.is_empty()),
    ]
}

/// How large their maps have to be.
pub(super) fn map_sizes(filter: &Filter) -> [(&'static str, u32); 5] {
    let size = |entries: usize| u32::try_from(entries).unwrap_or(u32::MAX).max(1);
    [
        ("PIDS", size(filter.pids.len())),
        ("TIDS", size(filter.tids.len())),
        ("UIDS", size(filter.uids.len())),
        ("COMMS", size(filter.comms.len())),
        ("CGROUPS", size(filter.cgroups.len())),
    ]
}

/// Fills the maps.
pub(super) fn fill(ebpf: &mut Ebpf, filter: &Filter) -> Result<()> {
    for (name, what, ids) in [
        ("PIDS", "process", &filter.pids),
        ("TIDS", "thread", &filter.tids),
        ("UIDS", "user", &filter.uids),
    ] {
        let mut map: HashMap<_, u32, u8> = take_map(ebpf, name)?;
        for id in ids {
            let added = map.insert(id, 1, 0);
            added.map_err(|error| Error::system(format!("cannot filter by {what} {id}"), error))?;
        }
    }
    let mut comms: Array<_, States> = take_map(ebpf, "COMMS")?;
    for (at, states) in (0..).zip(&filter.comms) {
        let set = comms.set(at, states, 0);
        set.map_err(|error| Error::system("cannot filter by name", error))?;
    }
    let mut cgroups: CgroupArray<_> = take_map(ebpf, "CGROUPS")?;
    for (at, path) in (0..).zip(&filter.cgroups) {
        let failed = || format!("cannot filter by the cgroup {}", path.display());
        let folder = File::open(path).map_err(|error| Error::system(failed(), error))?;
        let set = cgroups.set(at, folder, 0);
        set.map_err(|error| Error::system(failed(), error))?;
    }
    Ok(())
}
