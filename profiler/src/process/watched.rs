//! The processes of `-p`: when they have all ended, so has the run.

use std::os::fd::OwnedFd;

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::error::{Error, Result};

/// Processes that were asked for and have not ended, each held by a descriptor, so that none is taken for a
/// later one with its id.
#[derive(Debug)]
pub struct Watched(Vec<(u32, OwnedFd)>);

impl Watched {
    /// Opens these processes. Needs Linux 5.3.
    pub fn open(pids: &[u32]) -> Result<Self> {
        let open = |&id: &u32| {
            let pid = i32::try_from(id).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH);
            match pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())) {
                Ok(fd) => Ok((id, fd)),
                Err(Errno::SRCH) => {
                    Err(Error::Usage(format!("-p {id}: there is no process with this id")))
                }
                Err(error) => Err(Error::system(format!("pidfd_open of process {id}"), error)),
            }
        };
        pids.iter().map(open).collect::<Result<_>>().map(Self)
    }

    /// The processes that have ended since the last look, with all their threads.
    pub fn take_ended(&mut self) -> Vec<u32> {
        self.0.extract_if(.., |(_, fd)| has_ended(fd)).map(|(pid, _)| pid).collect()
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A descriptor of a process is readable when the process has ended.
fn has_ended(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
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
        let mut watched = Watched::open(&[child.id(), std::process::id()]).unwrap();
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
        assert_eq!(ended, [child.id()]);
        assert!(!watched.is_empty());
        child.wait().unwrap();
        assert!(matches!(Watched::open(&[u32::MAX]), Err(Error::Usage(_))));
    }
}
