//! The kernel, its settings, and the limits that it sets.

use std::{fs, path::Path};

use rustix::{
    process::{Resource, getrlimit},
    thread::CapabilitySet,
};

use super::{Check, Verdict, bad, ok};
use crate::{
    hardening::capabilities::{NEEDED, RESTRICTED_ABOVE, effective, missing},
    kernel, limits,
};

pub(super) fn open_files() -> Check {
    let (limit, least) = (limits::open_files(), limits::least_open_files());
    if limit >= least {
        // The number is the machine's choice, and large.
        return ok("open files", format!("at least the {least} that are needed"));
    }
    let found = format!("limited to {limit}: at least {least} are needed here");
    bad("open files", Verdict::Fail, found, format!("ulimit -n {least}"))
}

pub(super) fn memory() -> Check {
    let name = "memory";
    if let Err(error) = limits::memory::require() {
        return bad(name, Verdict::Fail, error.to_string(), error.advice().unwrap_or_default());
    }
    match limits::memory::of_cgroup() {
        None => ok(name, "not limited by a cgroup"),
        Some(bytes) => ok(name, format!("limited by its cgroup to {}M", bytes >> 20)),
    }
}

pub(super) fn procfs() -> Check {
    if kernel::has_proc() {
        return ok("procfs", "/proc");
    }
    let found = "not mounted: nothing has a name, and -p can't be used";
    bad("procfs", Verdict::Warn, found, "mount -t proc proc /proc")
}

pub(super) fn pid_namespace() -> Check {
    if !kernel::has_proc() {
        return ok("pid namespace", "unknown without /proc");
    }
    if kernel::in_initial_pid_namespace() {
        return ok("pid namespace", "the initial one");
    }
    let found = "not the initial one: processes have no names, and -p can't be used";
    bad("pid namespace", Verdict::Warn, found, "run it on the host, or in a pod with hostPID")
}

pub(super) fn paranoid() -> Check {
    // With CAP_PERFMON any value will do.
    let name = "perf_event_paranoid";
    match kernel::sysctl_number("kernel.perf_event_paranoid") {
        None if !kernel::has_proc() => ok(name, "unknown without /proc; CAP_PERFMON is enough"),
        Some(level)
            if level > RESTRICTED_ABOVE && !effective().contains(CapabilitySet::SYS_ADMIN) =>
        {
            let found =
                format!("{level}: kernels of Debian and Ubuntu want CAP_SYS_ADMIN for that");
            bad(name, Verdict::Warn, found, "sysctl kernel.perf_event_paranoid=2")
        }
        Some(level) if level <= 0 || missing(&NEEDED).is_empty() => ok(name, level.to_string()),
        Some(level) => bad(
            name,
            Verdict::Fail,
            format!("{level}: whole CPUs need CAP_PERFMON"),
            "sudo profiler …",
        ),
        None => bad(name, Verdict::Fail, "none", "a kernel with CONFIG_PERF_EVENTS"),
    }
}

pub(super) fn kptr_restrict() -> Check {
    let is_allowed = missing(&[(CapabilitySet::SYSLOG, "CAP_SYSLOG")]).is_empty();
    let paranoid = kernel::sysctl_number("kernel.perf_event_paranoid");
    kernel_names(kernel::sysctl_number("kernel.kptr_restrict"), paranoid, is_allowed)
}

/// Whether the kernel shows where its functions are.
/// <https://github.com/torvalds/linux/blob/v6.12/kernel/ksyms_common.c#L25-L43>
fn kernel_names(restrict: Option<i64>, paranoid: Option<i64>, has_syslog: bool) -> Check {
    let name = "kptr_restrict";
    match (restrict, paranoid) {
        (None, _) => bad(
            name,
            Verdict::Warn,
            "unknown: kernel functions have no names",
            "mount -t proc proc /proc",
        ),
        (Some(2..), _) => bad(
            name,
            Verdict::Warn,
            "2: kernel functions have no names",
            "sudo sysctl kernel.kptr_restrict=1",
        ),
        (Some(level), _) if has_syslog => ok(name, level.to_string()),
        // To those who may measure the kernel it shows them anyway.
        (Some(level @ ..=0), Some(..=1)) => ok(name, level.to_string()),
        (Some(level), paranoid) => {
            let paranoid = match paranoid {
                Some(paranoid) if level <= 0 => format!(", as perf_event_paranoid is {paranoid}"),
                _ => String::new(),
            };
            let found =
                format!("{level}: kernel functions have no names without CAP_SYSLOG{paranoid}");
            bad(name, Verdict::Warn, found, "sudo profiler …, or add CAP_SYSLOG")
        }
    }
}

pub(super) fn lockdown() -> Check {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    // The mode in force stands in brackets.
    let mode = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match mode.map(|(mode, _)| mode) {
        Some("confidentiality") => bad(
            "lockdown",
            Verdict::Fail,
            "confidentiality: perf and BPF may not read the kernel",
            "boot with lockdown=integrity",
        ),
        Some(mode) => ok("lockdown", mode),
        None => ok("lockdown", "not built into this kernel"),
    }
}

pub(super) fn tracefs() -> Check {
    let mounted = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .into_iter()
        .find(|dir| Path::new(dir).join("events").exists());
    match mounted {
        Some(dir) => ok("tracefs", dir),
        None => ok("tracefs", "not mounted; needed for tracepoints only"),
    }
}

pub(super) fn memlock(program_loads: bool) -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    let found = limit.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    // Since Linux 5.11 maps count against the cgroup's memory in place of this limit.
    if program_loads || limit.is_none() {
        return ok("memlock", found);
    }
    bad("memlock", Verdict::Warn, format!("{found}: may be too little"), "ulimit -l unlimited")
}

pub(super) fn jit() -> Check {
    match kernel::sysctl_number("net.core.bpf_jit_enable") {
        Some(0) => bad(
            "BPF JIT",
            Verdict::Warn,
            "off: sampling costs several times as much",
            "sudo sysctl net.core.bpf_jit_enable=1",
        ),
        Some(_) => ok("BPF JIT", "on"),
        None if !kernel::has_proc() => ok("BPF JIT", "unknown without /proc"),
        // Kernels that can't run BPF without it have no such switch that is readable by all.
        None => ok("BPF JIT", "not to be switched"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_functions_have_names_where_the_kernel_shows_them() {
        let verdict = |restrict, paranoid, syslog| kernel_names(restrict, paranoid, syslog).verdict;
        for (restrict, paranoid, syslog, expected) in [
            (Some(0), Some(2), true, Verdict::Ok),
            (Some(1), Some(2), true, Verdict::Ok),
            (Some(2), Some(2), true, Verdict::Warn),
            (Some(0), Some(1), false, Verdict::Ok),
            (Some(0), Some(2), false, Verdict::Warn),
            (Some(0), None, false, Verdict::Warn),
            (Some(1), Some(-1), false, Verdict::Warn),
            (None, None, true, Verdict::Warn),
        ] {
            assert_eq!(verdict(restrict, paranoid, syslog), expected, "{restrict:?} {paranoid:?}");
        }
        let found = kernel_names(Some(0), Some(2), false).found;
        assert!(found.contains("CAP_SYSLOG, as perf_event_paranoid is 2"), "{found}");
    }
}
