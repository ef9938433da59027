//! Parsing other people's files, in a process that can do nothing else.
//!
//! Whoever runs a program may have written its file, and may want to kill the agent, exhaust its memory or
//! stall it. So the agent opens and checks files, but [another process](server) parses them: this program,
//! [executed again](process) with nothing but a socket, which [gives up](sandbox) its capabilities, the file
//! system and most system calls before it reads the first [message](wire). It has a memory limit, and a
//! time [budget](process::Budget) for each [request](client). If it ends, is too slow or sends nonsense, it is
//! killed, [another one](supervisor) is started, and the file is [barred](bars). What it does with a request is
//! behind one [front door](front_door), and the agent checks its [answers].
//!
//! An unwind table takes one request per file. Files that names are looked up in stay [loaded](symbol_files)
//! in the process, since they are [asked about](symbols) again and again. So do the names of [JIT code](jit), which
//! the agent reads as bytes, since its files grow. [Python](python) is read from the memory of its process.
//!
//! Each thread has a parser process of its own, so that none waits for another's requests.

mod answers;
mod bars;
mod claims;
mod client;
mod front_door;
#[cfg(any(test, fuzzing))]
pub mod in_process;
pub mod jit;
mod message;
mod patience;
pub(crate) mod probe;
mod process;
mod python;
mod sandbox;
mod server;
mod slow_users;
mod supervisor;
mod symbol_files;
mod symbols;
mod wire;

pub use self::{bars::Bars, client::Parser};
pub(crate) use self::{
    bars::Subject,
    client::Refusal,
    jit::{
        Found as JitFound, Kind as JitKind, STEP as JIT_STEP, Taken as JitTaken, Text as JitText,
    },
    message::{FoundIn, Load},
    process::{Budget, Failure},
    python::MAX_CODE as MAX_PYTHON_CODE,
    symbols::Asked,
};

use std::process::exit;

/// If this program was started as a parser process, runs as one and exits. Otherwise does nothing. Must be
/// called before anything else.
pub fn run_if_requested() {
    if let Some((memory_bytes, role)) = process::requested() {
        exit(i32::from(server::run(memory_bytes, role).is_err()));
    }
}
