//! One page, for whoever on this machine knows its address.
//!
//! Other users of the machine can reach the port, and so can pages of other sites by way of the browser. The path is
//! a secret, and a request has to name this machine as its host, so that no name of another site can lead here.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    peer,
    request::Request,
    secret::{self, is_equal},
};

/// How much of a request is read, and within what time.
const HEAD_BYTES: usize = 8 << 10;
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// How long a browser may take nothing.
const WRITE_WITHIN: Duration = Duration::from_secs(10);
/// A browser opens some at once; others are closed.
const CONNECTIONS: usize = 16;
/// After a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// What holds beside the policy of the page itself: no other page may show it in a frame, and nobody keeps it or learns
/// its address.
const HEADERS: &str = "\
Content-Security-Policy: default-src 'unsafe-inline'; frame-ancestors 'none'\r\n\
Cross-Origin-Resource-Policy: same-origin\r\n\
X-Content-Type-Options: nosniff\r\n\
Referrer-Policy: no-referrer\r\n\
Cache-Control: no-store\r\n\
Connection: close\r\n";

/// A page, and where it is served.
pub(super) struct Server {
    listener: TcpListener,
    site: Arc<Site>,
    port: u16,
}

struct Site {
    page: Vec<u8>,
    /// The user who may see it; whoever knows the path if `None`.
    only: Option<u32>,
    path: String,
    /// A path that leads to the other, once.
    ticket: Mutex<Option<String>>,
    /// What this machine is called in requests.
    hosts: [String; 2],
    connections: AtomicUsize,
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Page,
    /// Its headers only.
    Head,
    /// The path where it is.
    Moved,
    BadRequest,
    NotFound,
    /// It was meant for another host.
    Misdirected,
}

