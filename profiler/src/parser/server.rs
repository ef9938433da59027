//! The parser process: gives up what it does not need, then answers requests until the agent is gone.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    panic,
};

use rustix::net::RecvFlags;

use super::{
    front_door::FrontDoor,
    message::{Hello, encoded},
    sandbox,
    wire::{self, Frame, Incoming},
};
use crate::{
    realtime::{self, Priority, Role},
    sigbus,
};

/// Most bytes of a request.
const MAX_REQUEST_BYTES: usize = 1 << 20;

/// Runs this process as a parser with this memory limit, until it ends. With a role it keeps the real-time
/// budget of the thread that asks, which lends it its priority.
pub(super) fn run(memory_bytes: u64, role: Option<Role>) -> io::Result<()> {
    become_alone();
    // The agent has the right to set priorities; this process will have none.
    let mut priority = role.filter(|_| realtime::allow().is_ok()).and_then(Priority::lent);
    let lacks = sandbox::enter(memory_bytes);
    let stdin = io::stdin();
    let socket = stdin.as_fd();
    let hello = encoded(&Hello { lacks, keeps_budget: priority.is_some() });
    wire::send(socket, &[&hello.ok_or(io::ErrorKind::InvalidData)?], &[])?;
    // The message of a panic would go nowhere, and a backtrace would open files.
    panic::set_hook(Box::new(|_| {}));
    let mut door = FrontDoor::within(memory_bytes);
    while let Some(Incoming { bytes, files }) = receive(socket)? {
        if let Some(priority) = &mut priority {
            priority.renew();
        }
        #[cfg(test)]
        if let Some(super::message::Request::Misbehave(how)) = super::message::decoded(&bytes)
            && how != super::message::Misbehaviour::Panic
        {
            misbehave(socket, how)?;
            continue;
        }
        let reply = door.answer(&bytes, files)?;
        let parts: Vec<&[u8]> = reply.iter().map(Vec::as_slice).collect();
        wire::send(socket, &parts, &[])?;
    }
    Ok(())
}

/// Lets go of what it inherited from the agent, and of the terminal's signals.
fn become_alone() {
    sandbox::set_name();
    // The agent's own descriptors were closed by exec; this is for those that it inherited itself.
    // SAFETY: nothing here has opened a file yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGPIPE,
    ] {
        // The agent gets them too, and decides what they mean.
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // A file that shrinks while it is read must not end the process.
    let _ = sigbus::survive();
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Incoming>> {
    let mut incoming = Incoming::default();
    loop {
        match incoming.frame(socket, MAX_REQUEST_BYTES, true, RecvFlags::empty())? {
            Frame::More => {}
            Frame::Last => return Ok(Some(incoming)),
            Frame::End => return Ok(None),
        }
    }
}

#[cfg(test)]
#[allow(clippy::panic, unconditional_recursion)]
fn misbehave(socket: BorrowedFd<'_>, how: super::message::Misbehaviour) -> io::Result<()> {
    use super::message::Misbehaviour;
    fn deeper(depth: u64) -> u64 {
        std::hint::black_box([depth; 64]).iter().sum::<u64>() + deeper(depth + 1)
    }
    match how {
        Misbehaviour::Spin => loop {
            std::hint::black_box(());
        },
        Misbehaviour::Grow => {
            let mut all = Vec::new();
            loop {
                all.push(vec![1_u8; 1 << 20]);
            }
        }
        Misbehaviour::Overflow => std::process::exit(i32::from(deeper(0) == 0)),
        Misbehaviour::Nonsense => wire::send(socket, &[&[0xff; 100]], &[]),
        Misbehaviour::Endless => loop {
            wire::send(socket, &[&vec![0; 1 << 20]], &[])?;
        },
        Misbehaviour::Panic => Ok(()),
        Misbehaviour::Die => std::process::abort(),
    }
}
