//! One sample, with its stacks named.

use std::{borrow::Cow, sync::Arc};

use profiler_common::sample::COMM_LEN;

use crate::{process::Metadata, source::Source, stack::Stack, stack_end::StackEnd};

/// A sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What took it.
    pub source: Arc<Source>,
    /// When; CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// What it stands for, in the unit of its source.
    pub value: u64,
    /// The CPU that was sampled.
    pub cpu: u32,
    /// Who ran there.
    pub task: Task,
    /// The kernel half; empty if there is none.
    pub kernel: Arc<Stack>,
    /// The user half; empty if there is none.
    pub user: Arc<Stack>,
    /// How the user half ended.
    pub user_end: StackEnd,
    /// Whether the agent walked the user half, from a snapshot of the stack.
    pub from_snapshot: bool,
}

/// A thread, and the process that it belongs to.
///
/// Of nobody in particular, as by [`Default`], it has neither ids nor a name.
#[derive(Clone, Debug, Default)]
pub struct Task {
    /// Process id, as the machine's first pid namespace has it.
    pub tgid: u32,
    /// Thread id, as there.
    pub tid: u32,
    /// The thread's name.
    pub comm: Comm,
    /// The name of the process's main thread; empty if it is not known.
    pub main_comm: Comm,
    /// The cgroup v2 id.
    pub cgroup_id: u64,
    /// Who the process is, if that was asked for and is known.
    pub process: Option<Arc<Metadata>>,
}

impl Task {
    /// Whether nothing says whose the samples are.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        let Self { tgid, tid, comm, main_comm, .. } = self;
        (*tgid, *tid, *comm, *main_comm) == (0, 0, Comm::default(), Comm::default())
    }

    /// The id of the process, if it has one: 0 is that of the idle task, which has a name.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        Some(self.tgid).filter(|tgid| *tgid != 0 || self.is_idle())
    }

    /// The id of the thread, if it has one.
    #[must_use]
    pub fn tid(&self) -> Option<u32> {
        Some(self.tid).filter(|tid| *tid != 0 || self.is_idle())
    }

    /// Whether the process is called otherwise than the thread.
    fn has_main_comm(&self) -> bool {
        // A sample of the main thread itself has its name as it was then.
        let is_other = self.tid != self.tgid || self.comm == Comm::default();
        is_other && !self.main_comm.text().trim().is_empty()
    }

    /// Whether it is the task that runs where nothing else does.
    fn is_idle(&self) -> bool {
        (self.tgid, self.tid) == (0, 0) && self.comm.0.starts_with(b"swapper")
    }

    /// Its process as a whole, under the name that people call it.
    #[must_use]
    pub fn of_process(self) -> Self {
        let comm = self.process_comm();
        Self { tid: self.tgid, comm, main_comm: comm, ..self }
    }

    /// The name that people call the process, as its bytes.
    #[must_use]
    pub fn process_comm(&self) -> Comm {
        if self.has_main_comm() { self.main_comm } else { self.comm }
    }

    /// What people call the process: its main thread's name, or else this thread's.
    #[must_use]
    pub fn process_name(&self) -> Cow<'_, str> {
        if self.has_main_comm() { self.main_comm.text() } else { self.comm.text() }
    }
}

/// The name of a thread, padded with zeros: bytes that anyone can choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comm(pub [u8; COMM_LEN]);

impl Comm {
    /// As much of a name as there is room for.
    ///
    /// ```
    /// use profiler_profile::sample::Comm;
    /// assert_eq!(Comm::of("a name of 18 bytes").text(), "a name of 18 byt");
    /// assert_eq!(Comm::of("fifteen bytes +\u{e4}").text(), "fifteen bytes +");
    /// ```
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut comm = Self::default();
        let end = (0..=COMM_LEN).rev().find(|end| name.is_char_boundary(*end));
        let fitting = name.bytes().take(end.unwrap_or_default());
        comm.0.iter_mut().zip(fitting).for_each(|(to, byte)| *to = byte);
        comm
    }

    /// The name as text; bytes that are no UTF-8 are replaced. It is not
    /// [printable](crate::printable::printable) yet.
    ///
    /// ```
    /// use profiler_profile::sample::Comm;
    /// assert_eq!(Comm(*b"cc1plus\0\0\0\0\0\0\0\0\0").text(), "cc1plus");
    /// ```
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        let name = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name)
    }
}
