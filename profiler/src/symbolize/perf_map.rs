//! `/tmp/perf-PID.map`: names of code that was made at run time.
//!
//! Format: <https://github.com/torvalds/linux/blob/v6.12/tools/perf/Documentation/jit-interface.txt>,
//! a line `START SIZE name` a function, numbers in hex.

use std::{
    fs::{self, OpenOptions},
    io::Read as _,
    ops::Range,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
};

/// The most of a map that is read.
const LIMIT_BYTES: u64 = 64 << 20;
/// The most functions that are kept of one: lines can be as short as six bytes.
const LIMIT_FUNCTIONS: usize = 1 << 20;

/// One function: its addresses, and where its name stands in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    start: u64,
    end: u64,
    name: Range<usize>,
}

/// The functions of a process, ordered by address.
#[derive(Debug, Default)]
pub struct PerfMap {
    text: Vec<u8>,
    functions: Vec<Function>,
}

impl PerfMap {
    /// Reads the map of a process, in the process's own `/tmp` and by the id that it has in its own
    /// pid namespace; empty if there is none. A link, or a file of another user, is not followed:
    /// anyone may write to `/tmp`.
    #[must_use]
    pub fn read(tgid: u32) -> Self {
        Self::try_read(tgid).unwrap_or_default()
    }

    fn try_read(tgid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{tgid}/status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let own_id = field("NSpid:")?.split_ascii_whitespace().next_back()?;
        let uid: u32 = field("Uid:")?.split_ascii_whitespace().next()?.parse().ok()?;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
            .open(format!("/proc/{tgid}/root/tmp/perf-{own_id}.map"))
            .ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || (metadata.uid() != uid && metadata.uid() != 0) {
            return None;
        }
        let mut text = Vec::new();
        file.take(LIMIT_BYTES).read_to_end(&mut text).ok()?;
        Some(Self::parse(text))
    }

    /// Reads the text of a map; lines that can't be read are skipped. Of two functions at one place
    /// the later holds.
    #[must_use]
    pub fn parse(text: Vec<u8>) -> Self {
        let mut start = 0;
        let lines = text.split(|&byte| byte == b'\n').map(|line| {
            let at = start;
            start += line.len() + 1;
            (at, line)
        });
        let functions = lines.filter_map(|(at, line)| function(at, line));
        let mut functions: Vec<Function> = functions.take(LIMIT_FUNCTIONS).collect();
        // Stable, so among equals the last written stays last.
        functions.sort_by_key(|function| function.start);
        Self { text, functions }
    }

    /// The memory it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len() + self.functions.len() * size_of::<Function>()
    }

    /// Start and name of the function that holds the address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(u64, &str)> {
        let behind = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions.get(behind.checked_sub(1)?)?;
        let name = self.text.get(function.name.clone())?;
        (address < function.end).then_some((function.start, std::str::from_utf8(name).ok()?))
    }
}

/// The function in a line that begins at `at` in the text.
fn function(at: usize, line: &[u8]) -> Option<Function> {
    let line = std::str::from_utf8(line).ok()?.trim_end();
    let mut fields = line.splitn(3, ' ');
    let mut number = || {
        let text = fields.next()?;
        let text = text.strip_prefix("0x").unwrap_or(text);
        let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if digits { u64::from_str_radix(text, 16).ok() } else { None }
    };
    let (start, size) = (number()?, number()?);
    let name = fields.next()?;
    let end = start.checked_add(size)?;
    let name = at + line.len() - name.len()..at + line.len();
    (size > 0 && !name.is_empty()).then_some(Function { start, end, name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn finds_the_function() {
        let text = b"2000 10 b\n1000 20 lazy compile\r\nnonsense\n1000 30 newer \n";
        let map = PerfMap::parse(text.to_vec());
        assert_eq!(map.find(0x1000), Some((0x1000, "newer")));
        assert_eq!(map.find(0x102f), Some((0x1000, "newer")));
        assert_eq!(map.find(0x1030), None);
        assert_eq!(map.find(0x200f), Some((0x2000, "b")));
        assert_eq!(map.find(0), None);
        let map = PerfMap::parse(b"1000 20 lazy compile\r\n".to_vec());
        assert_eq!(map.find(0x1001), Some((0x1000, "lazy compile")));
    }

    #[test]
    fn skips_what_can_not_be() {
        let text = b"-10 20 a\nffffffffffffffff 2 b\n1 0 c\n1 1 \n\xff\xff 1 d\n1";
        assert_eq!(PerfMap::parse(text.to_vec()).functions, []);
    }

    proptest! {
        #[test]
        fn any_bytes_give_sound_functions(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for function in PerfMap::parse(bytes).functions {
                prop_assert!(function.start < function.end);
            }
        }
    }
}
