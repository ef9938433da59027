//! Where a store is.

use std::str::FromStr;

use ureq::http::{Uri, uri::Authority};

/// Where a store is: http or https, a host, and perhaps a port and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url(String);

impl Url {
    /// The same with this path, unless it has one.
    pub(super) fn with_path(&self, path: &str) -> String {
        let has_path = self.0.parse::<Uri>().is_ok_and(|it| it.path() != "/");
        if has_path { self.0.clone() } else { format!("{}{path}", self.0.trim_end_matches('/')) }
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|_| "not a URL, such as http://localhost:4318")?;
        let authority = uri.authority().map(Authority::as_str).unwrap_or_default();
        if authority.contains('@') {
            return Err(
                "a password does not belong into a URL; give it as a header, from a file".into()
            );
        }
        if !matches!(uri.scheme_str(), Some("http" | "https"))
            || uri.host().is_none_or(str::is_empty)
        {
            return Err("not a URL of http or https, such as http://localhost:4318".into());
        }
        if uri.query().is_some() {
            return Err("a URL with a query is none of a store".into());
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_path_or_the_store_s() {
        let with = |text: &str| text.parse::<Url>().unwrap().with_path("/push");
        assert_eq!(with("http://a:4318"), "http://a:4318/push");
        assert_eq!(with("https://a/"), "https://a/push");
        assert_eq!(with("https://[::1]:1/x/y"), "https://[::1]:1/x/y");
        for wrong in
            ["a:4318", "localhost", "ftp://a", "http://", "http://u:p@a", "http://a/?b=c", ""]
        {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
        assert!(!"http://u:secret@a".parse::<Url>().unwrap_err().contains("secret"));
    }
}
