//! The seccomp filter of the agent.
//!
//! It is a denylist. An allowlist would be easier to reason about, but the agent is linked to the C library of
//! whoever builds it, and the calls of that library depend on the kernel: a call missing from the list would break
//! runs on machines that nobody has tested. The parser process makes few calls, and has an allowlist.
//!
//! Calls that neither our code nor a library makes, not even to probe for a feature, end the process: the agent must have
//! been taken over. The others fail with EPERM, and `clone3` with ENOSYS, so that C libraries fall back to `clone`,
//! whose flags a filter can see.

use std::collections::BTreeMap;

use libc::{SECCOMP_RET_KILL_PROCESS, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter, apply_filter_all_threads, sock_filter,
};

/// Whose system calls are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// Those of the calling thread, and of what it starts.
    This,
    /// Those of the process.
    All,
}

/// Who may connect to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connections {
    /// Nobody.
    Refused,
    /// Whoever reaches a socket that listens already.
    Accepted,
}

impl Connections {
    /// What is refused. Nobody begins to listen in either case.
    fn refused(self) -> &'static [c_long] {
        match self {
            Self::Refused => &[libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4],
            Self::Accepted => &[libc::SYS_listen],
        }
    }
}

/// These end the process.
const FATAL: &[c_long] = &[
    // Into other processes, which CAP_SYS_PTRACE would allow.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    // Out of a container by file handles, which CAP_DAC_READ_SEARCH would allow.
    libc::SYS_open_by_handle_at,
    // Into the kernel.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
];

/// These fail with EPERM.
const REFUSED: &[c_long] = &[
    // Other programs: `execveat` has a rule of its own.
    libc::SYS_execve,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    // Keys of the kernel.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Settings of the machine.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // Parts of the kernel with a history of faults that the agent has no use for. io_uring would also open and
    // write files past this filter.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_personality,
    libc::SYS_kcmp,
    libc::SYS_mknodat,
];

/// These are only there on x86-64, and fail with EPERM.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[c_long] =
    &[libc::SYS_mknod, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[c_long] = &[];

/// Not in every C library's list.
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: c_long = 320;
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: c_long = 294;

/// What bpf(2) is still used for: maps, asking what is loaded, and running the program that names the kernel's
/// code. No program is loaded, attached or pinned.
/// `enum bpf_cmd` in <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf.h>.
const BPF_COMMANDS: [u64; 18] = [
    0,  // BPF_MAP_CREATE
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    10, // BPF_PROG_TEST_RUN
    11, 12, 13, 14, // ids of programs and maps, and their descriptors
    15, // BPF_OBJ_GET_INFO_BY_FD
    19, // BPF_BTF_GET_FD_BY_ID
    21, // BPF_MAP_LOOKUP_AND_DELETE_ELEM
    22, // BPF_MAP_FREEZE
    24, 25, 26, 27, // the same on many elements
];

/// Namespaces that a child could be put into.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// On x86-64 the same calls have a second set of numbers, from this bit on, for pointers of 32 bits.
/// <https://github.com/torvalds/linux/blob/v6.12/arch/x86/include/uapi/asm/unistd.h#L14>
const X32_CALLS: u32 = 0x4000_0000;

/// Filters system calls from here on; what is started later inherits that. Sets no_new_privs. Every program has to be
/// loaded by now. Needs CONFIG_SECCOMP_FILTER.
pub(crate) fn apply(threads: Threads, connections: Connections) -> Result<(), seccompiler::Error> {
    for filter in filters(connections)? {
        match threads {
            Threads::This => apply_filter(&filter)?,
            Threads::All => apply_filter_all_threads(&filter)?,
        }
    }
    Ok(())
}

/// One for each outcome. The kernel takes the sternest.
fn filters(connections: Connections) -> Result<[BpfProgram; 3], BackendError> {
    let whole = |calls: &[c_long]| calls.iter().map(|call| (*call, Vec::new())).collect();
    let fatal: BTreeMap<c_long, Vec<SeccompRule>> = whole(FATAL);
    let mut refused: BTreeMap<c_long, Vec<SeccompRule>> = whole(REFUSED);
    refused.extend(whole(REFUSED_HERE));
    refused.extend(whole(connections.refused()));
    refused.extend([
        (libc::SYS_execveat, only_held_programs()?),
        (libc::SYS_bpf, no_programs()?),
        (libc::SYS_clone, no_namespaces()?),
        (libc::SYS_ioctl, no_typing()?),
    ]);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let mut fatal = program(fatal, SeccompAction::KillProcess)?;
    if cfg!(target_arch = "x86_64") {
        fatal.splice(..0, no_x32());
    }
    Ok([fatal, program(refused, refuse)?, program(whole(&[libc::SYS_clone3]), unknown)?])
}

fn program(
    calls: BTreeMap<c_long, Vec<SeccompRule>>,
    action: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    // Calls of another architecture, as of 32 bits, end the process.
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(calls, SeccompAction::Allow, action, arch)?.try_into()
}

fn condition(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)
}

