//! Who may see what is sampled.
//!
//! Other users of the machine can reach the port, and so can pages of other sites by way of the browser. So a request
//! needs the token: in the address that was printed, or in the cookie that this leaves. It has to name this machine as
//! its host, so that no name of another site can lead here (DNS rebinding), and must not come from a page of another site.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Mutex,
};

use hyper::{
    HeaderMap, StatusCode, Uri,
    header::{COOKIE, HOST, HeaderName, ORIGIN},
};

use super::asked::value;
use crate::viewer::secret::{self, is_equal};

/// What browsers say of where a request comes from: <https://www.w3.org/TR/fetch-metadata/>.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The secrets, and what this machine is called.
pub(super) struct Access {
    token: String,
    /// What takes the place of the token once.
    ticket: Mutex<Option<String>>,
    /// The cookie's name: cookies of all ports of a host are in one pot.
    cookie: String,
    host: Host,
}

/// What we are called, and by whom we may be asked.
pub(crate) struct Host {
    is_loopback: bool,
    machine: String,
}

/// What a request may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// What it asks for, and this cookie if there is one.
    Granted(Option<String>),
    /// Nothing, for this reason.
    Refused(StatusCode),
}

impl Access {
    /// New secrets for what listens at this address.
    pub(super) fn new(at: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            token: secret::new()?,
            ticket: Mutex::default(),
            cookie: format!("profiler-{}", at.port()),
            host: Host::new(at),
        })
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// A ticket; the last one counts.
    pub(super) fn new_ticket(&self) -> io::Result<String> {
        let new = secret::new()?;
        if let Ok(mut ticket) = self.ticket.lock() {
            *ticket = Some(new.clone());
        }
        Ok(new)
    }

    /// What a request with this address and these headers may have.
    pub(super) fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Verdict {
        let is_page = uri.path() == "/";
        if let Err(status) = self.host.judge(uri, headers, is_page) {
            return Verdict::Refused(status);
        }
        let query = uri.query().unwrap_or_default();
        let by_address = is_page
            && (value(query, "token").is_some_and(|it| is_equal(it, &self.token))
                || value(query, "ticket").is_some_and(|it| self.takes_ticket(it)));
        if by_address {
            return Verdict::Granted(Some(self.new_cookie()));
        }
        if cookies(headers).any(|(name, value)| name == self.cookie && is_equal(value, &self.token))
        {
            return Verdict::Granted(None);
        }
        Verdict::Refused(StatusCode::UNAUTHORIZED)
    }

    fn takes_ticket(&self, text: &str) -> bool {
        let taken = |it: &mut Option<String>| it.take_if(|it| is_equal(it, text)).is_some();
        self.ticket.lock().is_ok_and(|mut it| taken(&mut it))
    }

    /// No script can read it, and no other site's page can have it sent: RFC 6265bis.
    fn new_cookie(&self) -> String {
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie, self.token)
    }
}

impl Host {
    /// Of what listens at this address.
    pub(crate) fn new(at: SocketAddr) -> Self {
        let machine = rustix::system::uname();
        let machine = machine.nodename().to_string_lossy().into_owned();
        Self { is_loopback: at.ip().is_loopback(), machine }
    }

    /// Refuses what a page of another site has sent, and what came by a name that is not ours.
    pub(crate) fn judge(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        is_page: bool,
    ) -> Result<(), StatusCode> {
        let host = only(headers, &HOST).ok_or(StatusCode::BAD_REQUEST)?;
        // It would count more than the header: RFC 9112, 3.2.2.
        if uri.authority().is_some() {
            return Err(StatusCode::BAD_REQUEST);
        }
        if !self.is_ours(host) {
            return Err(StatusCode::MISDIRECTED_REQUEST);
        }
        if headers.contains_key(ORIGIN) {
            let own = only(headers, &ORIGIN).and_then(|it| it.strip_prefix("http://"));
            if own.is_none_or(|it| !it.eq_ignore_ascii_case(host)) {
                return Err(StatusCode::FORBIDDEN);
            }
        }
        // Who follows a link to the page may come from anywhere, but nothing else is for other pages.
        if headers.contains_key(SITE)
            && !is_page
            && !only(headers, &SITE).is_some_and(|it| matches!(it, "same-origin" | "none"))
        {
            return Err(StatusCode::FORBIDDEN);
        }
        Ok(())
    }

    /// Whether this is what we are called: a number, or one of the names that nobody else can lead here by. Behind
    /// `ssh -L` the port may be another.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
            _ => host,
        };
        let number = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
        match number.parse::<IpAddr>() {
            Ok(number) => number.is_loopback() || !self.is_loopback,
            Err(_) => {
                name.eq_ignore_ascii_case("localhost")
                    || !self.is_loopback && name.eq_ignore_ascii_case(&self.machine)
            }
        }
    }
}

