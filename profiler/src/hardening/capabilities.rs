//! Capabilities: which ones the agent uses, and giving up the rest.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::{
    error::{Error, Result},
    kernel,
};

/// What loading and sampling need. Sampling goes on needing both: CPUs that come online get new events, and each
/// unwind table is a new map.
pub(crate) const NEEDED: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::BPF, "CAP_BPF"), (CapabilitySet::PERFMON, "CAP_PERFMON")];

/// What names and mappings of other users' processes and of the kernel need, and rings for records of
/// mappings that are large enough. Tried one by one; each is used for as long as the run lasts.
pub(crate) const USEFUL: [(CapabilitySet, &str); 5] = [
    // /proc/PID/maps, map_files and root of other users' processes.
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
    // The files behind mappings, whoever may read them.
    (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
    // Addresses in /proc/kallsyms, which is read again when modules are loaded.
    (CapabilitySet::SYSLOG, "CAP_SYSLOG"),
    // Opening /proc/PID/map_files.
    (CapabilitySet::CHECKPOINT_RESTORE, "CAP_CHECKPOINT_RESTORE"),
    // Rings beyond kernel.perf_event_mlock_kb, for CPUs that come online, too.
    (CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK"),
];

/// Renaming and removing files in folders of other users, sticky ones too, which root can do by it.
pub(crate) const FILES_OF_OTHERS: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER);

/// Putting probes into user code, which the kernel leaves to this one since Linux 6.16, and in its stable series, too:
/// a probe in the middle of an instruction breaks a program.
pub(crate) const USER_PROBES: CapabilitySet = CapabilitySet::SYS_ADMIN;

/// Sending signals to processes of other users.
pub(crate) const SIGNALS_TO_OTHERS: CapabilitySet = CapabilitySet::KILL;

/// What CAP_SYS_ADMIN stands in for: it is where these came from. The kernel does not take it for CAP_SYSLOG
/// when it shows addresses, nor for CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH or CAP_IPC_LOCK.
const PARTS_OF_SYS_ADMIN: CapabilitySet =
    CapabilitySet::BPF.union(CapabilitySet::PERFMON).union(CapabilitySet::CHECKPOINT_RESTORE);

/// The effective capabilities of the calling thread.
pub(crate) fn effective() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// The names of those of `among` that the calling thread lacks.
pub(crate) fn missing(among: &[(CapabilitySet, &'static str)]) -> Vec<&'static str> {
    missing_from(effective(), among)
}

fn missing_from(has: CapabilitySet, among: &[(CapabilitySet, &'static str)]) -> Vec<&'static str> {
    let is_there = |wanted| {
        has.contains(wanted)
            || has.contains(CapabilitySet::SYS_ADMIN) && PARTS_OF_SYS_ADMIN.contains(wanted)
    };
    among.iter().filter(|(wanted, _)| !is_there(*wanted)).map(|(_, name)| *name).collect()
}

/// The names of those in a set that the agent uses.
pub(crate) fn names(set: CapabilitySet) -> Vec<&'static str> {
    let stand_ins =
        [(CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"), (CapabilitySet::SYS_NICE, "CAP_SYS_NICE")];
    let known = NEEDED.iter().chain(&USEFUL).chain(&stand_ins);
    known.filter(|(one, _)| set.contains(*one)).map(|(_, name)| *name).collect()
}

/// Above which value of `kernel.perf_event_paranoid` the kernels of Debian and Ubuntu open events for
/// CAP_SYS_ADMIN only. Linux itself knows no such value.
pub(crate) const RESTRICTED_ABOVE: i64 = 2;

/// Whether this kernel may want CAP_SYS_ADMIN of whoever opens an event.
pub(crate) fn events_need_sys_admin() -> bool {
    kernel::sysctl_number("kernel.perf_event_paranoid").is_some_and(|it| it > RESTRICTED_ABOVE)
}

/// What is kept of a set, by a run with real-time threads or one without, and where events need
/// CAP_SYS_ADMIN or not: CPUs that come online get events late.
pub(crate) fn kept(of: CapabilitySet, realtime: bool, needs_admin: bool) -> CapabilitySet {
    let used =
        NEEDED.iter().chain(&USEFUL).fold(CapabilitySet::empty(), |all, (one, _)| all | *one);
    // All or nothing: with it alone there is nothing else to sample by.
    let stands_in = if of.contains(PARTS_OF_SYS_ADMIN) && !needs_admin {
        CapabilitySet::empty()
    } else {
        CapabilitySet::SYS_ADMIN
    };
    // With CAP_SYS_RESOURCE the limits of priority were raised, by which threads need no capability.
    let priority = if realtime && !of.contains(CapabilitySet::SYS_RESOURCE) {
        CapabilitySet::SYS_NICE
    } else {
        CapabilitySet::empty()
    };
    of & (used | stands_in | priority)
}

/// Drops every capability of the calling thread that sampling and naming do not need, from all of its sets, and
/// sees to it that exec can't bring any back. Threads that it starts have no more than it has, so this comes
/// before the first. What needs more (raised limits, the output file) comes before it.
///
/// What is set aside stays permitted, and is not in effect but [for a moment](having).
pub(crate) fn drop_unneeded(realtime: bool, aside: CapabilitySet) -> Result<()> {
    let failed = |what: &str, error: rustix::io::Errno| {
        Error::system_with(
            format!("cannot drop capabilities: {what}"),
            error,
            "what confines this process refuses it; a seccomp profile must allow capset and prctl",
        )
    };
    // While CAP_SETPCAP is there. Without, no_new_privs has the same effect.
    for bit in 0..u64::BITS {
        let _ = remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit));
    }
    clear_ambient_capability_set().map_err(|error| failed("PR_CAP_AMBIENT_CLEAR_ALL", error))?;
    let kept = kept(effective(), realtime, events_need_sys_admin());
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept | (aside & effective()),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).map_err(|error| failed("capset", error))?;
    set_no_new_privs(true).map_err(|error| failed("PR_SET_NO_NEW_PRIVS", error))
}

/// Drops all capabilities of the calling thread for good, but those that exec gives to a program.
pub(crate) fn give_up() -> rustix::io::Result<()> {
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Does something with these capabilities in effect for the calling thread, as far as they were set aside.
pub(crate) fn having<T>(wanted: CapabilitySet, what: impl FnOnce() -> T) -> T {
    let before = capabilities(None).ok();
    let set = |sets: &CapabilitySets| set_capabilities(None, *sets);
    if let Some(before) = &before {
        let effective = before.effective | (wanted & before.permitted);
        // Where they can't be had, what needs them says so.
        let _ = set(&CapabilitySets { effective, ..*before });
    }
    let done = what();
    if let Some(before) = &before {
        let _ = set(before);
    }
    done
}

/// Gives these up for good, as far as they were only set aside.
pub(crate) fn lay_down(done_with: CapabilitySet) {
    if let Ok(before) = capabilities(None) {
        let permitted = before.permitted & (before.effective | !done_with);
        // Where they can't be given up, they are still not in effect.
        let _ = set_capabilities(None, CapabilitySets { permitted, ..before });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_sys_admin_stands_in_for_what_was_split_from_it_only() {
        let admin = CapabilitySet::SYS_ADMIN;
        assert!(missing_from(admin, &NEEDED).is_empty());
        assert_eq!(
            missing_from(admin, &USEFUL),
            ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG", "CAP_IPC_LOCK"]
        );
        assert_eq!(missing_from(CapabilitySet::empty(), &NEEDED), ["CAP_BPF", "CAP_PERFMON"]);
    }

    #[test]
    fn what_is_kept_is_what_is_used() {
        let all = kept(CapabilitySet::all(), true, false);
        assert_eq!(names(all).len(), NEEDED.len() + USEFUL.len());
        // Bits 2, 14, 19, 34, 38, 39 and 40 of linux/capability.h.
        assert_eq!(all.bits(), 0x1c4_0008_4004);
        assert_eq!(kept(CapabilitySet::empty(), true, false), CapabilitySet::empty());
        let admin = kept(CapabilitySet::all(), true, true);
        assert_eq!(admin, all | CapabilitySet::SYS_ADMIN);
        // Where it stands in for others it stays, and only there.
        assert_eq!(kept(CapabilitySet::SYS_ADMIN, true, false), CapabilitySet::SYS_ADMIN);
        let some = CapabilitySet::SYS_ADMIN | CapabilitySet::BPF | CapabilitySet::CHOWN;
        assert_eq!(kept(some, true, false), CapabilitySet::SYS_ADMIN | CapabilitySet::BPF);
        // Priority by capability only where it can't be had by limits.
        let nice = CapabilitySet::SYS_NICE;
        assert_eq!(kept(nice, true, false), nice);
        assert_eq!(kept(nice, false, false), CapabilitySet::empty());
        assert_eq!(kept(nice | CapabilitySet::SYS_RESOURCE, true, false), CapabilitySet::empty());
    }
}
