//! Patterns of threads' names, as shells have them: from text to the table that the eBPF program reads.

use std::{fmt, str::FromStr};

use profiler_common::{
    comm_patterns::{ENTRIES, MATCHED, REPEATING, START, States, WORDS},
    sample::COMM_LEN,
};

/// The most bytes that the kernel keeps of a name.
const MAX_NAME: usize = COMM_LEN - 1;
/// How many bytes there are.
const BYTES: usize = 1 << 8;

/// A pattern: `*` is any text, `?` any byte, `[a-z]` one of these bytes, `[!a-z]` one of the others; `\` takes the
/// next byte as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommPattern {
    text: String,
    elements: Vec<Element>,
    /// Whether any text may stand behind the last element.
    is_open: bool,
}

/// What stands for one byte of the name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Element {
    /// Whether any text may stand before it.
    after_any: bool,
    accepts: Accepts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Accepts {
    Any,
    One(u8),
    /// From and to, both included.
    Ranges {
        ranges: Vec<(u8, u8)>,
        inverted: bool,
    },
}

impl Accepts {
    fn has(&self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::One(one) => *one == byte,
            Self::Ranges { ranges, inverted } => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&byte)) != *inverted
            }
        }
    }
}

impl fmt::Display for CommPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for CommPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pattern = Self::read(text)?;
        if text.is_empty() {
            return Err("no thread has an empty name".into());
        }
        if pattern.elements.len() > MAX_NAME {
            let why =
                format!("the kernel cuts names after {MAX_NAME} bytes, so nothing matches this");
            return Err(format!("{why}; end it with `*` before that"));
        }
        Ok(pattern)
    }
}

impl CommPattern {
    /// A pattern of any length.
    fn read(text: &str) -> Result<Self, String> {
        let (mut elements, mut is_open) = (Vec::new(), false);
        let mut bytes = text.bytes().enumerate().peekable();
        while let Some((at, byte)) = bytes.next() {
            let accepts = match byte {
                b'*' => {
                    is_open = true;
                    continue;
                }
                b'?' => Accepts::Any,
                b'[' => ranges(&mut bytes).ok_or_else(|| {
                    format!("column {}: this `[` has no `]`; `\\[` is the character", at + 1)
                })?,
                b'\\' => {
                    let (_, byte) = bytes
                        .next()
                        .ok_or_else(|| format!("column {}: nothing follows this `\\`", at + 1))?;
                    Accepts::One(byte)
                }
                byte => Accepts::One(byte),
            };
            elements.push(Element { after_any: std::mem::take(&mut is_open), accepts });
        }
        Ok(Self { text: text.to_owned(), elements, is_open })
    }
}

/// What stands between `[` and `]`, of which the first byte may be a `]`; `None` if it does not end.
fn ranges(bytes: &mut std::iter::Peekable<impl Iterator<Item = (usize, u8)>>) -> Option<Accepts> {
    let inverted = bytes.next_if(|(_, byte)| matches!(byte, b'!' | b'^')).is_some();
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    loop {
        let (_, from) = bytes.next()?;
        if from == b']' && !ranges.is_empty() {
            return Some(Accepts::Ranges { ranges, inverted });
        }
        if bytes.next_if(|(_, byte)| *byte == b'-').is_none() {
            ranges.push((from, from));
            continue;
        }
        match bytes.next()? {
            // A dash at the end stands for itself.
            (_, b']') => {
                ranges.extend([(from, from), (b'-', b'-')]);
                return Some(Accepts::Ranges { ranges, inverted });
            }
            (_, to) => ranges.push((from, to)),
        }
    }
}

/// The table of a text that is to be exactly this, or of a pattern for it, as `--filter` has them.
pub(crate) fn text_table(text: &str, is_pattern: bool) -> Result<Vec<States>, String> {
    let pattern = if is_pattern {
        CommPattern::read(text)?
    } else {
        let one = |byte| Element { after_any: false, accepts: Accepts::One(byte) };
        CommPattern { text: text.into(), elements: text.bytes().map(one).collect(), is_open: false }
    };
    let most = u64::BITS - 1;
    table(&[pattern]).ok_or_else(|| format!("`{text}` is longer than {most} bytes"))
}

