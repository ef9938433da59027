//! Versions of CPython.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A version as `PY_VERSION_HEX` has it: a byte each for major, minor and micro, then level and serial.
///
/// <https://docs.python.org/3/c-api/apiabiversion.html>
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version(pub u32);

/// The level of a release candidate. From the first of them on no structure changes any more.
const CANDIDATE: u32 = 0xc;

impl Version {
    /// The first of a series, where no more is known.
    #[must_use]
    pub const fn series(minor: u8) -> Self {
        Self(3 << 24 | (minor as u32) << 16 | 0xf0)
    }

    /// The minor version of a 3.x that is released; `None` for any other, and for what comes before the first
    /// release candidate.
    #[must_use]
    pub const fn minor(self) -> Option<u8> {
        let [major, minor, _, level] = self.0.to_be_bytes();
        if major == 3 && (level as u32) >> 4 >= CANDIDATE { Some(minor) } else { None }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, micro, level] = self.0.to_be_bytes();
        write!(f, "{major}.{minor}.{micro}")?;
        match level >> 4 {
            0xf => Ok(()),
            0xc => write!(f, "rc{}", level & 0xf),
            0xb => write!(f, "b{}", level & 0xf),
            _ => write!(f, "a{}", level & 0xf),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_and_shown() {
        let of = |hex| (Version(hex).to_string(), Version(hex).minor());
        assert_eq!(of(0x030d_00f0), ("3.13.0".into(), Some(13)));
        assert_eq!(of(0x030e_0ac2), ("3.14.10rc2".into(), Some(14)));
        assert_eq!(of(0x030f_00b1), ("3.15.0b1".into(), None));
        assert_eq!(of(0x0400_00f0), ("4.0.0".into(), None));
        assert_eq!(Version::series(8).minor(), Some(8));
    }
}
