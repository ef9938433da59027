//! A store on loopback that does what a test says.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, Receiver},
    thread,
};

/// What it does with a request.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    /// Answers with these bytes, and closes the connection.
    Answer(Vec<u8>),
    /// Answers with these, and then with the others until nobody takes any.
    Endless(&'static [u8], &'static [u8]),
    /// Says nothing, and keeps the connection.
    Hang,
    /// Closes the connection without a word.
    Close,
}

/// A request that came.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

/// An answer with this status, these further headers and this body.
pub(super) fn answer(status: &str, headers: &str, body: &[u8]) -> Deed {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n");
    Deed::Answer([head.as_bytes(), body].concat())
}

/// Listens, and does one after another; its address, and what came.
pub(super) fn start(deeds: Vec<Deed>) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for deed in deeds {
            let Ok((stream, _)) = listener.accept() else { return };
            let Some(request) = read(&stream) else { continue };
            if sender.send(request).is_err() {
                return;
            }
            match deed {
                Deed::Answer(bytes) => drop((&stream).write_all(&bytes)),
                Deed::Endless(first, then) => {
                    let _ = (&stream).write_all(first);
                    while (&stream).write_all(then).is_ok() {}
                }
                Deed::Hang => kept.push(stream),
                Deed::Close => drop(stream),
            }
        }
        // Until the test has ended.
        drop((thread::park(), kept));
    });
    (address, requests)
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head
        .lines()
        .find_map(|it| it.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length?];
    reader.read_exact(&mut body).ok()?;
    Some(Request { head, body })
}
