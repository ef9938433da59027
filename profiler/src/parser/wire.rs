//! Messages over a packet socket: bytes of any length, cut into frames; descriptors come with the first frame.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

/// Bytes of a message per frame. A socket buffers more than one frame before the sender has to wait.
const FRAME_BYTES: usize = 64 << 10;
/// Descriptors with one message, at most.
pub(super) const MAX_FILES: usize = 4;

/// The first byte of a frame: whether another one follows.
const LAST: u8 = 0;
const MORE: u8 = 1;

/// Sends a message that consists of several parts. Blocks while the reader does not read.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    parts: &[&[u8]],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut left: usize = parts.iter().map(|part| part.len()).sum();
    let mut parts = parts.iter().copied();
    let mut part: &[u8] = &[];
    let mut files = files;
    loop {
        let flag = [if left > FRAME_BYTES { MORE } else { LAST }];
        let mut frame = vec![IoSlice::new(&flag)];
        let mut room = FRAME_BYTES.min(left);
        left -= room;
        while room > 0 {
            if part.is_empty() {
                let Some(next) = parts.next() else { break };
                part = next;
            }
            let (now, later) = part.split_at(part.len().min(room));
            room -= now.len();
            part = later;
            frame.push(IoSlice::new(now));
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Errno::INVAL.into());
        }
        // A reader that is gone is an error, not a signal.
        rustix::io::retry_on_intr(|| sendmsg(socket, &frame, &mut control, SendFlags::NOSIGNAL))?;
        files = &[];
        if left == 0 {
            return Ok(());
        }
    }
}

/// A message in the making.
#[derive(Default)]
pub(super) struct Incoming {
    pub(super) bytes: Vec<u8>,
    pub(super) files: Vec<OwnedFd>,
}

/// What one frame has brought.
pub(super) enum Frame {
    More,
    Last,
    /// Nobody is there any more.
    End,
}

impl Incoming {
    /// Takes the next frame of a message of at most `limit` bytes. Without `files`, descriptors are left
    /// out: the kernel closes them.
    pub(super) fn frame(
        &mut self,
        socket: impl AsFd,
        limit: usize,
        with_files: bool,
        flags: RecvFlags,
    ) -> io::Result<Frame> {
        let mut flag = [0];
        let filled = self.bytes.len();
        if filled > limit {
            return Err(Errno::MSGSIZE.into());
        }
        self.bytes.resize(filled + FRAME_BYTES, 0);
        let place = self.bytes.get_mut(filled..).unwrap_or_default();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = if with_files {
            RecvAncillaryBuffer::new(&mut space)
        } else {
            RecvAncillaryBuffer::default()
        };
        let mut parts = [IoSliceMut::new(&mut flag), IoSliceMut::new(place)];
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(&socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)
        });
        let bytes = received.as_ref().map_or(0, |it| it.bytes);
        self.bytes.truncate(filled + bytes.saturating_sub(1));
        received?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        // No frame is without its first byte.
        Ok(match (bytes, flag) {
            (0, _) => Frame::End,
            (_, [LAST]) if self.bytes.len() <= limit => Frame::Last,
            (_, [MORE]) if bytes > FRAME_BYTES => Frame::More,
            _ => return Err(Errno::PROTO.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::{fs::File, thread};

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn receive(socket: &OwnedFd, limit: usize) -> io::Result<Incoming> {
        let mut incoming = Incoming::default();
        loop {
            match incoming.frame(socket, limit, true, RecvFlags::empty())? {
                Frame::More => {}
                Frame::Last => return Ok(incoming),
                Frame::End => return Err(Errno::PIPE.into()),
            }
        }
    }

    #[test]
    fn a_message_of_any_length_arrives_whole() {
        for bytes in [0, 1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 10 * FRAME_BYTES] {
            let (here, there) = pair();
            let text: Vec<u8> = (0..=250).cycle().take(bytes).collect();
            let sent = text.clone();
            let sender = thread::spawn(move || {
                let (one, other) = sent.split_at(bytes / 3);
                send(here.as_fd(), &[one, other], &[])
            });
            let incoming = receive(&there, bytes).unwrap();
            assert!(incoming.bytes == text, "{bytes}");
            sender.join().unwrap().unwrap();
        }
    }

    #[test]
    fn a_message_beyond_the_limit_is_refused() {
        let (here, there) = pair();
        let sender = thread::spawn(move || send(here.as_fd(), &[&vec![7; 3 * FRAME_BYTES]], &[]));
        assert!(receive(&there, 2 * FRAME_BYTES - 1).is_err());
        drop(there);
        let _ = sender.join().unwrap();
    }

    #[test]
    fn descriptors_come_with_a_message() {
        let (here, there) = pair();
        let file = File::open("/proc/self/exe").unwrap();
        send(here.as_fd(), &[b"two"], &[file.as_fd(), file.as_fd()]).unwrap();
        let incoming = receive(&there, 3).unwrap();
        assert_eq!((&*incoming.bytes, incoming.files.len()), (&b"two"[..], 2));
        let same = |it: &OwnedFd| rustix::fs::fstat(it).unwrap().st_ino;
        assert!(
            incoming.files.iter().all(|it| same(it) == rustix::fs::fstat(&file).unwrap().st_ino)
        );
    }

    #[test]
    fn an_end_is_no_message() {
        let (here, there) = pair();
        drop(here);
        let mut incoming = Incoming::default();
        let frame = incoming.frame(&there, 1, true, RecvFlags::empty());
        assert!(matches!(frame, Ok(Frame::End)));
        assert!(send(there.as_fd(), &[b"x"], &[]).is_err());
    }
}
