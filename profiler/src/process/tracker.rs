//! Learns what happens to processes, from the kernel's records and from `/proc`, and opens the files
//! that they map before they are gone.

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    file::{Files, MappedFile, Place},
    maps::{self, Backing, Mapping},
    metadata::Metadata,
    space::Mapped,
    table::{Event, Kind},
};
use crate::{
    kernel,
    perf::record::{MappedId, Record, Timed},
};

/// The source of events. Its clones share the open files.
#[derive(Clone, Debug)]
pub struct Tracker {
    files: Arc<Mutex<Files>>,
    metadata: bool,
}

impl Tracker {
    /// A source that, with `metadata`, also reads who each process is.
    #[must_use]
    pub fn new(metadata: bool) -> Self {
        Self { files: Arc::default(), metadata }
    }

    /// Reads what runs now; what happens from here on, records have to tell.
    #[must_use]
    pub fn find_all(&self) -> Vec<Event> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let tgids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        tgids.filter_map(|tgid| self.find(tgid)).collect()
    }

    /// Reads one process's mappings; `None` if it is gone, or is a thread of the kernel.
    #[must_use]
    pub fn find(&self, tgid: u32) -> Option<Event> {
        // What is mapped while this is read may be in it or not, and is told again.
        let time_ns = kernel::monotonic_ns();
        let text = fs::read(format!("/proc/{tgid}/maps")).ok()?;
        let mut files = self.files();
        let mappings = maps::parse(&text).into_iter().map(|it| open(&mut files, it, tgid));
        let mappings: Vec<Mapped> = mappings.collect();
        let metadata = self.metadata(tgid);
        let kind = Kind::Found { mappings, metadata };
        (!text.is_empty()).then_some(Event { time_ns, tgid, kind })
    }

    /// What a record means for a process, if anything.
    #[must_use]
    pub fn event(&self, record: Timed) -> Option<Event> {
        let Timed { time_ns, record } = record;
        let (tgid, kind) = match record {
            Record::Mmap { tgid, start, bytes, file_offset, file, name, .. } => {
                let name = String::from_utf8_lossy(&name);
                // perf's word for what has no file.
                let name = if name == "//anon" { "" } else { &name };
                let backing = Backing::of(name, file);
                let end = start.checked_add(bytes)?;
                let mapping = Mapping { start, end, file_offset, backing, name: name.into() };
                (tgid, Kind::Mapped(open(&mut self.files(), mapping, tgid)))
            }
            Record::Comm { tgid, exec: true, .. } => {
                (tgid, Kind::Exec { metadata: self.metadata(tgid) })
            }
            Record::Fork { tgid, parent_tgid, .. } if tgid != parent_tgid => {
                (tgid, Kind::Forked(parent_tgid))
            }
            // Its other threads may go on, and their samples are still its own.
            Record::Exit { tgid, tid } if tgid == tid => (tgid, Kind::Ended),
            _ => return None,
        };
        Some(Event { time_ns, tgid, kind })
    }

    fn metadata(&self, tgid: u32) -> Option<Box<Metadata>> {
        self.metadata.then(|| Box::new(Metadata::read(tgid)))
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(files: &mut Files, mapping: Mapping<MappedId>, tgid: u32) -> Mapped {
    let Mapping { start, end, file_offset, backing, name } = mapping;
    let backing: Backing<Arc<MappedFile>> = match backing {
        Backing::File(id) => Backing::File(files.get(id, Place { tgid, start, end, name: &name })),
        Backing::Vdso => Backing::Vdso,
        Backing::Anonymous => Backing::Anonymous,
    };
    Mapped { start, end, file_offset, backing, name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::table::Processes;

    #[test]
    fn knows_its_own_mappings() {
        let tracker = Tracker::new(false);
        let mut processes = Processes::new(10);
        processes.apply(tracker.find(std::process::id()).unwrap());
        let process = processes.at(std::process::id(), 0).unwrap();
        let here = knows_its_own_mappings as fn() as usize as u64;
        let mapping = process.space.find(here, 0).unwrap();
        assert_eq!(&*mapping.name, std::env::current_exe().unwrap().to_str().unwrap());
        let Backing::File(file) = &mapping.backing else { panic!("{mapping:?}") };
        let opened = file.unchanged().unwrap().metadata().unwrap();
        assert_eq!(opened.len(), fs::metadata("/proc/self/exe").unwrap().len());
    }

    #[test]
    fn a_process_that_is_gone_is_not_found() {
        assert!(Tracker::new(false).find(u32::MAX).is_none());
    }
}
