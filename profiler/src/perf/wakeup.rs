//! One wake-up for many events.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// An epoll of events. One that is closed leaves it by itself.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

/// Wakes when an event of an epoll does.
#[derive(Debug)]
pub struct Wakeup(AsyncFd<OwnedFd>);

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no preconditions.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wakes for this event, too, each time that the kernel has filled its ring to the watermark.
    pub(super) fn add(&self, event: &OwnedFd) -> io::Result<()> {
        // Once for each time: what a dead event says has no end.
        let events = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
        let mut interest = libc::epoll_event { events, u64: 0 };
        let (epoll, event) = (self.0.as_raw_fd(), event.as_raw_fd());
        // SAFETY: both descriptors are open, and `interest` outlives the call.
        if unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, event, &raw mut interest) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Registers with the runtime's epoll. Events that are added later wake, too.
    pub(super) fn wakeup(&self) -> io::Result<Wakeup> {
        let same = self.0.try_clone()?;
        // SAFETY: the descriptor is open until it is dropped with its registration.
        let fd = unsafe { AsyncFd::register_with_interest(same, Interest::READABLE) };
        fd.map(Wakeup).map_err(Into::into)
    }
}

impl Wakeup {
    /// Waits until an event wakes us. Which one is not asked, since all are read; an epoll in an epoll
    /// wakes again for one that was not taken out of it:
    /// <https://github.com/torvalds/linux/blob/v6.12/fs/eventpoll.c>, `ep_poll_callback`.
    pub async fn woken(&mut self) -> io::Result<()> {
        self.0.readable_mut().await?.clear_ready();
        Ok(())
    }
}