impl Server {
    /// Listens on a port that is free. Beside root only this user may see the page, if it is one.
    pub(super) fn bind(page: Vec<u8>, only: Option<u32>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let site = Site {
            page,
            only,
            path: secret_path()?,
            ticket: Mutex::default(),
            hosts: ["127.0.0.1", "localhost"].map(|name| format!("{name}:{port}")),
            connections: AtomicUsize::new(0),
        };
        Ok(Self { listener, site: Arc::new(site), port })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// What to type into a browser.
    pub(super) fn address(&self) -> String {
        format!("http://127.0.0.1:{}{}", self.port, self.site.path)
    }

    /// An address that leads to the page, once: for a command line, which other users may see. The last one counts.
    pub(super) fn ticket(&self) -> io::Result<String> {
        let path = secret_path()?;
        let address = format!("http://127.0.0.1:{}{path}", self.port);
        if let Ok(mut ticket) = self.site.ticket.lock() {
            *ticket = Some(path);
        }
        Ok(address)
    }

    /// Serves for ever.
    pub(super) fn run(&self) {
        loop {
            let Ok((stream, from)) = self.listener.accept() else {
                thread::sleep(PAUSE);
                continue;
            };
            if !self.site.is_for(|| peer::uid(from.port(), self.port)) {
                continue;
            }
            let site = Arc::clone(&self.site);
            if site.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
                site.connections.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let serve = move || {
                // Whoever has gone wants nothing.
                let _ = site.serve(&stream);
                site.connections.fetch_sub(1, Ordering::Relaxed);
            };
            if thread::Builder::new().spawn(serve).is_err() {
                self.site.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Site {
    /// Whether who has connected may see the page. Root may see everything.
    fn is_for(&self, uid: impl FnOnce() -> Option<u32>) -> bool {
        self.only.is_none_or(|only| uid().is_some_and(|uid| uid == only || uid == 0))
    }

    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(WRITE_WITHIN))?;
        let head = head_of(stream)?;
        let answer = head.as_deref().map_or(Answer::BadRequest, |head| self.answer(head));
        let (status, kind, body) = match answer {
            Answer::Page | Answer::Head => ("200 OK", "text/html; charset=utf-8", &*self.page),
            Answer::Moved => ("303 See Other", "text/plain", &b"see there\n"[..]),
            Answer::BadRequest => ("400 Bad Request", "text/plain", &b"bad request\n"[..]),
            Answer::NotFound => ("404 Not Found", "text/plain", &b"not found\n"[..]),
            Answer::Misdirected => {
                ("421 Misdirected Request", "text/plain", &b"another host\n"[..])
            }
        };
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n"
        )?;
        if answer == Answer::Moved {
            write!(stream, "Location: {}\r\n", self.path)?;
        }
        write!(stream, "{HEADERS}\r\n")?;
        if answer != Answer::Head {
            stream.write_all(body)?;
        }
        stream.shutdown(Shutdown::Write)?;
        // To close while something is unread would take back what was written.
        drain(stream)
    }

    /// The answer to a request with this head.
    fn answer(&self, head: &[u8]) -> Answer {
        let Some(Request { method, target, host }) = Request::parse(head) else {
            return Answer::BadRequest;
        };
        if !self.hosts.iter().any(|it| it.eq_ignore_ascii_case(host)) {
            return Answer::Misdirected;
        }
        match method {
            "GET" if is_equal(target, &self.path) => Answer::Page,
            "HEAD" if is_equal(target, &self.path) => Answer::Head,
            "GET" if self.takes_ticket(target) => Answer::Moved,
            _ => Answer::NotFound,
        }
    }

    /// Whether this is the ticket, which then is none any more.
    fn takes_ticket(&self, target: &str) -> bool {
        let taken =
            |ticket: &mut Option<String>| ticket.take_if(|it| is_equal(it, target)).is_some();
        self.ticket.lock().is_ok_and(|mut ticket| taken(&mut ticket))
    }
}

/// A path that nobody can guess.
fn secret_path() -> io::Result<String> {
    secret::new().map(|it| format!("/{it}"))
}

/// The head of a request, with the empty line behind it; `None` if it is too long.
fn head_of(mut stream: &TcpStream) -> io::Result<Option<Vec<u8>>> {
    let start = Instant::now();
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|it| it == b"\r\n\r\n") {
        if head.len() > HEAD_BYTES {
            return Ok(None);
        }
        let left = HEAD_WITHIN.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let read = stream.read(&mut piece)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(piece.get(..read).unwrap_or_default());
    }
    Ok(Some(head))
}

/// Reads what comes behind the head, as much and as long as a head may take.
fn drain(mut stream: &TcpStream) -> io::Result<()> {
    let start = Instant::now();
    let (mut piece, mut all) = ([0; 1024], 0);
    while all <= HEAD_BYTES {
        let left = HEAD_WITHIN.saturating_sub(start.elapsed());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => break,
            read => all += read,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_for_who_knows_the_address() {
        let server = Server::bind(b"page".to_vec(), Some(7)).unwrap();
        let (site, port) = (&server.site, server.port());
        let path = &site.path;
        assert_eq!(path.len(), 1 + secret::DIGITS);
        assert_ne!(Server::bind(Vec::new(), None).unwrap().site.path, *path, "it is a secret");
        let answer = |method: &str, path: &str, host: &str| {
            let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            site.answer(head.as_bytes())
        };
        let (by_name, by_number) = (format!("LocalHost:{port}"), format!("127.0.0.1:{port}"));
        for host in [&by_name, &by_number] {
            assert_eq!(answer("GET", path, host), Answer::Page);
            assert_eq!(answer("HEAD", path, host), Answer::Head);
            for (method, path) in [
                ("POST", &**path),
                ("GET", "/"),
                ("GET", "/favicon.ico"),
                ("GET", &path[..path.len() - 1]),
                ("GET", &format!("{path}/")),
                ("GET", &path.to_uppercase().replace(|it: char| it.is_ascii_digit(), "0")),
            ] {
                assert_eq!(answer(method, path, host), Answer::NotFound, "{method} {path}");
            }
        }
        for host in ["evil.example", "127.0.0.1", "localhost:1", "", "127.0.0.1.evil.example"] {
            assert_eq!(answer("GET", path, host), Answer::Misdirected, "{host}");
        }
        assert_eq!(site.answer(b"GET"), Answer::BadRequest);
        assert!(site.is_for(|| Some(7)) && site.is_for(|| Some(0)));
        assert!(!site.is_for(|| Some(8)) && !site.is_for(|| None));
        let ticket = server.ticket().unwrap();
        let ticket = ticket.strip_prefix(&format!("http://{by_number}")).unwrap();
        assert_eq!(answer("GET", ticket, "evil.example"), Answer::Misdirected);
        assert_eq!(answer("HEAD", ticket, &by_number), Answer::NotFound);
        assert_eq!(answer("GET", ticket, &by_number), Answer::Moved);
        assert_eq!(answer("GET", ticket, &by_number), Answer::NotFound);
        assert_eq!(answer("GET", path, &by_number), Answer::Page);
    }
}
