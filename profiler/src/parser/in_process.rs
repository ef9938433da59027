//! The requests of the agent, answered in this process: for fuzzing, where a crash is to be seen.

use std::{fs::File, os::fd::OwnedFd};

use profiler_symbols::{AltLink, Answer};
use profiler_unwind::{NoTable, Standalone};

use super::{
    answers,
    front_door::FrontDoor,
    message::{FoundIn, Load, Request, encoded},
};

/// The number of the only file that is loaded.
const FILE: u64 = 1;
/// Rounds of `.dwo` files.
const MAX_ROUNDS: usize = 4;
/// For unpacking `.gnu_debugdata`.
const UNPACK_MS: u64 = 1_000;

/// A parser without its process. Its methods give `None` where the agent would end the process for its answer.
#[derive(Default)]
pub struct InProcess(FrontDoor);

impl std::fmt::Debug for InProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InProcess")
    }
}

impl InProcess {
    fn ask<T>(
        &mut self,
        request: &Request,
        files: &[&File],
        limit: usize,
        check: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let files: Option<Vec<OwnedFd>> =
            files.iter().map(|it| Some(it.try_clone().ok()?.into())).collect();
        let reply = self.0.answer(&encoded(request)?, files?).ok()?.concat();
        if reply.len() > limit { None } else { check(&reply) }
    }

    /// The unwind table of a file.
    pub fn table(&mut self, file: &File) -> Option<Result<Standalone, NoTable>> {
        self.ask(&Request::Table, &[file], answers::MAX_TABLE_BYTES, answers::table)
    }

    /// Has the report of `profiler unwind-info` made, on a file or on an address in it.
    pub fn report(&mut self, file: &File, at: Option<u64>) -> Option<()> {
        let request = Request::Report { name: "file".into(), at };
        let report = self.ask(&request, &[file], answers::MAX_REPORT_BYTES, answers::report);
        report.map(drop)
    }

    /// Which supplementary files a file names.
    pub fn links(&mut self, file: &File) -> Option<Vec<AltLink>> {
        self.ask(&Request::Links, &[file], answers::MAX_LOADED_BYTES, answers::links)
    }

    /// Looks up offsets of a file, first loading it with a debug file, a supplementary file and a package,
    /// and supplying `.dwo` files that it asks for. Nothing is found in what is not an ELF file.
    pub fn find(
        &mut self,
        files: [Option<&File>; 4],
        lines: bool,
        dwo: Option<&File>,
        offsets: &[u64],
    ) -> Option<Vec<Answer>> {
        let load =
            Load { file: FILE, lines, unpack_ms: UNPACK_MS, passed: files.map(|it| it.is_some()) };
        let files: Vec<&File> = files.into_iter().flatten().collect();
        let limit = answers::MAX_LOADED_BYTES;
        let loaded = self.ask(&Request::Load(load), &files, limit, answers::loaded)?;
        if loaded.is_err() {
            return Some(Vec::new());
        }
        let wanted = vec![(FILE, offsets.to_vec())];
        let mut all = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let request = Request::Find(wanted.clone());
            let check = |bytes: &[u8]| answers::found(bytes, &wanted);
            let found = self.ask(&request, &[], answers::MAX_FOUND_BYTES, check)?;
            let FoundIn { answers, .. } = found.into_iter().next()??;
            all = answers;
            let mut asked_for = Vec::new();
            for answer in &all {
                if let Answer::Wants(it) = answer
                    && !asked_for.contains(&it.id)
                {
                    asked_for.push(it.id);
                }
            }
            if asked_for.is_empty() {
                break;
            }
            for id in asked_for {
                let request = Request::Supply { file: FILE, dwo: id };
                let with: Vec<&File> = dwo.into_iter().collect();
                self.ask(&request, &with, limit, answers::done)?;
            }
        }
        self.ask(&Request::Forget(vec![FILE]), &[], limit, answers::done)?;
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_as_by_a_process() {
        let own = File::open("/proc/self/exe").unwrap();
        let mut door = InProcess::default();
        assert!(door.table(&own).unwrap().is_ok());
        assert!(door.report(&own, None).is_some());
        assert!(door.links(&own).is_some());
        let offsets: Vec<u64> = (0..own.metadata().unwrap().len()).step_by(1 << 20).collect();
        let found = door.find([Some(&own), None, None, None], false, None, &offsets).unwrap();
        assert_eq!(found.len(), offsets.len());
        assert!(found.iter().any(|it| matches!(it, Answer::Found(_))));
        let text = tempfile::tempfile().unwrap();
        assert_eq!(door.table(&text), Some(Err(NoTable::NotElf)));
        let found = door.find([Some(&text), None, None, None], true, None, &[1]);
        assert_eq!(found.map(|it| it.len()), Some(0));
    }
}
