//! Texts that others chose: names of programs, files and functions.

use std::borrow::Cow;

/// Text without control characters, which could move the cursor of the terminal or start a line.
pub(crate) fn printable(name: &str) -> Cow<'_, str> {
    if name.chars().any(char::is_control) {
        Cow::Owned(name.replace(char::is_control, "?"))
    } else {
        Cow::Borrowed(name)
    }
}
