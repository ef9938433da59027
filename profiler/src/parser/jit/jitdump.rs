//! `jit-PID.dump`: names of JIT code, with the order in which it came and went.
//!
//! Format: <https://github.com/torvalds/linux/blob/v6.12/tools/perf/Documentation/jitdump-specification.txt>.
//! The process finds out itself where to write it, and tells profilers by mapping a page of it
//! executable.
//!
//! linux-perf-data has a reader, too. It panics at a header of 4096 bytes and takes a record's own word
//! for its size, be it less than its head or 4 GiB, which it then holds in memory.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::functions::{Functions, LIMIT_NAME, Span};

const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
#[cfg(target_arch = "x86_64")]
const MACHINE: u32 = libc::EM_X86_64 as u32;
#[cfg(target_arch = "aarch64")]
const MACHINE: u32 = libc::EM_AARCH64 as u32;

/// What CPython says in place of the machine (`-X perf_jit`); perf doesn't look at it.
const NO_MACHINE: u32 = libc::EM_NONE as u32;

const HEADER_BYTES: usize = 40;
/// What all records begin with.
const PREFIX_BYTES: usize = 16;

const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const CODE_CLOSE: u32 = 3;
/// A load's fields before its name.
const LOAD_BYTES: usize = PREFIX_BYTES + 40;
/// The most of a record that is looked at: behind the name is the code.
const HEAD_BYTES: usize = LOAD_BYTES + LIMIT_NAME;

/// Why a file can't be read as a jitdump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Problem {
    /// It begins with something else.
    #[error("it does not begin like a jitdump")]
    Magic,
    /// Another kind of machine wrote it.
    #[error("it is in the other byte order")]
    ByteOrder,
    /// A version that is not known.
    #[error("its version is {0}, and only {VERSION} is known")]
    Version(u32),
    /// Its code runs elsewhere.
    #[error("its code is for the ELF machine {0}, not {MACHINE}")]
    Machine(u32),
    /// Where the next one begins can't be known.
    #[error("it has a header or record of {0} bytes")]
    Size(u32),
}

/// What is expected next.
#[derive(Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Header,
    Record,
    /// It was closed.
    Nothing,
    /// It can't be read.
    Unknown,
}

/// The functions that a process has named, and not replaced since.
#[derive(Debug, Default)]
pub struct JitDump {
    functions: Functions,
    next: Next,
}

impl JitDump {
    /// Sets what its names may take from here on.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.functions.limit(bytes);
    }

    /// Takes what comes next in the file, as [`take`](Self::take). After a problem nothing more is taken.
    pub(super) fn take_step(&mut self, bytes: &[u8], behind: u64) -> Result<u64, Problem> {
        self.take(bytes, behind).inspect_err(|_| self.next = Next::Unknown)
    }

    /// Takes the records whose heads stand in the bytes, as far as they are complete in a file that
    /// has so many more bytes from here on. Says how many bytes they have, which may be more than
    /// were given.
    pub fn take(&mut self, bytes: &[u8], behind: u64) -> Result<u64, Problem> {
        let mut taken = 0_u64;
        while let Some(rest) = usize::try_from(taken).ok().and_then(|taken| bytes.get(taken..)) {
            let behind = behind.saturating_sub(taken);
            let size = match self.next {
                Next::Header => header_size(rest)?,
                Next::Record => record_size(rest)?,
                Next::Nothing | Next::Unknown => None,
            };
            let Some(size) = size.filter(|size| u64::from(*size) <= behind) else { break };
            let whole = usize::try_from(size).unwrap_or(usize::MAX);
            // The rest of its head comes with the next bytes.
            let Some(head) = rest.get(..whole.min(HEAD_BYTES)) else { break };
            if self.next == Next::Header {
                self.next = Next::Record;
            } else {
                self.record(head);
            }
            taken += u64::from(size);
        }
        Ok(taken)
    }

    /// A record; one of another kind, or that is too short for its kind, is skipped.
    fn record(&mut self, head: &[u8]) {
        let number = |at| head.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes);
        match number32(head, 0) {
            Some(CODE_LOAD) => {
                let name = head.get(LOAD_BYTES..).unwrap_or_default();
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                if let (Some(start), Some(size)) = (number(32), number(40)) {
                    self.functions.add(start, size, name);
                }
            }
            Some(CODE_MOVE) => {
                if let (Some(from), Some(to), Some(size)) = (number(32), number(40), number(48)) {
                    self.functions.relocate(from, to, size);
                }
            }
            Some(CODE_CLOSE) => self.next = Next::Nothing,
            // Source lines, and unwinding information.
            _ => {}
        }
    }

    /// Whether nothing that comes is read any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.next, Next::Nothing | Next::Unknown)
    }

    /// Whether reading has ended where something else stands than a jitdump has.
    pub(super) fn is_malformed(&self) -> bool {
        self.next == Next::Unknown
    }

    /// The memory it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.functions.bytes()
    }

    /// What is at an address, and how far around it the same holds.
    pub(super) fn span(&self, address: u64) -> Span<'_> {
        self.functions.span(address)
    }

    /// Start and name of the function that holds the address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(u64, Arc<str>)> {
        self.functions.find(address)
    }
}

