//! `/tmp/perf-PID.map`: names of JIT code.
//!
//! Format: <https://github.com/torvalds/linux/blob/v6.12/tools/perf/Documentation/jit-interface.txt>,
//! a line `START SIZE name` a function, numbers in hex.

use std::sync::Arc;

use super::{
    STEP,
    functions::{Functions, Span},
};

/// The functions that a process has named.
#[derive(Debug, Default)]
pub struct PerfMap {
    functions: Functions,
    /// Whether reading goes on within a line whose beginning is not known.
    within_line: bool,
    /// Whether there was a line that can't be read.
    is_malformed: bool,
}

impl PerfMap {
    /// Sets what its names may take from here on.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.functions.limit(bytes);
    }

    /// Takes what comes next in the file, and says how many bytes of it are done with. If it is cut, it begins
    /// within a line.
    pub(super) fn take_step(&mut self, text: &[u8], is_cut: bool) -> usize {
        self.within_line |= is_cut;
        let taken = self.take(text);
        if taken == 0 && text.len() >= STEP {
            // No function has a line that long.
            self.within_line = true;
            return text.len();
        }
        taken
    }

    /// Takes the text's lines, as far as they are complete, and says how many bytes they are. A line
    /// that can't be read is skipped; of two functions at one place the later holds.
    pub fn take(&mut self, text: &[u8]) -> usize {
        let mut taken = 0;
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            let Some(whole) = line.strip_suffix(b"\n") else { break };
            taken += line.len();
            if std::mem::take(&mut self.within_line) {
                continue;
            }
            match function(whole) {
                Some((start, size, name)) => self.functions.add(start, size, name),
                None => self.is_malformed |= !whole.is_empty(),
            }
        }
        taken
    }

    /// Whether lines were skipped, since they are none of a map.
    pub(super) fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    /// The memory it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.functions.bytes()
    }

    /// What is at an address, and how far around it the same holds.
    pub(super) fn span(&self, address: u64) -> Span<'_> {
        self.functions.span(address)
    }

    /// Start and name of the function that holds the address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(u64, Arc<str>)> {
        self.functions.find(address)
    }
}

/// Start, size and name of the function in a line.
fn function(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut fields = line.trim_ascii_end().splitn(3, |&byte| byte == b' ');
    Some((number(fields.next()?)?, number(fields.next()?)?, fields.next()?))
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    // `from_str_radix` alone would take a sign.
    let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(text: &[u8]) -> PerfMap {
        let mut map = PerfMap::default();
        map.take(text);
        map
    }

    fn find(map: &PerfMap, address: u64) -> Option<(u64, String)> {
        map.find(address).map(|(start, name)| (start, name.to_string()))
    }

    fn name(map: &PerfMap, address: u64) -> Option<String> {
        find(map, address).map(|(_, name)| name)
    }

    #[test]
    fn finds_the_function() {
        let map = map(b"2000 10 b\n1000 20 lazy compile\r\nnonsense\n0x1000 0x30 newer \n");
        assert_eq!(name(&map, 0x1000).as_deref(), Some("newer"));
        assert_eq!(name(&map, 0x102f).as_deref(), Some("newer"));
        assert_eq!(find(&map, 0x1030), None);
        assert_eq!(name(&map, 0x200f).as_deref(), Some("b"));
        assert_eq!(find(&map, 0), None);
        let map = super::tests::map(b"1000 20 lazy compile\r\n");
        assert_eq!(name(&map, 0x1001).as_deref(), Some("lazy compile"));
    }

    #[test]
    fn the_later_line_holds() {
        let map = map(b"1000 100 outer\n1010 10 inner\n10f0 20 behind\n");
        assert_eq!(name(&map, 0x100f).as_deref(), Some("outer"));
        assert_eq!(name(&map, 0x1010).as_deref(), Some("inner"));
        assert_eq!(name(&map, 0x1020).as_deref(), Some("outer"));
        assert_eq!(name(&map, 0x10f0).as_deref(), Some("behind"));
    }

    #[test]
    fn skips_what_can_not_be() {
        let text = b"-10 20 a\n1000 -20 a\n1000 +20 a\nffffffffffffffff 2 b\n1 0 c\n1 1 \n\xff\xff 1 d\n1\n";
        let map = map(text);
        assert_eq!(map.bytes(), 0);
        assert_eq!(super::tests::map(b"1000 10 not all of it").bytes(), 0);
    }

    #[test]
    fn a_name_in_another_encoding_is_a_name() {
        assert_eq!(find(&map(b"10 10 caf\xe9\n"), 0x10), Some((0x10, "caf\u{fffd}".to_owned())));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_in_any_pieces(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b' '), Just(b'1'), any::<u8>()], 0..300), cut in 0_usize..300) {
            let whole = map(&bytes);
            let mut pieces = PerfMap::default();
            let taken = pieces.take(&bytes[..cut.min(bytes.len())]);
            pieces.take(&bytes[taken..]);
            for address in 0..0x120 {
                prop_assert_eq!(whole.find(address), pieces.find(address));
                prop_assert!(whole.find(address).is_none_or(|(start, name)| start <= address && !name.is_empty()));
            }
        }
    }
}