/// The value of a header that stands there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let value = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(value)
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let all = headers.get_all(COOKIE).iter().filter_map(|it| it.to_str().ok());
    all.flat_map(|it| it.split(';')).filter_map(|it| it.trim().split_once('='))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn access(at: &str) -> Access {
        let at = at.parse().unwrap();
        let host = Host { machine: "box".into(), ..Host::new(at) };
        Access { host, ..Access::new(at).unwrap() }
    }

    fn judge(access: &Access, uri: &str, headers: &[(&'static str, &str)]) -> Verdict {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        access.judge(&uri.parse().unwrap(), &map)
    }

    /// The status that refuses a request; 200 if nothing does.
    fn status(access: &Access, uri: &str, headers: &[(&'static str, &str)]) -> u16 {
        match judge(access, uri, headers) {
            Verdict::Granted(_) => 200,
            Verdict::Refused(status) => status.as_u16(),
        }
    }

    #[test]
    fn the_token_opens_the_page_and_the_cookie_the_rest() {
        let access = access("127.0.0.1:7717");
        let token = access.token().to_owned();
        let host = ("host", "127.0.0.1:7717");
        let Verdict::Granted(Some(cookie)) = judge(&access, &format!("/?token={token}"), &[host])
        else {
            panic!("the token is right");
        };
        assert_eq!(cookie, format!("profiler-7717={token}; Path=/; HttpOnly; SameSite=Strict"));
        let cookie = ("cookie", &*format!("a=b; profiler-7717={token}"));
        for path in ["/", "/data", "/../etc/passwd"] {
            assert_eq!(judge(&access, path, &[host, cookie]), Verdict::Granted(None));
            assert_eq!(status(&access, path, &[host]), 401);
        }
        // Where it could end up in somebody's list of addresses.
        assert_eq!(status(&access, &format!("/data?token={token}"), &[host]), 401);
        let other = "0".repeat(token.len());
        for wrong in [&*other, &token[1..], "", &format!("{token}&token={other}")] {
            assert_eq!(status(&access, &format!("/?token={wrong}"), &[host]), 401, "{wrong}");
        }
        for wrong in
            [format!("profiler-7717={other}"), format!("profiler-1={token}"), token.clone()]
        {
            assert_eq!(status(&access, "/", &[host, ("cookie", &wrong)]), 401, "{wrong}");
        }
    }

    #[test]
    fn a_ticket_counts_once() {
        let access = access("127.0.0.1:7717");
        let host = ("host", "localhost:7717");
        assert_eq!(status(&access, "/?ticket=", &[host]), 401);
        let ticket = format!("/?ticket={}", access.new_ticket().unwrap());
        assert_eq!(status(&access, &ticket, &[("host", "evil.example")]), 421);
        assert_eq!(status(&access, &ticket, &[host]), 200);
        assert_eq!(status(&access, &ticket, &[host]), 401);
    }

    #[test]
    fn no_name_of_another_site_leads_here() {
        let local = access("127.0.0.1:7717");
        let uri = format!("/?token={}", local.token());
        for host in
            ["127.0.0.1:7717", "LocalHost:7717", "localhost", "[::1]:7717", "localhost:8080"]
        {
            assert_eq!(status(&local, &uri, &[("host", host)]), 200, "{host}");
        }
        let others = [
            "evil.example",
            "127.0.0.1.evil.example:7717",
            "localhost.evil.example",
            "box:7717",
            "10.0.0.1",
            "",
            "[",
            "x:",
        ];
        for host in others {
            assert_eq!(status(&local, &uri, &[("host", host)]), 421, "{host}");
        }
        assert_eq!(status(&local, &uri, &[]), 400);
        let host = ("host", "localhost:7717");
        assert_eq!(status(&local, &uri, &[host, host]), 400);
        assert_eq!(status(&local, &format!("http://localhost:7717{uri}"), &[host]), 400);
        let remote = access("0.0.0.0:7717");
        let uri = format!("/?token={}", remote.token());
        for (host, expected) in
            [("10.0.0.1:7717", 200), ("Box:7717", 200), ("box.evil.example:7717", 421)]
        {
            assert_eq!(status(&remote, &uri, &[("host", host)]), expected, "{host}");
        }
    }

    #[test]
    fn no_page_of_another_site_gets_anything() {
        let access = access("127.0.0.1:7717");
        let cookie = format!("profiler-7717={}", access.token());
        let own = [("host", "localhost:7717"), ("cookie", &*cookie)];
        let with = |uri: &str, name, value| status(&access, uri, &[own[0], own[1], (name, value)]);
        assert_eq!(with("/data", "origin", "http://localhost:7717"), 200);
        for origin in
            ["http://evil.example", "null", "https://localhost:7717", "http://localhost:1", ""]
        {
            assert_eq!(with("/data", "origin", origin), 403, "{origin}");
        }
        for (site, expected) in
            [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)]
        {
            assert_eq!(with("/data", "sec-fetch-site", site), expected, "{site}");
            assert_eq!(with("/", "sec-fetch-site", site), 200, "{site}");
        }
    }
}
