//! The requests of the naming thread: load files, and look up names in them; the same for JIT code.

use std::{
    fs::File,
    os::fd::{AsFd as _, BorrowedFd},
};

use profiler_symbols::{AltLink, Malformed};

use super::{
    answers::{self, MAX_FOUND_BYTES, MAX_LOADED_BYTES},
    client::{Parser, Refusal},
    jit,
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

    /// Has the process take names of JIT code from what is new in a file.
    pub(crate) fn take_jit(&mut self, text: jit::Text) -> Asked<jit::Taken> {
        let request = Request::TakeJit(text);
        let Request::TakeJit(text) = &request else { return Err(Refusal::Unavailable) };
        let check = |bytes: &[u8]| answers::taken_jit(bytes, text);
        self.ask_process(&request, &[], MAX_LOADED_BYTES, check)
    }

    /// What is at these addresses of a process in JIT code; `None` if this process holds nothing of it.
    pub(crate) fn find_jit(
        &mut self,
        process: u64,
        addresses: Vec<u64>,
    ) -> Asked<Option<Vec<jit::Found>>> {
        let request = Request::FindJit { process, addresses };
        let Request::FindJit { addresses, .. } = &request else { return Err(Refusal::Unavailable) };
        let check = |bytes: &[u8]| answers::found_jit(bytes, addresses);
        self.ask_process(&request, &[], MAX_FOUND_BYTES, check)
    }

    /// Frees the names of JIT code of processes. If the process fails, they are gone with it.
    pub(crate) fn forget_jit(&mut self, processes: Vec<u64>) {
        if !processes.is_empty() {
            let request = Request::ForgetJit(processes);
            let _ = self.ask_process(&request, &[], MAX_LOADED_BYTES, answers::done);
        }
    }
}
