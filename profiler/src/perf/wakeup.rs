//! One wake-up for many events.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
};

use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, EventData, EventFlags},
};
use tokio::io::{Interest, unix::AsyncFd};

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
const INTEREST: EventFlags = EventFlags::IN.union(EventFlags::ET).union(EventFlags::ONESHOT);
/// Events that are taken out of the epoll at once.
const TAKEN: usize = 64;

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Wakes for this event, too, each time that the kernel has filled its ring to the watermark.
    pub(super) fn add(&self, event: &OwnedFd) -> io::Result<()> {
        Ok(epoll::add(&self.0, event, data(event.as_raw_fd()), INTEREST)?)
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
            let mut taken = [MaybeUninit::uninit(); TAKEN];
            let at_once = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
            let Ok((taken, _)) = epoll::wait(self.epoll.get_ref(), &mut taken, at_once) else {
                return Ok(());
            };
            // What a dead event says has no end.
            let living = taken.iter().filter(|it| !{ it.flags }.contains(EventFlags::HUP));
            self.disarmed.extend(living.filter_map(|it| RawFd::try_from({ it.data }.u64()).ok()));
            if taken.len() < TAKEN {
                return Ok(());
            }
        }
    }

    /// From now on all events wake us again; those that have something to read by now, at once.
    pub fn arm(&mut self) {
        for event in self.disarmed.drain(..) {
            // SAFETY: the descriptor may be closed by now, or be that of another file. Neither is in the epoll,
            // so the kernel refuses it, and nothing else is done with it.
            let source = unsafe { BorrowedFd::borrow_raw(event) };
            let _ = epoll::modify(self.epoll.get_ref(), source, data(event), INTEREST);
        }
    }
}

/// By what an event is known when it wakes.
fn data(event: RawFd) -> EventData {
    EventData::new_u64(u64::try_from(event).unwrap_or(u64::MAX))
}
