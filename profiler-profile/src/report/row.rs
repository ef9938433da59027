//! What a row of a table stands for: code, or whose it is, of a profile that was sampled or of one that was read.

use std::{borrow::Cow, fmt::Write as _};

use profiler_common::build_id::BuildId;

use super::{elided, table::By};
use crate::{
    frame,
    import::{self, UNKNOWN},
    printable::printable,
    profile::Entry,
};

/// A function on a stack.
pub(super) struct Code<'a> {
    /// Where what it was made from lies in memory, which tells most apart without a look at the text.
    pub(super) at: usize,
    name: Option<&'a str>,
    module: Option<&'a str>,
    build_id: Option<Id<'a>>,
    source: Option<(&'a str, Option<u32>)>,
    pub(super) is_kernel: bool,
}

/// A build id, as it is known.
enum Id<'a> {
    Bytes(BuildId),
    Text(&'a str),
}

impl Id<'_> {
    fn text(&self) -> String {
        match self {
            Self::Bytes(id) => id.to_string(),
            Self::Text(id) => printable(id).into_owned(),
        }
    }
}

impl<'a> Code<'a> {
    pub(super) fn of_frame(frame: &'a frame::Frame, is_kernel: bool) -> Self {
        Self {
            at: std::ptr::from_ref(frame).addr(),
            name: frame.name(),
            module: frame.module.as_deref(),
            build_id: frame.build_id.map(Id::Bytes),
            source: frame.source.as_ref().map(|(file, line)| (&**file, *line)),
            is_kernel,
        }
    }

    pub(super) fn of_imported(frame: &'a import::Frame) -> Self {
        Self {
            at: std::ptr::from_ref(frame).addr(),
            name: frame.name.as_deref().filter(|_| !frame.is_unnamed()),
            module: frame.module.as_deref(),
            build_id: frame.build_id.as_deref().map(Id::Text),
            source: frame.file.as_deref().map(|file| (file, frame.line)),
            is_kernel: frame.is_kernel,
        }
    }

    fn module(&self) -> Option<&'a str> {
        self.module.filter(|module| !module.is_empty() && *module != UNKNOWN)
    }

    /// Whether it is in no file that processes could share.
    pub(super) fn is_private(&self) -> bool {
        self.module().is_some_and(|it| {
            !self.is_kernel && it.starts_with('[') && !matches!(it, "[vdso]" | "[vsyscall]")
        })
    }

    /// The row that it belongs to, in a process.
    pub(super) fn row(&self, by: By, pid: Option<u32>) -> Row {
        let module = self.module().unwrap_or(if self.is_kernel { "[kernel]" } else { UNKNOWN });
        let name = printable(self.name.unwrap_or(UNKNOWN)).into_owned();
        let module = printable(module).into_owned();
        let (name, place) = match (by, self.source) {
            (By::Module, _) => (module, String::new()),
            (By::Line, Some((file, Some(line)))) => (name, format!("{}:{line}", printable(file))),
            (By::Line, Some((file, None))) => (name, printable(file).into_owned()),
            _ => (name, module),
        };
        let build_id = self.build_id.as_ref().map(Id::text);
        Row { name, place, pid, build_id }
    }
}

/// Whose a stack is.
pub(super) struct Who<'a> {
    pub(super) process: Cow<'a, str>,
    pub(super) thread: Cow<'a, str>,
    pub(super) pid: Option<u32>,
    pub(super) tid: Option<u32>,
    pub(super) container: Option<Cow<'a, str>>,
    pub(super) service: Option<Cow<'a, str>>,
}

impl<'a> Who<'a> {
    pub(super) fn of_entry(entry: &'a Entry) -> Self {
        let task = &entry.task;
        let process = task.process.as_ref();
        let container = process.and_then(|it| it.container.as_ref());
        Self {
            process: task.process_name(),
            thread: task.comm.text(),
            pid: task.pid(),
            tid: task.tid(),
            container: container.map(|it| it.id.as_str().into()),
            service: process.and_then(|it| it.service.as_deref()).map(Cow::from),
        }
    }

    /// The row of the thread, or of what it is part of; none if rows are code.
    pub(super) fn row(&self, by: By) -> Option<Row> {
        let named = |name: &str| {
            let name = if name.trim().is_empty() { UNKNOWN } else { name };
            printable(name).into_owned()
        };
        let (name, place) = match by {
            By::Process => (named(&self.process), String::new()),
            By::Thread => {
                let tid = self.tid.map_or_else(String::new, |tid| format!(" (tid {tid})"));
                (named(&self.thread) + &tid, named(&self.process))
            }
            By::Container => match &self.container {
                Some(id) => (named(id), String::new()),
                None => ("[no container]".into(), String::new()),
            },
            By::Service => match &self.service {
                Some(name) => (named(name), String::new()),
                None => ("[no service]".into(), String::new()),
            },
            By::Function | By::Line | By::Module => return None,
        };
        Some(Row { name, place, pid: self.pid.filter(|_| by == By::Thread), build_id: None })
    }
}

/// What a row stands for. Functions of the same name in two files are two functions.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Row {
    pub(super) name: String,
    /// The file that it is in, or the like; empty if the name says it all.
    pub(super) place: String,
    /// The process, for what only that has.
    pub(super) pid: Option<u32>,
    build_id: Option<String>,
}

impl Row {
    /// The name, and where it is. Files of the same path, as containers have them, differ by build id.
    pub(super) fn shown(&self, width: Option<usize>, with_build_id: bool) -> String {
        let mut end = String::new();
        if !self.place.is_empty() {
            // Where there is no room for the whole path, its end.
            let file = self.place.rsplit('/').next().unwrap_or(&self.place);
            let _ = write!(end, "  {}", if width.is_some() { file } else { &self.place });
        }
        if let Some(pid) = self.pid {
            let _ = write!(end, " (pid {pid})");
        }
        match &self.build_id {
            Some(id) if with_build_id => {
                let _ = write!(end, " (build id {id})");
            }
            None if with_build_id => end += " (no build id)",
            _ => {}
        }
        let left = width.map(|it| it.saturating_sub(end.chars().count()).max(20));
        format!("{}{end}", elided(&self.name, left))
    }
}
