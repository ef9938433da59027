//! What a browser asks for, as far as one page needs it: RFC 9112.

/// A request for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    /// What is asked for, such as `/`.
    pub(super) target: &'a str,
    /// Whom it was sent to, with the port.
    pub(super) host: &'a str,
}

impl<'a> Request<'a> {
    /// From its head, up to the empty line; `None` if it is no request, or does not name one host.
    pub(super) fn parse(head: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(head).ok()?;
        let mut lines = text.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
            return None;
        }
        let mut hosts = Vec::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            if name.eq_ignore_ascii_case("host") {
                hosts.push(value.trim_matches([' ', '\t']));
            }
        }
        let [host] = hosts.as_slice() else { return None };
        Some(Self { method, target, host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_names_one_host() {
        let head = b"GET /a HTTP/1.1\r\nAccept: */*\r\nhOsT: \tlocalhost:80 \r\n\r\n";
        let expected = Request { method: "GET", target: "/a", host: "localhost:80" };
        assert_eq!(Request::parse(head), Some(expected));
        for bad in [
            &b""[..],
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost\r\n\r\n",
            b"GET / HTTP/2\r\nHost: a\r\n\r\n",
            b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /\r\nHost: a\r\n\r\n",
            b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert_eq!(Request::parse(bad), None, "{}", bad.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_none(head in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::parse(&head);
        }
    }
}