/// The table of these patterns: see [`profiler_common::comm_patterns`]. `None` if they need too many states, which
/// sixteen never do.
pub(crate) fn table(patterns: &[CommPattern]) -> Option<Vec<States>> {
    let mut table = vec![States::default(); ENTRIES as usize];
    let mut used = [0_usize; WORDS];
    for pattern in patterns {
        let states = pattern.elements.len() + 1;
        // Its states are in one word.
        let word = used.iter().position(|used| used + states <= u64::BITS as usize)?;
        let used = used.get_mut(word)?;
        let first = *used;
        *used += states;
        let mut set = |entry: usize, state: usize| {
            let states = table.get_mut(entry).and_then(|it| it.get_mut(word));
            if let Some(states) = states {
                *states |= 1 << (first + state);
            }
        };
        set(START as usize, 0);
        set(MATCHED as usize, states - 1);
        if pattern.is_open {
            set(REPEATING as usize, states - 1);
        }
        for (state, element) in pattern.elements.iter().enumerate() {
            if element.after_any {
                set(REPEATING as usize, state);
            }
            let accepted = (0..BYTES).zip(0..=u8::MAX).filter(|(_, it)| element.accepts.has(*it));
            accepted.for_each(|(entry, _)| set(entry, state));
        }
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::comm_patterns;
    use proptest::prelude::*;

    fn parsed(patterns: &[&str]) -> Vec<CommPattern> {
        patterns.iter().map(|it| it.parse().unwrap()).collect()
    }

    fn matches(patterns: &[&str], name: &str) -> bool {
        let table = table(&parsed(patterns)).unwrap();
        let mut padded = [0; COMM_LEN];
        padded.iter_mut().zip(name.as_bytes()).for_each(|(to, from)| *to = *from);
        comm_patterns::matches(&padded, |entry| table.get(entry as usize))
    }

    #[test]
    fn patterns_are_those_of_shells() {
        for (pattern, fitting, others) in [
            ("nginx", &["nginx"][..], &["nginx2", "ngin", "xnginx", ""][..]),
            ("nginx*", &["nginx", "nginx: worker"], &["ngin", "a nginx"]),
            ("*", &["", "a", "fifteen bytes.."], &[]),
            ("*:work*", &["a:worker", ":work"], &["work", "a:wor"]),
            ("**a**b**", &["ab", "xaxbx", "aab", "abab"], &["ba", "a"]),
            ("a?c", &["abc", "a?c"], &["ac", "abbc"]),
            ("[a-cx]1", &["a1", "c1", "x1"], &["d1", "-1", "1"]),
            ("[!a-c]1", &["d1", "-1"], &["a1", "1"]),
            ("[^]a]", &["b"], &["]", "a"]),
            ("[]-]", &["]", "-"], &["[", ""]),
            (r"\*\[", &["*["], &["a[", r"\*\["]),
            ("é", &["é"], &["e"]),
        ] {
            for name in fitting {
                assert!(matches(&[pattern], name), "{pattern} {name}");
            }
            for name in others {
                assert!(!matches(&[pattern], name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn texts_are_exact_or_patterns() {
        let matches = |text: &str, is_pattern, found: &str| {
            let table = text_table(text, is_pattern).unwrap();
            let mut padded = [0; 256];
            padded.iter_mut().zip(found.as_bytes()).for_each(|(to, from)| *to = *from);
            comm_patterns::matches(&padded, |entry| table.get(entry as usize))
        };
        assert!(matches("a*[", false, "a*[") && !matches("a*[", false, "abc["));
        assert!(matches("", false, "") && !matches("", false, "a"));
        let long = "/usr/lib/".repeat(20);
        assert!(matches("/usr*[k-m]?b/", true, &long) && !matches("/usr*[u-x]", true, &long));
        assert!(matches(&"x".repeat(63), false, &"x".repeat(63)));
        assert!(text_table(&"x".repeat(64), false).unwrap_err().contains("63 bytes"));
        assert!(text_table("[a", true).unwrap_err().contains("column 1"));
    }

    #[test]
    fn one_of_several_is_enough_and_none_runs_into_the_next() {
        let patterns = ["a", "bc*", "*d"];
        for (name, fits) in
            [("a", true), ("bcx", true), ("xd", true), ("ab", false), ("abc", false), ("b", false)]
        {
            assert_eq!(matches(&patterns, name), fits, "{name}");
        }
        let longest = ["fifteen bytes.."; 16];
        assert!(matches(&longest, "fifteen bytes..") && !matches(&longest, "fifteen bytes."));
        assert!(table(&parsed(&["fifteen bytes.."; 17])).is_none());
        assert!(!matches(&[], "a"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (pattern, part) in [
            ("", "empty"),
            ("a[b", "column 2"),
            ("[]", "column 1"),
            ("a\\", "column 2"),
            ("sixteen bytes...", "15 bytes"),
        ] {
            let error = pattern.parse::<CommPattern>().unwrap_err();
            assert!(error.contains(part), "{pattern}: {error}");
        }
    }

    /// The same by trying every way.
    fn fits(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (['*', rest @ ..], _) => (0..=name.len()).any(|at| fits(rest, &name[at..])),
            ([any, rest @ ..], [first, others @ ..]) if *any == '?' || any == first => {
                fits(rest, others)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_pattern_or_an_error(text in ".{0,20}") {
            if let Ok(pattern) = text.parse::<CommPattern>() {
                prop_assert!(table(&[pattern]).is_some());
            }
        }

        #[test]
        fn a_name_matches_where_every_way_was_tried(
            pattern in "[ab*?]{1,8}", other in "[ab*?]{1,8}", name in "[ab]{0,8}"
        ) {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = [&pattern, &other].iter().any(|it| fits(&chars(it), &chars(&name)));
            prop_assert_eq!(matches(&[&pattern, &other], &name), expected);
        }
    }
}
