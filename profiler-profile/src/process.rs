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
    /// The service that it is part of, as people call it: what its environment says, or else its systemd service, or its
    /// executable's name.
    pub service: Option<String>,
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

    /// What still holds of it when it runs another program.
    #[must_use]
    pub fn after_exec(&self) -> Self {
        let service = self.unit_service().map(str::to_owned);
        Self { command_line: None, service, ..self.clone() }
    }

    /// The systemd service that it is part of, without `.service`. Those that hold containers, or all that a user runs, say
    /// nothing of what runs there.
    #[must_use]
    pub fn unit_service(&self) -> Option<&str> {
        let name = self.unit.as_deref()?.strip_suffix(".service")?;
        (self.container.is_none() && !name.starts_with("user@")).then_some(name)
    }

    /// Bytes of the heap that it takes, shared by those that hold it.
    #[must_use]
    pub fn bytes(self: &Arc<Self>) -> usize {
        self.own_bytes() / Arc::strong_count(self).max(1)
    }

    /// Bytes of the heap that it takes, whoever holds it.
    #[must_use]
    pub fn own_bytes(&self) -> usize {
        let texts = [&self.command_line, &self.cgroup, &self.pod, &self.unit, &self.service];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_names_a_service_unless_it_holds_others() {
        let of = |unit: &str| Metadata { unit: Some(unit.into()), ..Metadata::default() };
        assert_eq!(of("nginx.service").unit_service(), Some("nginx"));
        assert_eq!(of("getty@tty1.service").unit_service(), Some("getty@tty1"));
        assert_eq!(of("session-3.scope").unit_service(), None);
        assert_eq!(of("user@1000.service").unit_service(), None);
        let container = Some(Container { id: "1".into(), runtime: None });
        assert_eq!(Metadata { container, ..of("containerd.service") }.unit_service(), None);
        assert_eq!(Metadata::default().unit_service(), None);
    }

    #[test]
    fn another_program_has_no_arguments_and_is_no_longer_what_the_environment_said() {
        let before = Metadata {
            command_line: Some("sh".into()),
            unit: Some("cron.service".into()),
            service: Some("backup".into()),
            ..Metadata::default()
        };
        let after = before.after_exec();
        assert_eq!((after.command_line, after.service.as_deref()), (None, Some("cron")));
        assert_eq!(after.unit, before.unit);
    }
}
