//! Where a process writes the names of its JIT code, and a look at what is new there.

use std::{fs::File, io, sync::Arc};

use profiler_profile::frame::{Missing, Origin};

use super::{
    super::owner::Owner,
    tail_reader::{News, TailReader},
};
use crate::{
    parser::JitKind,
    process::{file::MappedFile, space::Mapped},
    procfs::maps::{Backing, Mapping},
    regular_file::Refusal,
};

/// How far both files of a process have been read.
#[derive(Clone, Debug)]
pub(super) struct Tails {
    pub(super) perf_map: TailReader,
    pub(super) jit_dump: TailReader,
}

impl Default for Tails {
    fn default() -> Self {
        let [perf_map, jit_dump] = [JitKind::PerfMap, JitKind::Jitdump].map(TailReader::new);
        Self { perf_map, jit_dump }
    }
}

/// What a look at the files has brought.
pub(super) struct Look {
    /// Or why there is no perf map.
    pub(super) perf_map: Result<io::Result<News>, Origin>,
    /// `None` if there is no jitdump.
    pub(super) jit_dump: Option<io::Result<News>>,
}

impl Tails {
    pub(super) fn of(&self, kind: JitKind) -> &TailReader {
        match kind {
            JitKind::PerfMap => &self.perf_map,
            JitKind::Jitdump => &self.jit_dump,
        }
    }

    pub(super) fn of_mut(&mut self, kind: JitKind) -> &mut TailReader {
        match kind {
            JitKind::PerfMap => &mut self.perf_map,
            JitKind::Jitdump => &mut self.jit_dump,
        }
    }

    /// Whether something in them can't be read.
    pub(super) fn are_malformed(&self) -> bool {
        self.perf_map.is_malformed || self.jit_dump.is_malformed
    }

    /// Reads a step of what is new in each file. May wait for a file system. The files are closed here, too: that
    /// may also wait.
    pub(super) fn look(&self, owner: &Owner, jit_dump: Option<Arc<MappedFile>>) -> Look {
        let jit_dump = jit_dump.and_then(|mapped| {
            let file = mapped.file().filter(|file| owner.owns(file))?;
            Some(self.jit_dump.news(file))
        });
        let perf_map = open_perf_map(owner).map(|file| self.perf_map.news(&file));
        Look { perf_map, jit_dump }
    }
}

/// The perf map of a process: in its own `/tmp`, by the id that it has in its own pid namespace. One that
/// is older than the process is of another that had the id.
fn open_perf_map(owner: &Owner) -> Result<File, Origin> {
    let file = owner.open(&perf_map_path(owner.own_id)).map_err(|refusal| match refusal {
        Refusal::Leased => Origin::NoFile(Missing::Leased),
        _ => Origin::NoMap,
    })?;
    if owner.is_younger_than(&file) { Err(Origin::OldMap) } else { Ok(file) }
}

/// Where the perf map of a process is, in its root, by the id that it knows itself by.
pub(super) fn perf_map_path(own_id: u32) -> String {
    format!("/tmp/perf-{own_id}.map")
}

/// The jitdump of a process, which tells where it is. However old, it is not that of another process
/// with the same id: this one has mapped it, or was forked from the one that has.
pub(super) fn jit_dump(mappings: &[Mapped]) -> Option<&Arc<MappedFile>> {
    match &jit_dump_marker(mappings)?.backing {
        Backing::File(file) => Some(file),
        _ => None,
    }
}

/// The mapping by which a process tells where its jitdump is. Its name has the number by which the
/// process, or the one that it was forked from, knows itself; any will do, since the process
/// itself has mapped it.
pub(super) fn jit_dump_marker<F>(mappings: &[Mapping<F>]) -> Option<&Mapping<F>> {
    mappings.iter().find(|mapping| {
        let path = mapping.name.strip_suffix(" (deleted)").unwrap_or(&mapping.name);
        let file = path.rsplit('/').next().unwrap_or(path);
        let number = file.strip_prefix("jit-").and_then(|rest| rest.strip_suffix(".dump"));
        let is_number = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
        matches!(mapping.backing, Backing::File(_)) && number.is_some_and(is_number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::maps;

    #[test]
    fn the_marker_has_the_files_name() {
        let marker = |path: &str| {
            let line = format!("1000-2000 r-xp 00000000 fe:00 12 {path}\n");
            jit_dump_marker(&maps::parse(line.as_bytes())).is_some()
        };
        assert!(marker("/tmp/jit-1.dump"));
        assert!(marker("/home/a b/.debug/jit/llvm-IR-jit-20260101/jit-4711.dump (deleted)"));
        for path in ["/tmp/jit-.dump", "/tmp/jit-1.dump/x", "/tmp/xjit-1.dump", "/tmp/jit-+1.dump"]
        {
            assert!(!marker(path), "{path}");
        }
        let anonymous = b"1000-2000 r-xp 00000000 00:00 0 /tmp/jit-1.dump\n";
        assert!(jit_dump_marker(&maps::parse(anonymous)).is_none());
    }
}
