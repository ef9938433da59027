//! Python in the memory of a process, which the agent opens and the parser process reads.
//!
//! What is read may be changed meanwhile by who wants to be read wrong. `profiler-python` bounds each read and each
//! number; here all of a request is bounded.

use std::{
    fs::File,
    io::ErrorKind,
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    time::Duration,
};

use profiler_python::{
    code::{self, Code, Unnamed},
    image::Loaded,
    memory::{Bounded, Fault, Memory},
    slot::{self, NoSlot, Slot},
};

use super::{
    answers,
    client::{Parser, Refusal},
    message::Request,
    process::Budget,
    symbols::Asked,
};

/// What is read of a process for a request: some kilobytes for each code object.
const MAX_READ: u64 = 16 << 20;
/// What the answer may take of the heap. It is longer by less than half when it is sent.
const MAX_HEAP: usize = 8 << 20;
/// Code objects of a request: a stack has fewer.
pub(crate) const MAX_CODE: usize = 4096;
/// Reading takes no disk, in all likelihood, and some milliseconds for a stack that is all new.
const BUDGET: Budget = Budget { cpu: Duration::from_secs(1), wall: Duration::from_secs(5) };

/// `/proc/PID/mem`
struct ProcessMemory(File);

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.0.read_exact_at(into, address).map_err(|error| match error.kind() {
            // Of a process that has ended, or called exec, there is nothing any more.
            ErrorKind::UnexpectedEof => Fault::Gone,
            _ => Fault::Unmapped,
        })
    }
}

/// Where threads have their state.
pub(super) fn slot(memory: File, loaded: &Loaded, pointer_above: u64) -> Result<Slot, NoSlot> {
    slot::slot(&Bounded::new(ProcessMemory(memory), MAX_READ), loaded, pointer_above)
}

/// What code objects are.
pub(super) fn code(
    memory: File,
    loaded: &Loaded,
    wanted: &[(u64, u64)],
) -> Vec<Result<Code, Unnamed>> {
    let memory = Bounded::new(ProcessMemory(memory), MAX_READ);
    let mut heap_bytes = 0;
    let read = |(address, check): &(u64, u64)| {
        if heap_bytes > MAX_HEAP {
            return Err(Unnamed::Budget);
        }
        let code = code::read(&memory, loaded, *address, *check)?;
        heap_bytes += code.heap_bytes();
        Ok(code)
    };
    wanted.iter().map(read).collect()
}

impl Parser {
    /// Where threads of a process with this interpreter have their state, by its open `/proc/PID/mem`. The thread
    /// pointer is so many bytes above `pthread_self()`.
    pub(crate) fn python_slot(
        &mut self,
        memory: &File,
        python: &Loaded,
        pointer_above: u64,
    ) -> Asked<Result<Slot, NoSlot>> {
        let request = Request::PythonSlot { python: python.clone(), pointer_above };
        let limit = answers::MAX_LOADED_BYTES;
        self.ask_within(BUDGET, &request, &[memory.as_fd()], limit, answers::python_slot)
    }

    /// What these code objects of such a process are: at most [`MAX_CODE`], each with its check.
    pub(crate) fn python_code(
        &mut self,
        memory: &File,
        python: &Loaded,
        wanted: Vec<(u64, u64)>,
    ) -> Asked<Vec<Result<Code, Unnamed>>> {
        let request = Request::PythonCode { python: python.clone(), wanted };
        let Request::PythonCode { wanted, .. } = &request else {
            return Err(Refusal::Unavailable);
        };
        let check = |bytes: &[u8]| answers::python_code(bytes, wanted);
        let limit = answers::MAX_FOUND_BYTES;
        self.ask_within(BUDGET, &request, &[memory.as_fd()], limit, check)
    }
}
