//! One stack sample on the wire.
//!
//! A [`SampleHeader`], then [`SampleHeader::kernel_frames`] and then
//! [`SampleHeader::user_frames`] addresses of eight bytes, innermost frame first, all in the
//! machine's byte order. What is not there is not sent: a sample of three frames takes 88 bytes of
//! the ring.

/// Length of a task's name with its terminating zero (`TASK_COMM_LEN`).
pub const COMM_LEN: usize = 16;

/// The most frames that either half of a stack can have. The kernel's own default is 127, and the
/// program's per-CPU scratch holds twice this many.
pub const MAX_FRAMES: u32 = 512;

/// Set in a user address that is no return address, though it has callees: what a signal has
/// interrupted. Addresses of user space have fewer bits.
pub const INTERRUPTED: u64 = 1 << 63;

/// How the walk of the user stack ended, as far as the kernel side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum UserEnd {
    /// No user stack was asked for.
    NotCaptured = 0,
    /// The task has no user memory: a kernel thread or the idle task.
    NoUserMemory = 1,
    /// The chain of frame pointers ended: at the outermost frame, or where code does not keep them.
    ChainEnded = 2,
    /// The frame limit was reached.
    Depth = 3,
    /// The outermost frame was reached, as its unwind information says.
    Complete = 4,
    /// The last frame's code has no unwind information, nor a frame pointer that leads to code.
    NoUnwindInfo = 5,
    /// The unwind information of the last frame's file is not loaded yet.
    NotLoaded = 6,
    /// The stack could not be read where the last frame's caller has to be.
    Unreadable = 7,
    /// The last frame's rule is of a kind that can't be applied.
    Unsupported = 8,
    /// The last frame lies in no mapping that is known.
    NotMapped = 9,
}

impl UserEnd {
    /// The value with this number on the wire.
    #[must_use]
    pub const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::NotCaptured,
            1 => Self::NoUserMemory,
            2 => Self::ChainEnded,
            3 => Self::Depth,
            4 => Self::Complete,
            5 => Self::NoUnwindInfo,
            6 => Self::NotLoaded,
            7 => Self::Unreadable,
            8 => Self::Unsupported,
            9 => Self::NotMapped,
            _ => return None,
        })
    }
}

/// The fixed part of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SampleHeader {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// The task's cgroup v2 id (the inode number of its directory).
    pub cgroup_id: u64,
    /// How many units of the event this sample stands for.
    pub period: u64,
    /// Process id (`tgid`), in the initial pid namespace.
    pub tgid: u32,
    /// Thread id (the kernel's `pid`), in the initial pid namespace.
    pub tid: u32,
    /// The CPU that was sampled.
    pub cpu: u32,
    /// Number of kernel addresses that follow.
    pub kernel_frames: u16,
    /// Number of user addresses that follow the kernel's.
    pub user_frames: u16,
    /// The task's name, padded with zeros.
    pub comm: [u8; COMM_LEN],
    /// A [`UserEnd`].
    pub user_end: u8,
    /// Which of the run's events fired, by its position.
    pub event: u8,
    /// Zero.
    pub reserved: [u8; 6],
}

impl SampleHeader {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = 64;
}

const _: () = assert!(size_of::<SampleHeader>() == SampleHeader::BYTES, "no implicit padding");
const _: () = assert!(align_of::<SampleHeader>() == 8, "the addresses after it are aligned");
