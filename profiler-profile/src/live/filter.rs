//! Which samples of a snapshot are wanted.

use super::{Line, stacks::Stacks};

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

    /// Whether the samples of a line are wanted, whatever functions they hit.
    #[must_use]
    pub fn takes(&self, line: &Line) -> bool {
        let Line { entry, cpu } = line;
        let task = &entry.task;
        let in_group = |group: &String| group_of(line) == Some(group);
        entry.source.slot == self.slot
            && self.process.is_none_or(|it| it == task.tgid)
            && self.thread.is_none_or(|it| it == task.tid)
            && self.user.as_ref().is_none_or(|(_, theirs)| theirs.contains(&task.tgid))
            && self.cpu.is_none_or(|it| it == *cpu)
            && self.group.as_ref().is_none_or(in_group)
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

/// The container or the systemd unit of a line.
pub(super) fn group_of(line: &Line) -> Option<&String> {
    let metadata = line.entry.task.process.as_ref()?;
    metadata.container.as_ref().map(|it| &it.id).or(metadata.unit.as_ref())
}
