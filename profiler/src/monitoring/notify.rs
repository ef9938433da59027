//! What systemd is told of a service: that it is ready, alive, and about to stop.
//!
//! Protocol: `sd_notify(3)`, a datagram with a line for each fact to the socket that `NOTIFY_SOCKET` names.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::{Duration, Instant},
};

use crate::stderr;

/// Who tells it.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    to: SocketAddr,
    /// How often it wants to be told that we are alive, and when that was last.
    watchdog: Option<(Duration, Option<Instant>)>,
}

impl Notifier {
    /// By what systemd says in the environment; `None` if it is not there, or can't be told, which is said.
    #[must_use]
    pub fn find() -> Option<Self> {
        let name = env::var_os("NOTIFY_SOCKET")?;
        let of = |name| env::var(name).ok();
        let watchdog = interval(of("WATCHDOG_USEC"), of("WATCHDOG_PID"), std::process::id());
        match Self::open(&name, watchdog) {
            Ok(notifier) => Some(notifier),
            Err(error) => {
                let name = name.to_string_lossy();
                stderr::notice(&format!(
                    "systemd can't be told anything: NOTIFY_SOCKET={name}: {error}"
                ));
                None
            }
        }
    }

    fn open(name: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let to = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(OsString::from(name))?,
            _ => return Err(io::Error::other("neither a path nor an abstract name")),
        };
        let socket = UnixDatagram::unbound()?;
        // The reader of the ring must not wait for systemd.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, to, watchdog: watchdog.map(|it| (it, None)) })
    }

    /// Samples are taken.
    pub(crate) fn ready(&mut self) {
        self.tell("READY=1");
    }

    /// The reader has gone round: tells so, if that is due.
    pub(crate) fn went_round(&mut self, now: Instant) {
        if let Some((every, last)) = &mut self.watchdog
            && last.is_none_or(|last| now.duration_since(last) >= *every)
        {
            *last = Some(now);
            self.tell("WATCHDOG=1");
        }
    }

    /// The run ends.
    pub(crate) fn stopping(&mut self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, fact: &str) {
        if let Err(error) = self.socket.send_to_addr(fact.as_bytes(), &self.to) {
            tracing::debug!("systemd was not told {fact}: {error}");
        }
    }
}

/// Half of the time within which the watchdog wants to be told, if it is meant for this process.
fn interval(usec: Option<String>, of: Option<String>, pid: u32) -> Option<Duration> {
    let is_ours = of.is_none_or(|it| it.parse() == Ok(pid));
    let usec = usec?.parse().ok().filter(|usec| *usec > 0 && is_ours)?;
    Some(Duration::from_micros(usec) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_service_tells_when_it_is_ready_alive_and_stopping() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("@profiler-test-{}", std::process::id());
        let of_name = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        for (socket, name) in [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str()),
            (UnixDatagram::bind_addr(&of_name).unwrap(), OsStr::new(&name)),
        ] {
            let mut notifier = Notifier::open(name, Some(Duration::from_secs(10))).unwrap();
            notifier.ready();
            assert_eq!(received(&socket), "READY=1");
            let start = Instant::now();
            notifier.went_round(start);
            assert_eq!(received(&socket), "WATCHDOG=1");
            // Not before it is due.
            notifier.went_round(start + Duration::from_secs(9));
            notifier.stopping();
            assert_eq!(received(&socket), "STOPPING=1");
            notifier.went_round(start + Duration::from_secs(10));
            assert_eq!(received(&socket), "WATCHDOG=1");
        }
        assert!(Notifier::open(OsStr::new("vsock:2:1"), None).is_err());
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_ours() {
        let of = |usec: &str, pid: Option<&str>| {
            interval(Some(usec.into()), pid.map(Into::into), 7).map(|it| it.as_micros())
        };
        assert_eq!(of("3000000", Some("7")), Some(1_500_000));
        assert_eq!(of("3000000", None), Some(1_500_000));
        assert_eq!((of("3000000", Some("8")), of("0", None), of("x", None)), (None, None, None));
        assert_eq!(interval(None, None, 7), None);
    }
}