/// `None` if it is not there yet.
fn header_size(bytes: &[u8]) -> Result<Option<u32>, Problem> {
    let field = |at| number32(bytes, at);
    let (Some(magic), Some(version), Some(size), Some(machine)) =
        (field(0), field(4), field(8), field(12))
    else {
        return Ok(None);
    };
    match magic {
        MAGIC => {}
        _ if magic == MAGIC.swap_bytes() => return Err(Problem::ByteOrder),
        // The process has made the file longer before it writes.
        0 => return Ok(None),
        _ => return Err(Problem::Magic),
    }
    match (version, machine) {
        (VERSION, MACHINE | NO_MACHINE) if size as usize >= HEADER_BYTES => Ok(Some(size)),
        (VERSION, MACHINE | NO_MACHINE) => Err(Problem::Size(size)),
        (VERSION, _) => Err(Problem::Machine(machine)),
        _ => Err(Problem::Version(version)),
    }
}

/// `None` if it is not there yet.
fn record_size(bytes: &[u8]) -> Result<Option<u32>, Problem> {
    match number32(bytes, 4) {
        // The process has made the file longer before it writes.
        None | Some(0) => Ok(None),
        Some(size) if (size as usize) < PREFIX_BYTES => Err(Problem::Size(size)),
        size => Ok(size),
    }
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header_with(magic: u32, version: u32, size: u32, machine: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [magic, version, size, machine, 0, 42].iter().flat_map(|it| it.to_ne_bytes()).collect();
        bytes.extend([0; 16]);
        bytes
    }

    pub(crate) fn header() -> Vec<u8> {
        header_with(MAGIC, 1, 40, MACHINE)
    }

    pub(crate) fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = u32::try_from(PREFIX_BYTES + body.len()).unwrap();
        [&kind.to_ne_bytes(), &size.to_ne_bytes(), &[0; 8][..], body].concat()
    }

    fn numbers(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|it| it.to_ne_bytes()).collect()
    }

    pub(crate) fn load(start: u64, size: u64, name: &[u8], code: &[u8]) -> Vec<u8> {
        record(CODE_LOAD, &[&numbers(&[0, start, start, size, 7]), name, &[0], code].concat())
    }

    fn relocate(from: u64, to: u64, size: u64) -> Vec<u8> {
        record(CODE_MOVE, &numbers(&[0, to, from, to, size, 7]))
    }

    fn read(parts: &[Vec<u8>]) -> JitDump {
        let mut dump = JitDump::default();
        let bytes = [&header(), &*parts.concat()].concat();
        assert_eq!(dump.take(&bytes, bytes.len() as u64).unwrap(), bytes.len() as u64);
        dump
    }

    /// One that has a function there.
    pub(crate) fn with_function(start: u64, size: u64, name: &[u8]) -> JitDump {
        read(&[load(start, size, name, &[])])
    }

    fn name(dump: &JitDump, address: u64) -> Option<String> {
        dump.find(address).map(|(_, name)| name.to_string())
    }

    #[test]
    fn finds_the_function() {
        let code = [0x90; 0x20];
        let dump = read(&[
            load(0x1000, 0x20, b"first", &code),
            record(2, b"source lines"),
            record(99, b"unknown"),
            load(0x1020, 0x20, b"caf\xe9 \xe2\x98\x95", &code),
            load(0x2000, 0, b"empty", &[]),
        ]);
        let found = dump.find(0x101f).unwrap();
        assert_eq!((found.0, &*found.1), (0x1000, "first"));
        assert_eq!(name(&dump, 0x1020).as_deref(), Some("caf\u{fffd} \u{2615}"));
        assert_eq!((name(&dump, 0xfff), name(&dump, 0x1040)), (None, None));
        assert_eq!(name(&dump, 0x2000), None);
    }

    #[test]
    fn a_file_that_names_no_machine_is_for_this_one() {
        let mut dump = JitDump::default();
        let bytes = [header_with(MAGIC, 1, 40, 0), load(0x1000, 0x10, b"py::work:app.py", &[])];
        dump.take(&bytes.concat(), 1000).unwrap();
        assert_eq!(name(&dump, 0x1000).as_deref(), Some("py::work:app.py"));
    }

    #[test]
    fn addresses_are_used_again() {
        let dump = read(&[
            load(0x1000, 0x40, b"old", &[]),
            load(0x3000, 0x10, b"wanderer", &[]),
            load(0x1010, 0x10, b"new", &[]),
            relocate(0x3000, 0x1020, 0x10),
        ]);
        assert_eq!(name(&dump, 0x1000).as_deref(), Some("old"));
        assert_eq!(name(&dump, 0x1010).as_deref(), Some("new"));
        assert_eq!(name(&dump, 0x1020).as_deref(), Some("wanderer"));
        assert_eq!(name(&dump, 0x3000), None);
    }

    #[test]
    fn nothing_is_read_behind_the_close() {
        let mut dump = read(&[load(0x1000, 0x10, b"before", &[]), record(CODE_CLOSE, &[])]);
        assert_eq!(dump.take(&load(0x1000, 0x10, b"after", &[]), 1000).unwrap(), 0);
        assert_eq!(name(&dump, 0x1000).as_deref(), Some("before"));
    }

    #[test]
    fn says_why_it_can_not_be_read() {
        let problem = |bytes: &[u8]| {
            JitDump::default().take(bytes, bytes.len() as u64).unwrap_err().to_string()
        };
        assert_eq!(problem(&[0x7f; 40]), "it does not begin like a jitdump");
        let swapped = header_with(MAGIC.swap_bytes(), 1 << 24, 40 << 24, MACHINE << 24);
        assert_eq!(problem(&swapped), "it is in the other byte order");
        assert!(problem(&header_with(MAGIC, 9, 40, MACHINE)).contains("version is 9"));
        assert!(problem(&header_with(MAGIC, 1, 40, 3)).contains("machine 3"));
        assert!(problem(&header_with(MAGIC, 1, 39, MACHINE)).contains("39 bytes"));
        let mut short = record(CODE_LOAD, &[]);
        short[4..8].copy_from_slice(&15_u32.to_ne_bytes());
        assert!(problem(&[header(), short].concat()).contains("15 bytes"));
    }

    #[test]
    fn a_problem_is_told_once() {
        let mut dump = JitDump::default();
        assert_eq!(dump.take_step(&[0x7f; 40], 40), Err(Problem::Magic));
        assert_eq!(dump.take_step(&header(), 40), Ok(0));
        assert!(dump.is_malformed() && dump.is_over());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..300), behind in 0_u64..1000) {
            let mut dump = JitDump::default();
            prop_assert!(dump.take(&bytes, behind).is_ok_and(|taken| taken == 0 || taken <= behind) || dump.next == Next::Header);
            let mut dump = read(&[]);
            if let Ok(taken) = dump.take(&bytes, behind) {
                prop_assert!(taken <= behind);
            }
        }
    }
}