/// A program is executed by a descriptor that is held, and by no path: so the agent starts itself again.
fn only_held_programs() -> Result<Vec<SeccompRule>, BackendError> {
    let empty_path = u64::from(libc::AT_EMPTY_PATH.unsigned_abs());
    let by_path = condition(4, SeccompCmpOp::MaskedEq(empty_path), 0)?;
    Ok(vec![SeccompRule::new(vec![by_path])?])
}

fn no_programs() -> Result<Vec<SeccompRule>, BackendError> {
    let none = BPF_COMMANDS.iter().map(|command| condition(0, SeccompCmpOp::Ne, *command));
    Ok(vec![SeccompRule::new(none.collect::<Result<_, _>>()?)?])
}

fn no_namespaces() -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |flag: &i32| {
        let flag = u64::from(flag.unsigned_abs());
        SeccompRule::new(vec![condition(0, SeccompCmpOp::MaskedEq(flag), flag)?])
    };
    NAMESPACES.iter().map(rule).collect()
}

/// Into the terminal's input, as if the user had typed it.
fn no_typing() -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |request| SeccompRule::new(vec![condition(1, SeccompCmpOp::Eq, request)?]);
    // TIOCLINUX pastes what is selected on a console.
    [0x5412, 0x541c].into_iter().map(rule).collect()
}

