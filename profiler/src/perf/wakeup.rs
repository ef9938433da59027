//! One wake-up for many events.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    pin::pin,
    time::Duration,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};

/// An epoll of events. One that is closed leaves it by itself.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

/// Wakes when an event of an epoll does.
#[derive(Debug)]
pub struct Wakeup {
    epoll: AsyncFd<OwnedFd>,
    /// The events that have woken us, and do no more until they are armed again.
    disarmed: Vec<RawFd>,
}

/// Once, until it is armed again.
const INTEREST: i32 = libc::EPOLLIN | libc::EPOLLET | libc::EPOLLONESHOT;
/// Events that are taken out of the epoll at once.
const TAKEN: i32 = 64;

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
        control(&self.0, libc::EPOLL_CTL_ADD, event.as_raw_fd())
    }

    /// Registers with the runtime's epoll. Events that are added later wake, too.
    pub(super) fn wakeup(&self) -> io::Result<Wakeup> {
        let same = self.0.try_clone()?;
        // SAFETY: the descriptor is open until it is dropped with its registration.
        let fd = unsafe { AsyncFd::register_with_interest(same, Interest::READABLE) };
        fd.map(|epoll| Wakeup { epoll, disarmed: Vec::new() }).map_err(Into::into)
    }
}

impl Wakeup {
    /// Waits until an event wakes us. It does not do so again before it is [armed](Self::arm): each
    /// record would, and who reads for one reads all.
    pub async fn woken(&mut self) -> io::Result<()> {
        self.epoll.readable_mut().await?.clear_ready();
        loop {
            let mut taken = [libc::epoll_event { events: 0, u64: 0 }; TAKEN as usize];
            let epoll = self.epoll.get_ref().as_raw_fd();
            // SAFETY: there is room for so many events.
            let count = unsafe { libc::epoll_wait(epoll, taken.as_mut_ptr(), TAKEN, 0) };
            // What a dead event says has no end.
            let is_dead = |it: &libc::epoll_event| it.events & libc::EPOLLHUP.cast_unsigned() != 0;
            let living =
                taken.iter().take(usize::try_from(count).unwrap_or(0)).filter(|it| !is_dead(it));
            self.disarmed.extend(living.filter_map(|it| RawFd::try_from(it.u64).ok()));
            if count < TAKEN {
                break;
            }
        }
        Ok(())
    }

    /// Lets this time pass, in which events wake us no more than once each.
    pub async fn gather(&mut self, time: Duration) {
        let mut end = pin!(sleep(time));
        loop {
            tokio::select! {
                biased;
                () = &mut end => return,
                // Should epoll fail, this waits for the end.
                Ok(()) = self.woken() => {}
            }
        }
    }

    /// From now on all events wake us again; those that have something to read by now, at once.
    pub fn arm(&mut self) {
        for event in self.disarmed.drain(..) {
            // One that was closed meanwhile is no longer in the epoll.
            drop(control(self.epoll.get_ref(), libc::EPOLL_CTL_MOD, event));
        }
    }
}

fn control(epoll: &OwnedFd, what: i32, event: RawFd) -> io::Result<()> {
    let data = u64::try_from(event).unwrap_or(u64::MAX);
    let mut interest = libc::epoll_event { events: INTEREST.cast_unsigned(), u64: data };
    // SAFETY: `interest` outlives the call, which checks the descriptors.
    if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), what, event, &raw mut interest) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
