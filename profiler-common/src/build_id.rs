//! The build id of an ELF file: bytes that the linker puts into a file and its debug file to tell
//! them from every other.

use core::fmt;

/// The longest that the kernel takes, `BUILD_ID_SIZE_MAX` in
/// <https://github.com/torvalds/linux/blob/v6.12/include/linux/buildid.h>: that of a SHA-1.
const MAX_LEN: usize = 20;

/// A build id of 1 to 20 bytes.
///
/// ```
/// use profiler_common::build_id::BuildId;
///
/// let id = BuildId::from_slice(&[0xab, 0xcd, 0x01]).unwrap();
/// assert_eq!(id.to_string(), "abcd01");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BuildId {
    len: u8,
    /// Zeros behind `len`.
    bytes: [u8; MAX_LEN],
}

impl BuildId {
    /// `None` if there are no bytes, or more than 20.
    #[must_use]
    pub fn from_slice(id: &[u8]) -> Option<Self> {
        let len = u8::try_from(id.len()).ok().filter(|&len| len > 0)?;
        let mut bytes = [0; MAX_LEN];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        Some(Self { len, bytes })
    }

    /// Its 1 to 20 bytes, in the file's order.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }
}

/// Two lower-case hexadecimal digits a byte.
impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString as _;

    use super::*;

    #[test]
    fn has_its_bytes_and_shows_them() {
        let id = BuildId::from_slice(&[0xab, 0xcd, 0x01]).unwrap();
        assert_eq!(id.as_bytes(), [0xab, 0xcd, 0x01]);
        assert_eq!(id.to_string(), "abcd01");
        assert_ne!(Some(id), BuildId::from_slice(&[0xab, 0xcd, 0x01, 0]));
        assert_eq!(BuildId::from_slice(&[7; 20]).unwrap().as_bytes(), [7; 20]);
    }

    #[test]
    fn has_a_length_that_can_be() {
        assert_eq!(BuildId::from_slice(&[]), None);
        assert_eq!(BuildId::from_slice(&[7; 21]), None);
        assert_eq!(BuildId::from_slice(&[7; 256]), None);
    }
}
