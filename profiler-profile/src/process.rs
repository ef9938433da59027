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
    /// The real user id that it had then. No format writes it.
    #[serde(skip)]
    pub uid: Option<u32>,
}

impl Metadata {
    /// The container that it runs in, by its id, or else the systemd unit.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.container.as_ref().map(|it| &it.id).or(self.unit.as_ref()).map(String::as_str)
    }

    /// Bytes of the heap that it takes, shared by those that hold it.
    #[must_use]
    pub fn bytes(self: &Arc<Self>) -> usize {
        self.own_bytes() / Arc::strong_count(self).max(1)
    }

    /// Bytes of the heap that it takes, whoever holds it.
    #[must_use]
    pub fn own_bytes(&self) -> usize {
        let texts = [&self.command_line, &self.cgroup, &self.pod, &self.unit];
        let texts: usize = texts.iter().map(|it| it.as_ref().map_or(0, String::capacity)).sum();
        let container = self.container.as_ref().map_or(0, |it| it.id.capacity());
        COUNTS_BYTES + size_of::<Self>() + texts + container
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
