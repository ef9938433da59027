//! The processes of `-p` and the threads of `-t`: when they have all ended, so has the run.

use std::{
    fmt,
    fs::File,
    io::Read as _,
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::{
    error::{Error, Result},
    procfs::stat::Stat,
};

/// Processes and threads that were asked for and have not ended, each held by a descriptor, so that none is taken for
/// a later one with its id.
#[derive(Debug)]
pub struct Watched(Vec<(Id, OwnedFd)>);

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    /// A process, with all its threads.
    Process(u32),
    /// A thread.
    Thread(u32),
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(id) => write!(f, "process {id}"),
            Self::Thread(id) => write!(f, "thread {id}"),
        }
    }
}

impl Watched {
    /// Opens these processes and threads. Needs Linux 5.3.
    pub fn open(pids: &[u32], tids: &[u32]) -> Result<Self> {
        let pids = pids.iter().map(|id| Id::Process(*id));
        let all = pids.chain(tids.iter().map(|id| Id::Thread(*id)));
        all.map(|id| Ok((id, id.open()?))).collect::<Result<_>>().map(Self)
    }

    /// What has ended since the last look.
    pub fn take_ended(&mut self) -> Vec<Id> {
        self.0.extract_if(.., |(id, fd)| id.has_ended(fd)).map(|(id, _)| id).collect()
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Id {
    fn open(self) -> Result<OwnedFd> {
        let (call, opened) = match self {
            Self::Process(id) => {
                let pid = i32::try_from(id).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH);
                ("pidfd_open of", pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())))
            }
            // There are descriptors of threads since Linux 6.9; folders do on all.
            Self::Thread(id) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                ("cannot open /proc of", openat(CWD, format!("/proc/{id}"), flags, Mode::empty()))
            }
        };
        opened.map_err(|error| match (self, error) {
            (Self::Process(id), Errno::SRCH) => {
                Error::Usage(format!("-p {id}: there is no process with this id"))
            }
            (Self::Thread(id), Errno::NOENT) => {
                Error::Usage(format!("-t {id}: there is no thread with this id"))
            }
            _ => Error::system(format!("{call} {self}"), error),
        })
    }

    fn has_ended(self, fd: &OwnedFd) -> bool {
        match self {
            // Its descriptor is readable then.
            Self::Process(_) => {
                let mut fds = [PollFd::new(fd, PollFlags::IN)];
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
            }
            Self::Thread(_) => {
                let stat =
                    openat(fd.as_fd(), "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                let mut text = Vec::new();
                match stat.map(|it| File::from(it).read_to_end(&mut text)) {
                    Ok(Ok(_)) => Stat::parse(&text).is_some_and(|it| it.has_ended()),
                    Ok(Err(error)) => error.raw_os_error() == Some(libc::ESRCH),
                    Err(error) => matches!(error, Errno::NOENT | Errno::SRCH),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        process::Command,
        thread,
        time::{Duration, Instant},
    };

    #[test]
    fn a_process_is_watched_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut watched = Watched::open(&[child.id(), std::process::id()], &[]).unwrap();
        assert!(watched.take_ended().is_empty());
        child.kill().unwrap();
        // Also before it is waited for.
        let start = Instant::now();
        let ended = loop {
            let ended = watched.take_ended();
            if !ended.is_empty() || start.elapsed() > Duration::from_secs(60) {
                break ended;
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(ended, [Id::Process(child.id())]);
        assert!(!watched.is_empty());
        child.wait().unwrap();
        for none in [Watched::open(&[u32::MAX], &[]), Watched::open(&[], &[u32::MAX])] {
            assert!(matches!(none, Err(Error::Usage(_))));
        }
    }

    #[test]
    fn a_thread_is_watched_until_it_ends() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        let mut watched = Watched::open(&[], &[tid, std::process::id()]).unwrap();
        assert!(watched.take_ended().is_empty());
        drop(end);
        thread.join().unwrap();
        // The kernel wakes who joins a thread a moment before that has ended.
        let ended = loop {
            let ended = watched.take_ended();
            if !ended.is_empty() {
                break ended;
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!((ended, watched.is_empty()), (vec![Id::Thread(tid)], false));
    }
}
