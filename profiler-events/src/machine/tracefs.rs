//! Tracepoints as tracefs has them.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{
    error::ResolveError,
    files::{self, malformed, unreadable},
};
use crate::{glob, near::near};

/// Where tracefs is mounted, below the root: since Linux 4.1, and before.
const MOUNTS: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];

/// The folder with a folder for each system of tracepoints.
#[derive(Debug)]
pub(super) struct Tracefs {
    events: PathBuf,
}

/// One tracepoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tracepoint {
    pub(super) system: String,
    pub(super) name: String,
}

impl Tracefs {
    /// The first that is mounted.
    pub(super) fn find(root: &Path) -> Result<Self, ResolveError> {
        for mount in MOUNTS {
            let events = root.join(mount).join("events");
            match events.metadata() {
                Ok(_) => return Ok(Self { events }),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(unreadable(&events, &error));
                }
                Err(_) => {}
            }
        }
        let [path, _] = MOUNTS.map(|mount| root.join(mount));
        Err(ResolveError::NoTracefs { path })
    }

    /// Those that both patterns match, sorted. There is at least one.
    pub(super) fn matching(
        &self,
        system: &str,
        name: &str,
    ) -> Result<Vec<Tracepoint>, ResolveError> {
        let found = self.all(system, name)?;
        if found.is_empty() {
            let known = self.all("*", "*")?.into_iter().map(|it| it.full_name());
            let name = format!("{system}:{name}");
            return Err(ResolveError::UnknownTracepoint { near: near(&name, known), name });
        }
        Ok(found)
    }

    /// Those that both patterns match, which may be none.
    pub(super) fn all(&self, system: &str, name: &str) -> Result<Vec<Tracepoint>, ResolveError> {
        let mut found = Vec::new();
        for system in named(&self.events, system)? {
            let folder = self.events.join(&system);
            let names = named(&folder, name)?.into_iter();
            let names = names.filter(|it| folder.join(it).join("id").exists());
            found.extend(names.map(|name| Tracepoint { system: system.clone(), name }));
        }
        Ok(found)
    }

    /// What the record of a tracepoint that is there has, and the file that says so.
    pub(super) fn format(
        &self,
        tracepoint: &Tracepoint,
    ) -> Result<(PathBuf, String), ResolveError> {
        let path = self.events.join(&tracepoint.system).join(&tracepoint.name).join("format");
        let text = files::read(&path)?.ok_or_else(|| malformed(&path, "it is gone"))?;
        Ok((path, text))
    }

    /// `perf_event_attr.config` of a tracepoint that is there.
    pub(super) fn id(&self, tracepoint: &Tracepoint) -> Result<u64, ResolveError> {
        let path = self.events.join(&tracepoint.system).join(&tracepoint.name).join("id");
        files::number(&path)?.ok_or_else(|| malformed(&path, "it is gone"))
    }
}

impl Tracepoint {
    pub(super) fn full_name(&self) -> String {
        format!("{}:{}", self.system, self.name)
    }
}

/// What a name or a pattern stands for in a folder. A name may not be there.
fn named(folder: &Path, pattern: &str) -> Result<Vec<String>, ResolveError> {
    if !glob::is_pattern(pattern) {
        return Ok(if pattern.starts_with('.') { Vec::new() } else { vec![pattern.to_owned()] });
    }
    let mut names = files::names(folder)?;
    names.retain(|it| glob::matches(pattern, it));
    Ok(names)
}
