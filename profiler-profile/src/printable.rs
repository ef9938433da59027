//! Text that others chose (names of programs, files and functions), made fit for a terminal.

use std::{borrow::Cow, fmt::Write as _};

/// The text with all control and format characters escaped: `\n`, `\x1b`, `\u{202e}`.
///
/// Control characters drive the terminal or begin a line; format characters are invisible, or reverse
/// the order in which text is shown. A backslash stands for itself, so this is to be read, not decoded.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, "")
}

/// The same for text that has lines of its own: their ends stay.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, "\n")
}

fn escape<'a>(text: &'a str, keep: &str) -> Cow<'a, str> {
    let is_escaped = |it: char| is_unprintable(it) && !keep.contains(it);
    if is_plain(text) || !text.chars().any(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for it in text.chars() {
        if !is_escaped(it) {
            escaped.push(it);
        } else if matches!(it, '\t' | '\n' | '\r') || !it.is_ascii() {
            escaped.extend(it.escape_default());
        } else {
            let _ = write!(escaped, "\\x{:02x}", u32::from(it));
        }
    }
    Cow::Owned(escaped)
}

/// Whether text needs no second look: nearly all names.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Whether a character controls the terminal, breaks the line, or changes how others are shown.
#[must_use]
pub fn is_unprintable(it: char) -> bool {
    it.is_control()
        || matches!(it,
            // Line and paragraph separators.
            '\u{2028}' | '\u{2029}'
            // Direction: marks, embeddings, overrides, isolates.
            | '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Of no width.
            | '\u{00ad}' | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}'
            | '\u{206a}'..='\u{206f}' | '\u{feff}'
            // Annotations and tags.
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_printable_stays() {
        for text in ["", "main", "Ärger<T> {数}", "C:\\windows\\a.exe", "😀"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn controls_and_formats_are_seen() {
        assert_eq!(printable("a\x1b]0;b\x07"), "a\\x1b]0;b\\x07");
        assert_eq!(printable("a\nb\tc\r\x7f"), "a\\nb\\tc\\r\\x7f");
        assert_eq!(printable("\u{9b}2J\u{202e}x\u{2028}"), "\\u{9b}2J\\u{202e}x\\u{2028}");
        assert_eq!(printable_lines("a\nb\x1b\n"), "a\nb\\x1b\n");
        let formats = ["200b-200f", "202a-202e", "2060-2064", "2066-2069", "feff-feff", "80-9f"];
        for range in formats {
            let (first, last) = range.split_once('-').unwrap();
            let [first, last] = [first, last].map(|it| u32::from_str_radix(it, 16).unwrap());
            for it in (first..=last).filter_map(char::from_u32) {
                assert_eq!(printable(&it.to_string()), format!("\\u{{{:x}}}", u32::from(it)));
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_unprintable_is_left(text in any::<String>()) {
            let once = printable(&text);
            prop_assert!(!once.chars().any(is_unprintable));
            prop_assert_eq!(&*printable(&once), &*once);
        }
    }
}
