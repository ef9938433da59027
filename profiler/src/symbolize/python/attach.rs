//! Finding Python in files, and where its threads have their frames.
//!
//! Both are asked of the parser process of the thread that wants to know.

use std::{fmt, fs::File};

use profiler_common::python::Layout;
use profiler_profile::frame::Origin;
use profiler_python::{image::Image, offsets::Unsupported, slot::NoSlot};

use super::memory::{Process, ProcessMemory};
use crate::{
    parser::{Parser, Refusal},
    process::file::FileKey,
};

/// Why what runs in a process can't be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAttached {
    /// The interpreter is one that is not known.
    Unsupported(Unsupported),
    /// No thread has begun yet: ask again.
    NoThreads,
    /// The place where threads have their state was not found.
    NoSlot(NoSlot),
    /// The file or memory can't be read, or not now.
    Unread(Origin),
}

impl fmt::Display for NotAttached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(why) => why.fmt(f),
            Self::NoThreads => f.write_str("it has no threads yet"),
            Self::NoSlot(NoSlot::Implausible) => {
                f.write_str("its list of threads is not where it has to be")
            }
            Self::NoSlot(_) => f.write_str("the state of its threads was not found"),
            Self::Unread(why) => why.fmt(f),
        }
    }
}

/// The last 3.x whose frames have been walked. 3.15 keeps an outermost frame elsewhere, whose record is not on the stack.
const LAST_WALKED: u8 = 14;

/// Whether a file is a Python interpreter. The same answer holds for each file of the same content.
pub fn image(parser: &mut Parser, key: FileKey, file: &File) -> Result<Option<Image>, NotAttached> {
    match parser.python(key, file) {
        Ok(Ok(Some(image))) if image.offsets.version.minor() > Some(LAST_WALKED) => {
            Err(NotAttached::Unsupported(Unsupported::Version(image.offsets.version)))
        }
        Ok(image) => image.map_err(NotAttached::Unsupported),
        Err(Refusal::Barred) => Err(NotAttached::Unread(Origin::Barred)),
        Err(_) => Err(NotAttached::Unread(Origin::Unread)),
    }
}

/// What the frames of a process are walked by. The thread pointer is so many bytes above `pthread_self()`: none on
/// x86-64.
pub fn layout(
    parser: &mut Parser,
    process: Process<'_>,
    pointer_above: u64,
) -> Result<Layout, NotAttached> {
    let memory = ProcessMemory::open(parser, process).map_err(NotAttached::Unread)?;
    let asked = memory.ask(parser, process, |parser, file| {
        parser.python_slot(file, process.python, pointer_above)
    });
    match asked.map_err(NotAttached::Unread)? {
        Ok(slot) => Ok(process.python.offsets.layout(slot)),
        Err(NoSlot::NoThreads) => Err(NotAttached::NoThreads),
        Err(why) => Err(NotAttached::NoSlot(why)),
    }
}
