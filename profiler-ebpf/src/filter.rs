//! Whose samples are kept.

use aya_ebpf::helpers::{bpf_get_current_uid_gid, generated::bpf_get_current_comm};
use profiler_common::{
    comm_patterns,
    counter::Counter,
    sample::COMM_LEN,
    settings::{MAX_CGROUPS, flag},
};

use crate::{CGROUP_COUNT, CGROUPS, COMMS, PIDS, TIDS, UIDS};

/// The first filter that drops a sample of the current task, by its counter. What each costs grows from one to the
/// next.
#[inline(always)]
pub(crate) fn drops(flags: u32, tgid: u32, tid: u32) -> Option<Counter> {
    // SAFETY: the value is not used, so a concurrent update of it does not matter.
    if flags & flag::ONLY_PIDS != 0 && unsafe { PIDS.get(tgid) }.is_none() {
        return Some(Counter::FilteredPid);
    }
    // SAFETY: as above.
    if flags & flag::ONLY_TIDS != 0 && unsafe { TIDS.get(tid) }.is_none() {
        return Some(Counter::FilteredTid);
    }
    if flags & flag::ONLY_UIDS != 0 {
        let uid = bpf_get_current_uid_gid() as u32;
        // SAFETY: as above.
        if unsafe { UIDS.get(uid) }.is_none() {
            return Some(Counter::FilteredUid);
        }
    }
    if flags & flag::ONLY_COMMS != 0 && !has_name() {
        return Some(Counter::FilteredComm);
    }
    if flags & flag::ONLY_CGROUPS != 0 && !is_in_cgroup() {
        return Some(Counter::FilteredCgroup);
    }
    None
}

/// Whether the thread's name is one that was asked for.
#[inline(always)]
fn has_name() -> bool {
    let mut name = [0; COMM_LEN];
    // SAFETY: `name` is `COMM_LEN` bytes long; the helper fills all of them.
    unsafe { bpf_get_current_comm(name.as_mut_ptr().cast(), COMM_LEN as u32) };
    comm_patterns::matches(&name, |entry| COMMS.get(entry))
}

/// Whether the task is in one of the cgroups, or below.
#[inline(always)]
fn is_in_cgroup() -> bool {
    let count = CGROUP_COUNT.load().min(MAX_CGROUPS);
    // An error means that the agent has put nothing there.
    (0..count).any(|at| CGROUPS.current_task_under_cgroup(at) == Ok(true))
}
