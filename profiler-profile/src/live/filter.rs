//! Which samples of a snapshot are wanted.

use super::{Line, Spawn, stacks::Stacks};
use crate::sample::Comm;

/// A function by what it is called, which is the same in each snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionName {
    /// Its name, printable.
    pub name: String,
    /// The file that it is in, printable; empty if there is none.
    pub module: String,
}

/// Which samples are wanted; by default all of the first source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this source.
    pub slot: usize,
    /// Of this process.
    pub process: Option<u32>,
    /// Of processes of this name.
    pub name: Option<Comm>,
    /// Of this thread.
    pub thread: Option<u32>,
    /// Of this container, by its id, or systemd unit.
    pub group: Option<String>,
    /// Of processes of this user, by the processes that are known to be theirs.
    pub user: Option<(u32, Vec<u32>)>,
    /// On this CPU.
    pub cpu: Option<u32>,
    /// With this function anywhere on the stack.
    pub function: Option<FunctionName>,
}

impl Filter {
    /// Whether anything but the source is asked for.
    #[must_use]
    pub fn is_some(&self) -> bool {
        *self != Self { slot: self.slot, ..Self::default() }
    }

    /// Whether only some processes are asked for.
    #[must_use]
    pub fn is_of_processes(&self) -> bool {
        self.process.is_some() || self.name.is_some() || self.group.is_some() || self.user.is_some()
    }

    /// Whether the samples of a line are wanted, whatever functions they hit.
    #[must_use]
    pub fn takes(&self, line: &Line) -> bool {
        let Line { entry, cpu, .. } = line;
        let task = &entry.task;
        let in_group =
            |group: &String| task.process.as_ref().is_some_and(|it| it.group() == Some(group));
        entry.source.slot == self.slot
            && self.process.is_none_or(|it| it == task.tgid)
            && self.name.is_none_or(|it| it == task.process_comm())
            && self.thread.is_none_or(|it| it == task.tid)
            && self.user.as_ref().is_none_or(|(_, theirs)| theirs.contains(&task.tgid))
            && self.cpu.is_none_or(|it| it == *cpu)
            && self.group.as_ref().is_none_or(in_group)
    }

    /// Whether a process that has begun is wanted: one of those asked for, or begun by it. Threads, CPUs and functions
    /// are of samples only.
    #[must_use]
    pub fn takes_spawn(&self, spawn: &Spawn) -> bool {
        let kind = &spawn.kind;
        let is_either = |it: u32| it == spawn.tgid || it == spawn.parent;
        self.process.is_none_or(is_either)
            && self.name.is_none_or(|it| it == kind.name || it == kind.parent)
            && self.user.as_ref().is_none_or(|(_, theirs)| theirs.contains(&spawn.tgid))
            && self.group.as_deref().is_none_or(|it| kind.group.as_deref() == Some(it))
    }

    /// The places of the stacks that are wanted.
    #[must_use]
    pub fn stacks(&self, stacks: &Stacks) -> Vec<usize> {
        let function = self.function.as_ref().map(|it| stacks.find(it));
        let has = |stack: usize| match function {
            None => true,
            Some(None) => false,
            Some(Some(function)) => stacks.calls_of(stack).contains(&function),
        };
        let of_lines = stacks.lines().iter().enumerate();
        of_lines.filter(|(at, line)| self.takes(line) && has(*at)).map(|(at, _)| at).collect()
    }
}
