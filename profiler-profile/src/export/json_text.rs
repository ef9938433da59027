//! JSON whose strings are fit for a terminal: what is not [printable](crate::printable) is written
//! `\uXXXX`, which loses nothing.

use std::io::{self, Write};

use crate::printable::{is_plain, is_unprintable};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Writes a value on one line.
pub(super) fn write(to: impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(to, Printable))
}

/// A value as text.
pub(super) fn to_string(value: &impl Serialize) -> serde_json::Result<String> {
    let mut text = Vec::new();
    write(&mut text, value)?;
    String::from_utf8(text).map_err(serde::ser::Error::custom)
}

struct Printable;

impl Formatter for Printable {
    // C0 controls, quotes and backslashes do not come this way: serde_json escapes them itself.
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        to: &mut W,
        text: &str,
    ) -> io::Result<()> {
        if is_plain(text) {
            return to.write_all(text.as_bytes());
        }
        for it in text.chars() {
            if is_unprintable(it) {
                for unit in it.encode_utf16(&mut [0; 2]) {
                    write!(to, "\\u{unit:04x}")?;
                }
            } else {
                to.write_all(it.encode_utf8(&mut [0; 4]).as_bytes())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_printable_is_escaped() {
        let text = to_string(&"\x1b]0;a\x07\x7f\u{9b}\u{202e}\u{e0001}ä\"\\").unwrap();
        let expected = r#""\u001b]0;a\u0007\u007f\u009b\u202e\udb40\udc01ä\"\\""#;
        assert_eq!(text, expected);
    }

    proptest! {
        #[test]
        fn nothing_is_lost(text in any::<String>()) {
            let json = to_string(&text).unwrap();
            prop_assert!(!json.chars().any(is_unprintable));
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
