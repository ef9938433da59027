//! What an event is to the kernel.

use super::field::Register;
use crate::syntax::{Modifiers, Place, Precise};

/// Events to be opened together: one, or a group with its leader first.
///
/// A group whose events are on several PMUs of the same kind is several sets, one for each PMU.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// The word before a group's brace.
    pub name: Option<String>,
    /// There is at least one.
    pub attrs: Vec<Attr>,
}

/// What `struct perf_event_attr` needs to know of an event:
/// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>.
#[derive(Clone, Debug, PartialEq)]
pub struct Attr {
    /// The event for people: what was typed, with the PMU where there are several.
    pub name: String,
    /// The PMU that counts it, where it is known to be one.
    pub pmu: Option<String>,
    /// `type`
    pub kind: u32,
    /// `config`
    ///
    /// Of types hardware and cache it has the PMU's type in its upper half where CPUs are of several
    /// kinds. Kernels that don't know that yet refuse it: Linux before 5.13 on x86, and 6.6 on ARM.
    pub config: u64,
    /// `config1`
    pub config1: u64,
    /// `config2`
    pub config2: u64,
    /// `config3`, which Linux has since 6.3
    pub config3: u64,
    /// What to put into `bp_type`, `bp_addr` and `bp_len`.
    pub breakpoint: Option<Breakpoint>,
    /// What to point `config1` and `config2` to.
    pub probe: Option<Probe>,
    /// The flags `exclude_*`.
    pub exclude: Exclude,
    /// `precise_ip`
    pub precise: Precise,
    /// `pinned`
    pub pinned: bool,
    /// `exclusive`
    pub exclusive: bool,
    /// The event's own rate, if it has one.
    pub rate: Option<Rate>,
    /// The CPUs to open it on, as a list of the kernel's such as `0-7,16`; `None` for all.
    pub cpus: Option<String>,
    /// What a count is to be multiplied by, to be in units.
    pub scale: Option<f64>,
    /// What is counted after that: `Joules`, `MiB`.
    pub unit: Option<String>,
    /// Why it can't be sampled, if it can't.
    pub counting_only: Option<&'static str>,
}

/// A breakpoint of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breakpoint {
    /// `bp_type`
    pub kind: u32,
    /// `bp_addr`
    pub address: u64,
    /// `bp_len`
    pub length: u64,
}

/// A place that the kernel puts a probe at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The file, of which `config1` (`uprobe_path`) is a pointer to the path; `None` for the kernel itself.
    pub path: Option<String>,
    /// Where in it.
    ///
    /// In the kernel, `config1` (`kprobe_func`) is a pointer to the function's name, and `config2`
    /// (`probe_offset`) the offset; or `config1` is 0, and `config2` (`kprobe_addr`) the address. In a file,
    /// `config2` is the offset in the file, which the caller has to find for a function.
    pub place: Place,
    /// Whether it fires when the function returns. `config` says so already.
    pub returns: bool,
}

/// When not to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exclude {
    /// `exclude_user`
    pub user: bool,
    /// `exclude_kernel`
    pub kernel: bool,
    /// `exclude_hv`
    pub hypervisor: bool,
    /// `exclude_idle`
    pub idle: bool,
    /// `exclude_host`
    pub host: bool,
    /// `exclude_guest`
    pub guest: bool,
}

/// How often to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Once per so many events.
    Period(u64),
    /// So many times per second.
    Frequency(u64),
}

impl Attr {
    /// An event of which nothing else is known, not even a name.
    #[must_use]
    pub fn new(kind: u32, config: u64) -> Self {
        Self {
            name: String::new(),
            pmu: None,
            kind,
            config,
            config1: 0,
            config2: 0,
            config3: 0,
            breakpoint: None,
            probe: None,
            exclude: Exclude::default(),
            precise: Precise::default(),
            pinned: false,
            exclusive: false,
            rate: None,
            cpus: None,
            scale: None,
            unit: None,
            counting_only: None,
        }
    }

    pub(super) fn register(&mut self, register: Register) -> &mut u64 {
        match register {
            Register::Config => &mut self.config,
            Register::Config1 => &mut self.config1,
            Register::Config2 => &mut self.config2,
            Register::Config3 => &mut self.config3,
        }
    }

    pub(super) fn modify(&mut self, modifiers: Modifiers) {
        self.exclude = Exclude::by(modifiers);
        self.precise = modifiers.precise;
        self.pinned = modifiers.pinned;
        self.exclusive = modifiers.exclusive;
    }
}

impl Exclude {
    /// What was not asked for, where something was.
    fn by(modifiers: Modifiers) -> Self {
        let Modifiers { user, kernel, hypervisor, guest, host, .. } = modifiers;
        let is_mode_given = user || kernel || hypervisor;
        let is_side_given = guest || host;
        // A PMU can't be precise in a guest.
        let is_precise = modifiers.precise != Precise::default();
        Self {
            user: is_mode_given && !user,
            kernel: is_mode_given && !kernel,
            hypervisor: is_mode_given && !hypervisor,
            idle: modifiers.not_idle,
            host: is_side_given && !host,
            guest: if is_side_given { !guest } else { is_precise },
        }
    }
}
