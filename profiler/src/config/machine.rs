//! What a config depends on beside the command line.

use std::path::PathBuf;

use profiler_events::{Events, FilterError, HitFilter, Purpose, ResolveError, Set, syntax};
use profiler_profile::cpus::CpuList;

use crate::{
    bpf::features::EntryRegisters,
    error::Result,
    filter::{CgroupName, users},
    kernel,
    limits::memory,
    procfs::{
        called::{self, Called},
        status,
    },
};

/// What the kernel and the machine say of themselves, asked once.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The CPUs that are online.
    pub online: CpuList,
    /// How many CPUs there can be.
    pub possible_cpus: usize,
    /// Bytes of memory that the agent's cgroup allows; `None` if it sets no limit.
    pub memory_bytes: Option<u64>,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// `kernel.perf_event_max_sample_rate`, in Hz; `None` if it can't be read.
    pub max_sample_rate: Option<i64>,
    /// `kernel.perf_event_max_stack`, in frames; `None` if it can't be read.
    pub max_stack: Option<i64>,
    /// How our own walk of user stacks begins; else what it lacks here, for people to read.
    pub registers: Result<EntryRegisters, String>,
    /// Whether there is a `/proc`.
    pub has_proc: bool,
    /// Whether process ids here are those that the eBPF program sees.
    pub in_initial_pid_namespace: bool,
    /// The process that has a thread of this id.
    pub process_of: fn(u32) -> Option<u32>,
    /// Whether a program goes on behind a breakpoint that runs an eBPF program.
    pub steps_over_breakpoints: bool,
    /// What the kernel calls these events; else what is wrong.
    pub find_events: fn(&Events) -> Result<Vec<Set>, ResolveError>,
    /// What a filter of hits means for this event; else what is wrong.
    pub find_hit_filter:
        fn(&syntax::Event, &syntax::filter::Filter) -> Result<HitFilter, FilterError>,
    /// The id of a user, by name or id.
    pub user_id: fn(&str) -> Option<u32>,
    /// The folders of cgroups; else what is wrong.
    pub find_cgroups: fn(&CgroupName) -> Result<Vec<PathBuf>, String>,
    /// All processes, with their names; they are read at each call.
    pub processes: fn() -> Vec<Called>,
}

impl Machine {
    /// Asks the running kernel.
    pub fn probe() -> Result<Self> {
        Ok(Self {
            online: kernel::cpus("online")?,
            possible_cpus: kernel::cpus("possible")?.len(),
            memory_bytes: memory::of_cgroup(),
            page_bytes: rustix::param::page_size() as u64,
            max_sample_rate: kernel::sysctl_number("kernel.perf_event_max_sample_rate"),
            max_stack: kernel::sysctl_number("kernel.perf_event_max_stack"),
            registers: EntryRegisters::of_kernel(),
            has_proc: kernel::has_proc(),
            in_initial_pid_namespace: kernel::in_initial_pid_namespace(),
            process_of: status::process_of,
            steps_over_breakpoints: kernel::steps_over_breakpoints(),
            find_events: |events| profiler_events::Machine::here().resolve(events, Purpose::Sample),
            find_hit_filter: |event, filter| {
                profiler_events::Machine::here().hit_filter(event, filter)
            },
            user_id: users::id_of,
            find_cgroups: CgroupName::find,
            processes: called::all,
        })
    }
}
