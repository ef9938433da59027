//! The reading end of the BPF ring buffer, woken by epoll.

use std::io;

use aya::maps::{MapData, RingBuf};
use tokio::io::{Interest, unix::AsyncFd};

/// The ring of samples.
pub struct SampleRing(AsyncFd<RingBuf<MapData>>);

impl SampleRing {
    /// Registers the ring with the runtime's epoll.
    pub fn register(ring: RingBuf<MapData>) -> io::Result<Self> {
        // SAFETY: the ring keeps its descriptor open, and the same, until it is dropped.
        let fd = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
        fd.map(Self).map_err(Into::into)
    }

    /// Waits until the eBPF program wakes us, which it does when much is unread.
    pub async fn woken(&mut self) -> io::Result<()> {
        self.0.readable_mut().await?.clear_ready();
        Ok(())
    }

    /// Copies samples behind those in `bytes`, until there are `limit` bytes or no more samples.
    /// Returns whether there may be more.
    pub fn read_into(&mut self, bytes: &mut Vec<u8>, limit: usize) -> bool {
        let ring = self.0.get_mut();
        while bytes.len() < limit {
            let Some(sample) = ring.next() else { return false };
            bytes.extend_from_slice(&sample);
        }
        true
    }
}
