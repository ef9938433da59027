//! What has become of the samples of a CPU, or of all.

use serde::Serialize;

/// Samples that were left out because the user asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filtered {
    /// The idle task.
    pub idle: u64,
    /// The idle task, too, but the event did not even fire: on some virtual machines the timer
    /// behind `cpu-clock` stands still while a CPU sleeps. Told from [`Lost::missed`] by the time
    /// that the CPU was idle.
    pub asleep: u64,
    /// The event was due while the CPU ran what it was not asked for, as with `cpu-clock:u`; some of these may have
    /// been missed by the kernel, which nobody can tell.
    pub excluded: u64,
    /// Another process than the ones asked for.
    pub pid: u64,
    /// Another thread than the ones asked for.
    pub tid: u64,
    /// A thread of another user than the ones asked for.
    pub uid: u64,
    /// A thread of another name than the ones asked for.
    pub comm: u64,
    /// Another cgroup than the ones asked for, and those below.
    pub cgroup: u64,
    /// The profiler itself.
    #[serde(rename = "self")]
    pub own: u64,
    /// User code, where only what hits the kernel was asked for.
    pub user_mode: u64,
}

/// Samples that should be there and are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Whole periods of the event passed in which the program never ran: its timer was late, the event
    /// was not on the PMU, or another eBPF program was running.
    pub missed: u64,
    /// The kernel held the event back for so many periods, to keep the load of sampling low. Other events
    /// than clocks count nothing of that time.
    pub throttled: u64,
    /// The ring between kernel and agent was full.
    pub ring_full: u64,
    /// The ring's lock was taken by another CPU.
    pub ring_contended: u64,
    /// The program's scratch on this CPU was in use.
    pub scratch_busy: u64,
    /// The agent's queue was full: symbolizing or writing did not keep up.
    pub agent_behind: u64,
    /// Read from the ring, but not printed, since the output failed.
    pub undelivered: u64,
}

/// The account of one CPU, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Samples that the kernel's count of the event stands for.
    pub expected: u64,
    /// How often the program ran; the rest of `expected` was missed.
    pub fired: u64,
    /// Samples printed: written without an error.
    pub delivered: u64,
    /// Samples left out on request.
    pub filtered: Filtered,
    /// Samples lost.
    pub lost: Lost,
    /// How often the kernel has throttled the event.
    pub throttled: u64,
    /// For how long the CPU had no event, since it was offline or refused.
    pub not_sampled_ns: u64,
}

impl Filtered {
    /// All reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn reasons(&self) -> [(&'static str, u64); 10] {
        [
            ("idle", self.idle),
            ("asleep", self.asleep),
            ("excluded", self.excluded),
            ("other process", self.pid),
            ("other thread", self.tid),
            ("other user", self.uid),
            ("other name", self.comm),
            ("other cgroup", self.cgroup),
            ("self", self.own),
            ("user mode", self.user_mode),
        ]
    }
}

impl Lost {
    /// All reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }

    /// What was lost on the way from the eBPF program to the output.
    #[must_use]
    pub fn by_us(&self) -> u64 {
        self.total() - self.missed - self.throttled
    }

    /// How many were lost for each reason, by its name.
    #[must_use]
    pub fn reasons(&self) -> [(&'static str, u64); 7] {
        [
            ("missed by the kernel", self.missed),
            ("throttled", self.throttled),
            ("ring full", self.ring_full),
            ("ring contended", self.ring_contended),
            ("scratch busy", self.scratch_busy),
            ("agent behind", self.agent_behind),
            ("undelivered", self.undelivered),
        ]
    }
}

impl Account {
    pub(super) fn add(&mut self, other: &Self) {
        let Self { expected, fired, delivered, filtered, lost, throttled, not_sampled_ns } = other;
        self.expected += expected;
        self.fired += fired;
        self.delivered += delivered;
        self.throttled += throttled;
        self.not_sampled_ns += not_sampled_ns;
        self.filtered.idle += filtered.idle;
        self.filtered.asleep += filtered.asleep;
        self.filtered.excluded += filtered.excluded;
        self.filtered.pid += filtered.pid;
        self.filtered.tid += filtered.tid;
        self.filtered.uid += filtered.uid;
        self.filtered.comm += filtered.comm;
        self.filtered.cgroup += filtered.cgroup;
        self.filtered.own += filtered.own;
        self.filtered.user_mode += filtered.user_mode;
        self.lost.missed += lost.missed;
        self.lost.throttled += lost.throttled;
        self.lost.ring_full += lost.ring_full;
        self.lost.ring_contended += lost.ring_contended;
        self.lost.scratch_busy += lost.scratch_busy;
        self.lost.agent_behind += lost.agent_behind;
        self.lost.undelivered += lost.undelivered;
    }
}

impl CpuAccount {
    /// Adds that of another source on the same CPU.
    pub(super) fn add(&mut self, other: &Self) {
        let not_sampled_ns = self.account.not_sampled_ns.max(other.account.not_sampled_ns);
        self.account.add(&other.account);
        self.account.not_sampled_ns = not_sampled_ns;
        self.refused |= other.refused;
        self.events += other.events;
    }
}

/// The account of one CPU.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpuAccount {
    /// Its number.
    pub cpu: u32,
    /// Whether its event could not be opened at some time, though it was online.
    pub refused: bool,
    /// How many events it has had: one, unless it was offline meanwhile.
    #[serde(skip)]
    pub events: u64,
    /// What became of its samples.
    #[serde(flatten)]
    pub account: Account,
}
