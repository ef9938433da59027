//! What the parser process gives up before it reads the first byte of a file.
//!
//! Each step is tried on its own. The agent is told which ones the kernel lacks; the others still hold.

use std::{collections::BTreeMap, env::consts::ARCH, fmt, fs, process};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetStatus, Scope,
};
use rustix::{
    process::{
        DumpableBehavior, Resource, Rlimit, Signal, set_dumpable_behavior,
        set_parent_process_death_signal, setrlimit,
    },
    thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs},
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use serde::{Deserialize, Serialize};

/// Descriptors that the process may hold: each file is closed as soon as it is mapped or read.
const MAX_OPEN_FILES: u64 = 64;

/// Something that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    /// No privileges come back by executing a program.
    NewPrivileges,
    /// All capabilities.
    Capabilities,
    /// Memory beyond a limit, writing to files, dumps of memory.
    Limits,
    /// All files but those that were passed, and the network; Landlock, Linux 5.13.
    FileSystem,
    /// All system calls but those that parsing needs; seccomp.
    SystemCalls,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NewPrivileges => "no_new_privs",
            Self::Capabilities => "dropped capabilities",
            Self::Limits => "resource limits",
            Self::FileSystem => "Landlock",
            Self::SystemCalls => "seccomp",
        })
    }
}

/// Gives up what this process does not need, and returns what could not be given up, with why. Must be
/// called while there is one thread, and before anything foreign is read.
pub(super) fn enter(memory_bytes: u64) -> Vec<(Step, String)> {
    // When memory is short, this process should be killed first: it will be replaced. This has to come first,
    // since later it can't even write to its own files in `/proc`.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let steps = [
        (Step::NewPrivileges, no_new_privileges()),
        (Step::Capabilities, no_capabilities()),
        (Step::Limits, limits(memory_bytes)),
        (Step::FileSystem, no_file_system()),
        // The last, since it also takes what the others need.
        (Step::SystemCalls, few_system_calls()),
    ];
    steps.into_iter().filter_map(|(step, done)| Some((step, done.err()?))).collect()
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

fn no_new_privileges() -> Result<(), String> {
    set_no_new_privs(true).map_err(text)?;
    // It ends with the thread that has started it, also when that is stuck or was killed.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(text)?;
    // Nobody of the same user may attach to it or read its memory, nor does it leave a dump.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(text)
}

fn no_capabilities() -> Result<(), String> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(text)
}

fn limits(memory_bytes: u64) -> Result<(), String> {
    let limits = [
        // What it allocates, and not what it maps of files: these may be large, and the kernel can give
        // their pages back.
        (Resource::Data, memory_bytes),
        (Resource::Nofile, MAX_OPEN_FILES),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
    ];
    for (resource, limit) in limits {
        // More than is allowed already can't be asked for.
        let hard = rustix::process::getrlimit(resource).maximum;
        let limit = Some(hard.map_or(limit, |hard| hard.min(limit)));
        setrlimit(resource, Rlimit { current: limit, maximum: limit })
            .map_err(|error| format!("{resource:?}: {error}"))?;
    }
    Ok(())
}

fn no_file_system() -> Result<(), String> {
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|it| it.handle_access(AccessNet::from_all(ABI::V5)))
        .and_then(|it| it.scope(Scope::from_all(ABI::V6)))
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self)
        .map_err(text)?;
    match restricted.ruleset {
        RulesetStatus::NotEnforced => Err("this kernel does not have it, or it is off".into()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}

fn few_system_calls() -> Result<(), String> {
    for filter in filters().map_err(text)? {
        apply_filter(&filter).map_err(text)?;
    }
    Ok(())
}

/// A condition on an argument.
fn is(argument: u8, operator: SeccompCmpOp, value: u64) -> Condition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)
}

type Condition = Result<SeccompCondition, seccompiler::BackendError>;
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The filters, of which the strictest answer counts.
fn filters() -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let always = [
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_close,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_fstat,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_getrandom,
        libc::SYS_gettid,
        libc::SYS_lseek,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_munmap,
        // Answered by the second filter.
        libc::SYS_openat,
        libc::SYS_pread64,
        libc::SYS_read,
        libc::SYS_recvmsg,
        libc::SYS_restart_syscall,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_getaffinity,
        // Priority ends and begins again: see `realtime`. The limits that the agent has set bound it.
        libc::SYS_sched_setscheduler,
        libc::SYS_timer_settime,
        libc::SYS_sched_yield,
        libc::SYS_sendmsg,
        libc::SYS_sigaltstack,
        // The same.
        libc::SYS_statx,
    ];
    let mut allowed: Rules = always.into_iter().map(|number| (number, Vec::new())).collect();
    let number = |value: libc::c_int| u64::try_from(value).unwrap_or_default();
    let is_not_code = || is(2, MaskedEq(number(libc::PROT_EXEC)), 0);
    let own = u64::from(process::id());
    let conditions = [
        // No shared mapping could be written to anyway: files are passed for reading.
        (
            libc::SYS_mmap,
            vec![
                is_not_code()?,
                is(3, MaskedEq(number(libc::MAP_TYPE)), number(libc::MAP_PRIVATE))?,
            ],
        ),
        (libc::SYS_mprotect, vec![is_not_code()?]),
        // How some C libraries ask for the size of an open file.
        (libc::SYS_newfstatat, vec![is(3, Eq, number(libc::AT_EMPTY_PATH))?]),
        // What Rust's library says before it ends leads to /dev/null.
        (libc::SYS_write, vec![is(0, Eq, number(libc::STDERR_FILENO))?]),
        // `abort` sends a signal to its own thread.
        (libc::SYS_tgkill, vec![is(0, Eq, own)?]),
    ];
    for (number, conditions) in conditions {
        allowed.insert(number, vec![SeccompRule::new(conditions)?]);
    }
    let duplicate = |command| SeccompRule::new(vec![is(1, Eq, number(command))?]);
    let duplicates = vec![duplicate(libc::F_GETFD)?, duplicate(libc::F_DUPFD_CLOEXEC)?];
    allowed.insert(libc::SYS_fcntl, duplicates);
    let (kill, allow) = (SeccompAction::KillProcess, SeccompAction::Allow);
    // These take paths, and fail. Without `statx` Rust's library asks by `fstat`; glibc's allocator would
    // look at a setting of the kernel.
    let refused = Rules::from([libc::SYS_openat, libc::SYS_statx].map(|it| (it, Vec::new())));
    let refuse = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let arch = ARCH.try_into()?;
    Ok(vec![
        SeccompFilter::new(refused, allow.clone(), refuse, arch)?.try_into()?,
        SeccompFilter::new(allowed, kill, allow, arch)?.try_into()?,
    ])
}

/// The name that tools show.
pub(super) fn set_name() {
    let _ = rustix::thread::set_name(c"profiler-parser");
}
