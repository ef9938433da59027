//! A socket that listens, and what to say where it can't be had.

use std::{
    io,
    net::{SocketAddr, TcpListener},
};

use super::port;

/// Listens. The address has the port that it was given, where it asked for any.
pub(crate) fn listen(at: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(at)?;
    let at = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    Ok((listener, at))
}

/// What to do where a socket can't be had.
pub(crate) fn advice(error: &io::Error, at: SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let who = port::owner(at.port());
            let who = who.map_or_else(String::new, |it| format!("{it} listens there; "));
            format!("{who}--listen 127.0.0.1:0 takes any port that is free")
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: `ip address` lists those it has".into()
        }
        _ => String::new(),
    }
}
