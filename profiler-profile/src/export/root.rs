//! What stacks begin with, in formats that have no other place for whose they are.

use super::folded::task_name;
use crate::sample::Task;

/// What the tower of a stack is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Root {
    /// All processes of one name.
    #[default]
    Process,
    /// One process, by name and id.
    Pid,
    /// One thread, on its process: both by name and id.
    Thread,
}

impl Root {
    /// The frames below all others, the outermost first.
    pub(super) fn frames(self, task: &Task) -> Vec<String> {
        if task.is_unknown() {
            return Vec::new();
        }
        let process = task_name(&task.process_name());
        let by_id = || format!("{process}-{}", task.tgid);
        match self {
            Self::Process => vec![process],
            Self::Pid => vec![by_id()],
            Self::Thread => {
                vec![by_id(), format!("{}-{}", task_name(&task.comm.text()), task.tid)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Comm;

    #[test]
    fn a_stack_begins_with_its_process_or_thread() {
        let mut task = Task { tgid: 7, tid: 8, ..Task::default() };
        task.comm = Comm(*b"worker\0\0\0\0\0\0\0\0\0\0");
        task.main_comm = Comm(*b"web\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(Root::default().frames(&task), ["web"]);
        assert_eq!(Root::Pid.frames(&task), ["web-7"]);
        assert_eq!(Root::Thread.frames(&task), ["web-7", "worker-8"]);
        assert!(Root::Thread.frames(&Task::default()).is_empty());
    }
}
