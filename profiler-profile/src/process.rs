//! Who a process is.

use std::sync::Arc;

use serde::Serialize;

use crate::frame::COUNTS_BYTES;

/// What `/proc` says of a process; what could not be had is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Metadata {
    /// The arguments that it was started with, a blank between two, or what it has put in their
    /// place; a kernel thread has none.
    pub command_line: Option<String>,
    /// The process that it is a child of; the first of all and that of kernel threads have none.
    pub parent: Option<u32>,
    /// The path of its cgroup.
    pub cgroup: Option<String>,
    /// The container that it runs in.
    pub container: Option<Container>,
    /// The uid of its Kubernetes pod.
    pub pod: Option<String>,
    /// The systemd service or scope that it runs in.
    pub unit: Option<String>,
}

impl Metadata {
    /// Bytes of the heap that it takes, shared by those that hold it.
    #[must_use]
    pub fn bytes(self: &Arc<Self>) -> usize {
        let texts = [&self.command_line, &self.cgroup, &self.pod, &self.unit];
        let texts: usize = texts.iter().map(|it| it.as_ref().map_or(0, String::capacity)).sum();
        let container = self.container.as_ref().map_or(0, |it| it.id.capacity());
        let all = COUNTS_BYTES + size_of::<Self>() + texts + container;
        all / Arc::strong_count(self).max(1)
    }
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Container {
    /// Its id, 64 hex digits.
    pub id: String,
    /// What runs it, where the path says so.
    pub runtime: Option<&'static str>,
}