/// Calls by their second numbers end the process.
fn no_x32() -> [sock_filter; 3] {
    let statement = |code: u32, k| {
        // These codes have 16 bits.
        sock_filter { code: u16::try_from(code).unwrap_or_default(), jt: 0, jf: 0, k }
    };
    [
        // The number stands first in what a filter is given.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, X32_CALLS) },
        statement(libc::BPF_RET | libc::BPF_K, SECCOMP_RET_KILL_PROCESS),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io, thread};

    /// What a system call gives in a thread that has the filter.
    fn filtered(call: impl FnOnce() -> c_long + Send) -> Result<c_long, Option<i32>> {
        filtered_but(Connections::Refused, call)
    }

    fn filtered_but(
        connections: Connections,
        call: impl FnOnce() -> c_long + Send,
    ) -> Result<c_long, Option<i32>> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                apply(Threads::This, connections).unwrap();
                match call() {
                    -1 => Err(io::Error::last_os_error().raw_os_error()),
                    done => Ok(done),
                }
            });
            thread.join().unwrap()
        })
    }

    /// How a child ends that makes a system call under the filter.
    fn status(call: impl FnOnce()) -> i32 {
        let filters = filters(Connections::Refused).unwrap();
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for filter in &filters {
                apply_filter(filter).unwrap();
            }
            call();
            // SAFETY: no preconditions.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }

    #[test]
    fn what_the_agent_never_does_is_refused() {
        // Each of these gives something else without the filter, also without privileges.
        // SAFETY: they change nothing: strings that live, descriptors and programs that are not there.
        unsafe {
            let ask = 0xffff_ffff_u64;
            assert_eq!(
                filtered(|| libc::syscall(libc::SYS_personality, ask)),
                Err(Some(libc::EPERM))
            );
            let (nothing, flags) = (0_usize, libc::AT_EMPTY_PATH);
            let execve = || libc::syscall(libc::SYS_execve, c"/nowhere".as_ptr(), nothing, nothing);
            assert_eq!(filtered(execve), Err(Some(libc::EPERM)));
            let by_path =
                || libc::syscall(libc::SYS_execveat, -1, c"/nowhere".as_ptr(), nothing, nothing, 0);
            assert_eq!(filtered(by_path), Err(Some(libc::EPERM)));
            let held =
                || libc::syscall(libc::SYS_execveat, -1, c"".as_ptr(), nothing, nothing, flags);
            assert_eq!(filtered(held), Err(Some(libc::EBADF)));
            let typing = || libc::ioctl(-1, libc::TIOCSTI, c"x".as_ptr()).into();
            assert_eq!(filtered(typing), Err(Some(libc::EPERM)));
            let window = || libc::ioctl(-1, libc::TIOCGWINSZ, nothing).into();
            assert_eq!(filtered(window), Err(Some(libc::EBADF)));
            let keys = || libc::syscall(libc::SYS_keyctl, 0, -3, 0);
            assert_eq!(filtered(keys), Err(Some(libc::EPERM)));
            // Without flags it asks for nothing, and succeeds.
            assert_eq!(filtered(|| libc::unshare(0).into()), Err(Some(libc::EPERM)));
            let namespace = libc::c_long::from(libc::CLONE_NEWUSER | libc::CLONE_THREAD);
            let clone = || libc::syscall(libc::SYS_clone, namespace, 0, 0, 0, 0);
            assert_eq!(clone(), -1);
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(filtered(clone), Err(Some(libc::EPERM)));
        }
    }

    #[test]
    fn connections_are_accepted_by_what_listens_already_only() {
        let nothing = 0_usize;
        for (call, serving) in [
            (libc::SYS_listen, libc::EPERM),
            (libc::SYS_accept4, libc::EBADF),
            (libc::SYS_accept, libc::EBADF),
        ] {
            // SAFETY: there is no such descriptor, and nothing is written to.
            let call = || unsafe { libc::syscall(call, -1, nothing, nothing, 0) };
            assert_eq!(filtered(call), Err(Some(libc::EPERM)));
            assert_eq!(filtered_but(Connections::Accepted, call), Err(Some(serving)));
        }
    }

    #[test]
    fn what_would_take_the_machine_ends_the_process() {
        let signal = |status| libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status(|| ())), 7);
        let ptrace = || {
            // SAFETY: asks to be traced by the parent, which only waits.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME) };
        };
        assert_eq!(signal(status(ptrace)), Some(libc::SIGSYS));
        #[cfg(target_arch = "x86_64")]
        {
            let getpid_of_x32 = || {
                // SAFETY: no preconditions.
                unsafe { libc::syscall(i64::from(X32_CALLS) + libc::SYS_getpid) };
            };
            assert_eq!(signal(status(getpid_of_x32)), Some(libc::SIGSYS));
        }
    }

    #[test]
    fn threads_maps_and_sockets_are_not() {
        // The C library asks for clone3 first.
        let is_there = filtered(|| thread::spawn(|| 1).join().unwrap());
        assert_eq!(is_there, Ok(1));
        // SAFETY: no preconditions; the descriptor is closed with the process.
        let socket =
            filtered(|| unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0).into() });
        assert!(socket.is_ok());
        // To look a key up in a map that is not there fails by that, or where only root may ask, by that.
        let attributes = [0_u64; 16];
        let bpf = |command: c_long| {
            // SAFETY: zeros are valid attributes, and outlive the call.
            unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), 128) }
        };
        bpf(1);
        let without = io::Error::last_os_error().raw_os_error();
        assert_eq!(filtered(|| bpf(1)), Err(without));
        // BPF_PROG_LOAD of nothing: EINVAL for root.
        assert_eq!(filtered(|| bpf(5)), Err(Some(libc::EPERM)));
    }
}
