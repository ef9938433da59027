//! What a parser process does with a request and its descriptors.
//!
//! This is all of the process that a hostile file can reach. It needs no process, socket or sandbox, so it
//! can be fuzzed as it is.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    panic::{self, AssertUnwindSafe},
};

use profiler_python::image::Image;
use profiler_unwind::{Rules, Standalone, Table, report};
use serde::Serialize;

use super::{
    jit::JitNames,
    message::{Answer, Request, TableParts},
    python,
    symbol_files::{self, SymbolFiles},
};

/// The parts of a message, to be sent one after the other.
pub(super) type Reply = Vec<Vec<u8>>;

/// The names of JIT code may take one part in so many of the process's memory.
const JIT_SHARE: usize = 4;

/// Answers requests, and keeps the files whose symbols were loaded, and names of JIT code.
#[derive(Default)]
pub(super) struct FrontDoor {
    held: SymbolFiles,
    jit: JitNames,
}

impl FrontDoor {
    /// One in a process that may allocate so much.
    pub(super) fn within(memory_bytes: u64) -> Self {
        let memory_bytes = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
        Self { jit: JitNames::within(memory_bytes / JIT_SHARE), ..Self::default() }
    }

    /// Answers a request. A panic of a parser costs this answer only.
    ///
    /// # Errors
    ///
    /// If the message is not a request, or lacks a descriptor: the agent sends neither.
    pub(super) fn answer(&mut self, request: &[u8], files: Vec<OwnedFd>) -> io::Result<Reply> {
        let request = postcard::from_bytes(request).map_err(io::Error::other)?;
        let answered = panic::catch_unwind(AssertUnwindSafe(|| self.handle(&request, files)));
        answered.unwrap_or_else(|_| alone(&Answer::Panicked))
    }

    fn handle(&mut self, request: &Request, files: Vec<OwnedFd>) -> io::Result<Reply> {
        let mut files = files.into_iter().map(File::from);
        let answer = match request {
            Request::Table => return table(&files.next().ok_or(io::ErrorKind::InvalidInput)?),
            Request::Report { name, at } => {
                let file = files.next().ok_or(io::ErrorKind::InvalidInput)?;
                Answer::Reported(report::of_file(&file, name, *at))
            }
            Request::Links => symbol_files::links(files),
            Request::Load(load) => self.held.load(load, files),
            Request::Find(wanted) => self.held.find(wanted),
            Request::Supply { file, dwo } => {
                let image = files.next().and_then(|file| symbol_files::map(&file));
                self.held.supply(*file, *dwo, image.as_ref())
            }
            Request::Forget(files) => self.held.forget(files),
            Request::TakeJit(text) => Answer::TakenJit(self.jit.take(text)),
            Request::FindJit { process, addresses } => {
                Answer::FoundJit(self.jit.find(*process, addresses))
            }
            Request::ForgetJit(processes) => {
                self.jit.forget(processes);
                Answer::Done
            }
            Request::Python => {
                let file = files.next().ok_or(io::ErrorKind::InvalidInput)?;
                Answer::Python(Image::of_file(&file))
            }
            Request::PythonSlot { python: loaded, pointer_above } => {
                let memory = files.next().ok_or(io::ErrorKind::InvalidInput)?;
                Answer::PythonSlot(python::slot(memory, loaded, *pointer_above))
            }
            Request::PythonCode { python: loaded, wanted } => {
                let memory = files.next().ok_or(io::ErrorKind::InvalidInput)?;
                Answer::PythonCode(python::code(memory, loaded, wanted))
            }
            Request::Probe(probe) => Answer::Probed(probe.run()),
            #[cfg(test)]
            #[allow(clippy::panic)]
            Request::Misbehave(_) => panic!("as asked"),
        };
        alone(&answer)
    }
}

fn table(file: &File) -> io::Result<Reply> {
    let mut rules = Rules::new();
    match Table::of_file(file, &mut rules).map(|table| Standalone::new(table, &rules)) {
        Ok(table) => {
            let (rules, words) = table.parts();
            let parts = TableParts {
                rules: u32::try_from(table.rules().len()).unwrap_or(u32::MAX),
                lacks_rules: table.lacks_rules(),
                is_newer_go: table.is_newer_go(),
            };
            Ok(vec![encoded(&Answer::Table(Ok(parts)))?, rules, words])
        }
        Err(why) => alone(&Answer::Table(Err(why))),
    }
}

/// An answer that nothing follows.
fn alone(answer: &Answer) -> io::Result<Reply> {
    Ok(vec![encoded(answer)?])
}

fn encoded(value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(value).map_err(io::Error::other)
}
