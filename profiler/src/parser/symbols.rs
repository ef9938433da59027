//! The requests of the naming thread: load files, and look up names in them.

use std::{
    fs::File,
    os::fd::{AsFd as _, BorrowedFd},
};

use profiler_symbols::{AltLink, Malformed};

use super::{
    answers::{self, MAX_FOUND_BYTES, MAX_LOADED_BYTES},
    client::{Parser, Refusal},
    message::{FoundIn, Load, Loaded, Request},
    process::Failure,
    wire::MAX_FILES,
};

/// An answer, or how the process failed. If it did, another one is running by now.
pub(crate) type Asked<T> = Result<Result<T, Failure>, Refusal>;

impl Parser {
    /// Which supplementary files these files refer to.
    pub(crate) fn links(&mut self, files: &[&File]) -> Asked<Vec<AltLink>> {
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(|it| it.as_fd()).take(MAX_FILES).collect();
        self.ask_twice(&Request::Links, &fds, MAX_LOADED_BYTES, answers::links)
    }

    /// Has the process read a file, whose descriptors are in the order of [`Load::passed`]. [`Malformed`] if it
    /// is not an ELF file.
    pub(crate) fn load(&mut self, load: Load, files: &[&File]) -> Asked<Result<Loaded, Malformed>> {
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(|it| it.as_fd()).take(MAX_FILES).collect();
        self.ask_twice(&Request::Load(load), &fds, MAX_LOADED_BYTES, answers::loaded)
    }

    /// What is at these offsets of loaded files. For one that this process does not hold there is nothing.
    pub(crate) fn find(&mut self, wanted: Vec<(u64, Vec<u64>)>) -> Asked<Vec<Option<FoundIn>>> {
        let request = Request::Find(wanted);
        let Request::Find(wanted) = &request else { return Err(Refusal::Unavailable) };
        let check = |bytes: &[u8]| answers::found(bytes, wanted);
        self.ask_process(&request, &[], MAX_FOUND_BYTES, check)
    }

    /// Gives a loaded file the `.dwo` file that it has asked for.
    pub(crate) fn supply(&mut self, file: u64, dwo: u64, with: Option<&File>) -> Asked<()> {
        let fds: Vec<BorrowedFd<'_>> = with.iter().map(|it| it.as_fd()).collect();
        self.ask_process(&Request::Supply { file, dwo }, &fds, MAX_LOADED_BYTES, answers::done)
    }

    /// Frees loaded files. If the process fails, they are gone with it.
    pub(crate) fn forget(&mut self, files: Vec<u64>) {
        if !files.is_empty() {
            let _ = self.ask_process(&Request::Forget(files), &[], MAX_LOADED_BYTES, answers::done);
        }
    }
}
