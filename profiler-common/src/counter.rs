//! The counters of each source and CPU: each sample that the kernel takes ends in one of them or in the ring.

/// One counter of the eBPF program, by its index in [`Counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// The program ran: the event fired.
    Fired,
    /// Sum of the periods, in the event's unit, that the samples stand for. Together with the
    /// event's own count it tells how many periods passed without the program having run.
    PeriodSum,
    /// The largest of these periods: where the kernel adapts the period to a frequency, the count
    /// that no sample stands for yet is less than about this.
    PeriodMax,
    /// Nanoseconds that the program took for samples that were not skipped.
    RunNs,
    /// Written to the ring.
    Written,
    /// Skipped: the idle task (pid 0).
    FilteredIdle,
    /// The idle task was hit, and kept.
    Idle,
    /// Skipped: not one of the processes asked for.
    FilteredPid,
    /// Skipped: not one of the threads asked for.
    FilteredTid,
    /// Skipped: not of one of the users asked for.
    FilteredUid,
    /// Skipped: the thread's name is not one that was asked for.
    FilteredComm,
    /// Skipped: not in one of the cgroups asked for.
    FilteredCgroup,
    /// Skipped: the profiler itself.
    FilteredSelf,
    /// Skipped: user code, where only what hits the kernel was asked for.
    FilteredUserMode,
    /// Lost: the ring had no room.
    RingFull,
    /// Lost: the ring had room, but its lock was taken. In NMI context the kernel does not wait for
    /// it: <https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/ringbuf.c#L406-L412>.
    RingContended,
    /// Lost: another run of the source's program on this CPU was using the scratch.
    ScratchBusy,
    /// Delivered without any stack, though both halves were asked for and one of them must be there:
    /// the helper failed.
    StackFailed,
}

impl Counter {
    /// How many counters there are.
    pub const COUNT: usize = Self::StackFailed as usize + 1;
}

/// The counters of one source on one CPU, indexed by [`Counter`].
pub type Counters = [u64; Counter::COUNT];
