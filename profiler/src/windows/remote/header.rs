//! Headers that the user wants sent, some of them secret.

use std::{env, fs::File, io::Read as _, path::PathBuf, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ureq::http::{HeaderName, HeaderValue};

/// No secret is longer.
const MAX_BYTES: u64 = 64 << 10;
/// Headers that hold secrets, or parts of the names of these.
const SECRET: &[&str] = &["authorization", "cookie", "token", "secret", "password", "key"];

/// A header with its value, or with where that is: `NAME=VALUE`, whose last word may be `@FILE` or `$VARIABLE`.
///
/// What is shown of it, also by [`Debug`], is never the secret itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub(super) name: String,
    /// What is before the last word.
    before: String,
    last: Last,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Last {
    Text(String),
    /// Read each time, since whoever gives out secrets may replace it.
    File(PathBuf),
    Variable(String),
}

impl Header {
    /// Its value.
    ///
    /// # Errors
    ///
    /// Says why it can't be had, and nothing of what was read.
    pub(super) fn value(&self) -> Result<HeaderValue, String> {
        let last = match &self.last {
            Last::Text(text) => text.clone(),
            Last::File(path) => {
                let mut text = String::new();
                File::open(path)
                    .and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text))
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                text.trim_end().to_owned()
            }
            Last::Variable(name) => {
                env::var(name).map_err(|_| format!("${name} is not set, or is no text"))?
            }
        };
        if last.is_empty() {
            return Err(format!("the value of {} is empty", self.name));
        }
        // As people write it down: user:password.
        let is_basic = self.before.trim().eq_ignore_ascii_case("basic") && last.contains(':');
        let last = if is_basic { STANDARD.encode(last) } else { last };
        let value = HeaderValue::try_from(format!("{}{last}", self.before));
        let mut value =
            value.map_err(|_| format!("{} can't be sent: it has control characters", self.name))?;
        value.set_sensitive(!matches!(self.last, Last::Text(_)));
        Ok(value)
    }
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("not NAME=VALUE")?;
        if HeaderName::try_from(name).is_err() || value.trim().is_empty() {
            return Err("not NAME=VALUE".into());
        }
        let (before, last) = value.rsplit_once(' ').map_or(("", value), |(before, _)| {
            value.split_at_checked(before.len() + 1).unwrap_or((value, ""))
        });
        let last = match (last.strip_prefix('@'), last.strip_prefix('$')) {
            (Some(path), _) if !path.is_empty() => Last::File(path.into()),
            (_, Some(name)) if !name.is_empty() => Last::Variable(name.into()),
            _ => Last::Text(last.into()),
        };
        let lower = name.to_ascii_lowercase();
        if matches!(last, Last::Text(_)) && SECRET.iter().any(|it| lower.contains(it)) {
            return Err(
                "a secret does not belong here, where others see it: use @FILE or $VARIABLE".into(),
            );
        }
        Ok(Self { name: name.into(), before: before.into(), last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_from_files_or_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "abc\n").unwrap();
        let header = |text: &str| text.parse::<Header>().unwrap();
        let value = |it: &Header| it.value().map(|it| it.to_str().unwrap().to_owned());
        let bearer = header(&format!("Authorization=Bearer @{}", path.display()));
        assert_eq!(value(&bearer), Ok("Bearer abc".into()));
        assert!(!format!("{bearer:?} {:?}", bearer.value()).contains("abc"));
        // It was replaced.
        std::fs::write(&path, "user:pass").unwrap();
        assert_eq!(value(&bearer), Ok("Bearer user:pass".into()));
        let basic = header(&format!("Authorization=Basic @{}", path.display()));
        assert_eq!(value(&basic), Ok("Basic dXNlcjpwYXNz".into()));
        assert_eq!(value(&header("X-Scope-OrgID=team a")), Ok("team a".into()));
        let variable = header("X-Api-Key=$PATH");
        assert_eq!(value(&variable).unwrap(), env::var("PATH").unwrap());
    }

    #[test]
    fn what_can_not_be_had_is_told_without_the_secret() {
        let value = |text: &str| text.parse::<Header>().unwrap().value().unwrap_err();
        assert!(value("Authorization=Bearer @/no/such").contains("/no/such"));
        assert!(value("X-Token=$NO_SUCH_VARIABLE_HERE").contains("NO_SUCH_VARIABLE_HERE"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "abc\x01def").unwrap();
        let error = value(&format!("X-Token=@{}", path.display()));
        assert!(error.contains("control characters") && !error.contains("abc"), "{error}");
        for wrong in ["a", "=b", "a b=c", "a=", "Authorization=Bearer abc", "X-Api-Key=abc"] {
            let error = wrong.parse::<Header>().unwrap_err();
            assert!(!error.contains("abc"), "{error}");
        }
    }
}
