//! What the kernel counts of a program's runs.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    time::Duration,
};

use aya::programs::ProgramFd;

use crate::error::{Error, Result};

/// A loaded program, to ask the kernel about.
#[derive(Debug)]
pub struct Runs(ProgramFd);

/// For how long a program ran, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// All runs together.
    pub time: Duration,
    /// How many.
    pub runs: u64,
}

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

impl Runs {
    pub(super) fn of(program: ProgramFd) -> Self {
        Self(program)
    }

    /// How often the kernel has left out the program since it was loaded, because another one was running on that CPU
    /// or a map was in use there. Of tracepoints and kernel probes the kernel counts that since Linux 6.7; before, it
    /// says 0, and before 5.12 nothing.
    pub fn missed(&self) -> Option<u64> {
        self.read().map(|[_, _, missed]| missed)
    }

    /// For how long it ran so far, and how often, where the kernel keeps count of that: with `kernel.bpf_stats_enabled`
    /// (read since Linux 5.12). `None` if it did not.
    pub fn time(&self) -> Option<RunTime> {
        let [time_ns, runs, _] = self.read()?;
        (runs > 0).then(|| RunTime { time: Duration::from_nanos(time_ns), runs })
    }

    /// The same program, for somebody else to ask about.
    pub fn try_clone(&self) -> Result<Self> {
        self.0.try_clone().map(Self).map_err(|it| Error::system("cannot duplicate a file", it))
    }

    /// `run_time_ns`, `run_cnt` and `recursion_misses`.
    fn read(&self) -> Option<[u64; 3]> {
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
        let told = info.last_chunk::<3>().copied();
        told.filter(|_| is_told)
    }
}
