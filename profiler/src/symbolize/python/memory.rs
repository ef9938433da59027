//! The memory of a process that runs Python: opened here, and read by the parser process.

use std::{
    fs::File,
    io::ErrorKind,
    time::{Duration, Instant},
};

use profiler_profile::frame::Origin;
use profiler_python::image::Loaded;

use super::super::owner::Owner;
use crate::parser::{Asked, Failure, Parser, Subject};

/// How long opening a process's memory may take: a program that is being executed may hold it up.
const OPENED_WITHIN: Duration = Duration::from_secs(2);
/// How often the parser process may end at the memory of a process, the first time maybe by another one's fault.
const ATTEMPTS: usize = 2;

/// An answer that takes longer is one too many: pages of the memory may be a file system's of its user, who could hold up
/// the names of all others, each time for a little less than the budget.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// A process that runs Python.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// Its pid.
    pub tgid: u32,
    /// A number that no other process has had, nor the same one before it called exec.
    pub image: u64,
    /// The interpreter.
    pub python: &'a Loaded,
}

/// The open memory of a process.
pub(super) struct ProcessMemory {
    file: File,
    uid: u32,
}

impl ProcessMemory {
    /// Opens it, or says why not: [`Origin::Unread`] if it may be possible later.
    pub(super) fn open(parser: &mut Parser, process: Process<'_>) -> Result<Self, Origin> {
        let Process { tgid, image, .. } = process;
        let uid = Owner::of(tgid).ok_or(Origin::ProcessGone)?.uid;
        if !parser.may_parse(Subject::Memory(image), uid) {
            return Err(Origin::Barred);
        }
        let path = format!("/proc/{tgid}/mem");
        let open = move || File::open(path);
        match parser.ask_file_system(uid, OPENED_WITHIN, || name(tgid), open) {
            Some(Ok(file)) => Ok(Self { file, uid }),
            Some(Err(error))
                if error.kind() == ErrorKind::NotFound
                    || error.raw_os_error() == Some(libc::ESRCH) =>
            {
                Err(Origin::ProcessGone)
            }
            _ => Err(Origin::Unread),
        }
    }

    /// Asks the parser process about it. A process whose memory ends it is given up, and so is one that takes too
    /// long: its user may have pages there that a file system of their own has to supply.
    pub(super) fn ask<T>(
        &self,
        parser: &mut Parser,
        process: Process<'_>,
        question: impl Fn(&mut Parser, &File) -> Asked<T>,
    ) -> Result<T, Origin> {
        let start = Instant::now();
        for attempt in 1..=ATTEMPTS {
            match question(parser, &self.file) {
                Ok(Ok(answer)) => {
                    if start.elapsed() > ANSWERED_WITHIN {
                        let (what, name) = (Subject::Memory(process.image), name(process.tgid));
                        parser.give_up(what, self.uid, start.elapsed(), Failure::Slow, &name);
                    }
                    return Ok(answer);
                }
                Ok(Err(Failure::Ended(_))) if attempt < ATTEMPTS => {}
                Ok(Err(failure)) => {
                    let (what, name) = (Subject::Memory(process.image), name(process.tgid));
                    parser.give_up(what, self.uid, start.elapsed(), failure, &name);
                    return Err(Origin::Barred);
                }
                Err(_) => return Err(Origin::Unread),
            }
        }
        Err(Origin::Unread)
    }
}

fn name(tgid: u32) -> String {
    format!("the memory of process {tgid}")
}
