//! How often the kernel would have run a program, and did not.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::programs::ProgramFd;

/// A loaded program, to ask the kernel about.
#[derive(Debug)]
pub struct MissedRuns(ProgramFd);

/// What `BPF_OBJ_GET_INFO_BY_FD` takes:
/// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf.h>, `union bpf_attr`.
#[repr(C)]
struct Query {
    fd: u32,
    info_bytes: u32,
    info: u64,
}

const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
/// The words of `struct bpf_prog_info` up to the one that is wanted, `recursion_misses`.
const WORDS: usize = 27;

impl MissedRuns {
    pub(super) fn of(program: ProgramFd) -> Self {
        Self(program)
    }

    /// How often the kernel has left out the program since it was loaded, because another one was running on that CPU
    /// or a map was in use there. Of tracepoints and kernel probes the kernel counts that since Linux 6.7; before, it
    /// says 0, and before 5.12 nothing.
    pub fn read(&self) -> Option<u64> {
        let mut info = [0_u64; WORDS];
        let mut query = Query {
            fd: u32::try_from(self.0.as_fd().as_raw_fd()).ok()?,
            info_bytes: u32::try_from(size_of_val(&info)).ok()?,
            info: info.as_mut_ptr() as u64,
        };
        let bytes = size_of_val(&query);
        // SAFETY: the kernel writes at most as many bytes as `info` has, and how many into `query`. Both outlive the
        // call.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &raw mut query, bytes) };
        if result != 0 {
            tracing::debug!(
                "what the kernel has left out is not known: {}",
                io::Error::last_os_error()
            );
            return None;
        }
        let is_told = query.info_bytes as usize >= size_of_val(&info);
        info.last().copied().filter(|_| is_told)
    }
}
