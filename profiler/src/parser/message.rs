//! The requests of the agent, and the answers of the parser process.

use profiler_python::{
    code::{Code, Unnamed},
    image::{Image, Loaded as Python},
    offsets::Unsupported,
    slot::{NoSlot, Slot},
};
use profiler_symbols as symbols;
use profiler_unwind::{NoTable, report::Unreported};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{jit, probe::Probe, sandbox::Step};

/// The first message of a parser process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// What it could not give up, and why.
    pub(super) lacks: Vec<(Step, String)>,
    /// Whether it enforces a real-time budget on itself, and so may be lent priority.
    pub(super) keeps_budget: bool,
}

/// A request. The descriptors of the files that it is about are sent with it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The unwind table of the file.
    Table,
    /// The report of `profiler unwind-info` on the file with this name, or on an address in it.
    Report { name: String, at: Option<u64> },
    /// Which supplementary files these files refer to.
    Links,
    /// Loads a file, to look up names in it later.
    Load(Load),
    /// What is at these offsets of loaded files, which are known by number.
    Find(Vec<(u64, Vec<u64>)>),
    /// The `.dwo` file that a loaded file asked for, or none.
    Supply { file: u64, dwo: u64 },
    /// Frees loaded files.
    Forget(Vec<u64>),
    /// Takes names of JIT code from what a process has written.
    TakeJit(jit::Text),
    /// What is at these addresses of a process in JIT code.
    FindJit { process: u64, addresses: Vec<u64> },
    /// Frees the names of JIT code of processes.
    ForgetJit(Vec<u64>),
    /// Whether the file is a Python interpreter.
    Python,
    /// Where threads of a process with this interpreter have their state. The descriptor is of its memory.
    PythonSlot { python: Python, pointer_above: u64 },
    /// What these code objects of such a process are, of which each has this check.
    PythonCode { python: Python, wanted: Vec<(u64, u64)> },
    /// Tries something that must not work.
    Probe(Probe),
    #[cfg(test)]
    Misbehave(Misbehaviour),
}

/// An answer. Large data follows it, unencoded.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The rules and the words of the table follow.
    Table(Result<TableParts, NoTable>),
    Reported(Result<String, Unreported>),
    /// Path and build id of each supplementary file.
    Links(Vec<(Vec<u8>, Vec<u8>)>),
    /// What was loaded; `None` if it is not an ELF file.
    Loaded(Option<Loaded>),
    /// For each file what is at its offsets; `None` if it is not loaded.
    Found(Vec<Option<FoundIn>>),
    TakenJit(jit::Taken),
    /// In the order of the addresses; `None` if nothing of the process was read.
    FoundJit(Option<Vec<jit::Found>>),
    Python(Result<Option<Image>, Unsupported>),
    PythonSlot(Result<Slot, NoSlot>),
    /// In the order of the code objects.
    PythonCode(Vec<Result<Code, Unnamed>>),
    /// The request was carried out.
    Done,
    /// That it worked, or its error number.
    Probed(Result<(), i32>),
    /// The parser panicked.
    Panicked,
}

/// A file to load. Its descriptors are sent with the request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Its number from now on.
    pub(crate) file: u64,
    /// Whether to read debug info, too.
    pub(crate) lines: bool,
    /// How long unpacking `.gnu_debugdata` may take, in milliseconds.
    pub(crate) unpack_ms: u64,
    /// Which descriptors are sent: of the file, its debug file, its supplementary file and its package.
    pub(crate) passed: [bool; 4],
}

/// A file that was loaded.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Loaded {
    /// Bytes of heap that it takes.
    pub(crate) bytes: u64,
    /// Whether it has `.gnu_debugdata`, which had to be unpacked.
    pub(crate) has_packed: bool,
}

/// What was found in one file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FoundIn {
    /// Bytes of heap that the file takes by now.
    pub(crate) bytes: u64,
    /// In the order of the offsets.
    pub(crate) answers: Vec<symbols::Answer>,
}

/// How to read a table that follows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TableParts {
    pub(super) rules: u32,
    pub(super) lacks_rules: bool,
    pub(super) is_newer_go: bool,
}

/// The bytes of a message; `None` only for what can't be sent.
pub(super) fn encoded(value: &impl Serialize) -> Option<Vec<u8>> {
    postcard::to_allocvec(value).ok()
}

/// A message from its bytes; `None` if they are not one.
pub(super) fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

/// What a process may do after a hostile file has taken it over.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Misbehaviour {
    Spin,
    /// Takes memory without end.
    Grow,
    Overflow,
    Panic,
    Nonsense,
    Endless,
    Die,
}
