//! `/tmp/perf-PID.map`: names of JIT code.
//!
//! Format: <https://github.com/torvalds/linux/blob/v6.12/tools/perf/Documentation/jit-interface.txt>,
//! a line `START SIZE name` a function, numbers in hex.

use std::{fs::File, io, sync::Arc};

use profiler_profile::frame::{Missing, Origin};

use super::{
    functions::Functions,
    owner::Owner,
    tail_reader::{STEP, TailReader},
};
use crate::regular_file::Refusal;

/// The most of a map that is read: its end, which holds where lines contradict each other.
const LIMIT_BYTES: u64 = 64 << 20;
/// So much of the last lines tells whether the file has been written anew.
const WITNESS_BYTES: usize = 64;

/// The functions that a process has named.
#[derive(Debug, Default)]
pub struct PerfMap {
    functions: Functions,
    tail: TailReader,
    /// Whether reading goes on within a line whose beginning is not known.
    within_line: bool,
    /// Whether there was a line that can't be read.
    is_malformed: bool,
}

impl PerfMap {
    /// The map of a process: in its own `/tmp`, by the id that it has in its own pid namespace. One that
    /// is older than the process is of another that had the id.
    pub(super) fn open(owner: &Owner) -> Result<File, Origin> {
        let file = owner.open(&format!("/tmp/perf-{}.map", owner.own_id));
        let file = file.map_err(|refusal| match refusal {
            Refusal::Leased => Origin::NoFile(Missing::Leased),
            _ => Origin::NoMap,
        })?;
        if owner.is_younger_than(&file) { Err(Origin::OldMap) } else { Ok(file) }
    }

    /// Reads a step of what is new in the file. Says whether that was all of it: until then, a
    /// function may be found whose place another has taken.
    pub(super) fn read_on(&mut self, file: &File) -> io::Result<bool> {
        let bytes = file.metadata()?.len();
        let is_behind = bytes.saturating_sub(self.tail.offset) > LIMIT_BYTES;
        if is_behind || !self.tail.goes_on_in(file)? {
            let offset = bytes.saturating_sub(LIMIT_BYTES);
            let tail = TailReader::begin(file, offset)?;
            *self = Self { tail, within_line: offset > 0, ..Self::default() };
        }
        let text = self.tail.next(file)?;
        let is_all = (text.len() as u64) < STEP;
        let mut taken = self.take(&text);
        if taken == 0 && !is_all {
            // No function has a line that long.
            taken = text.len();
            self.within_line = true;
        }
        if let Some(lines) = text.get(..taken).filter(|lines| !lines.is_empty()) {
            let at = taken.saturating_sub(WITNESS_BYTES);
            self.tail.remember(self.tail.offset + at as u64, lines.get(at..).unwrap_or_default());
            self.tail.offset += taken as u64;
        }
        Ok(is_all)
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
    use std::{
        fs::{self, OpenOptions},
        io::Write as _,
        os::unix::fs::FileExt as _,
    };

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

    /// Reads what is new, in as many steps as it takes.
    fn read_on(map: &mut PerfMap, file: &File) {
        while !map.read_on(file).unwrap() {}
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

    #[test]
    fn reads_only_what_is_new() {
        let mut file = tempfile::tempfile().unwrap();
        let mut map = PerfMap::default();
        let filler = "nonsense ".repeat(WITNESS_BYTES);
        write!(file, "1000 10 first\n{filler}\n2000 10 hal").unwrap();
        read_on(&mut map, &file);
        assert_eq!(name(&map, 0x1000).as_deref(), Some("first"));
        assert_eq!(find(&map, 0x2000), None);
        // What has been read does not change; that we don't see it if it does shows what is read.
        file.write_all_at(b"x", 8).unwrap();
        file.write_all(b"f\n3000 10 third\n").unwrap();
        read_on(&mut map, &file);
        assert_eq!(name(&map, 0x1000).as_deref(), Some("first"));
        assert_eq!(name(&map, 0x2000).as_deref(), Some("half"));
        assert_eq!(name(&map, 0x3000).as_deref(), Some("third"));
    }

    #[test]
    fn reads_anew_what_was_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let mut map = PerfMap::default();
        fs::write(&path, "1000 10 first\n").unwrap();
        read_on(&mut map, &File::open(&path).unwrap());
        // Shorter.
        fs::write(&path, "2000 10 2nd\n").unwrap();
        read_on(&mut map, &File::open(&path).unwrap());
        assert_eq!(
            (find(&map, 0x1000), find(&map, 0x2000)),
            (None, Some((0x2000, "2nd".to_owned())))
        );
        // Longer, in the same inode.
        fs::write(&path, "3000 10 third, of another length\n").unwrap();
        read_on(&mut map, &File::open(&path).unwrap());
        assert_eq!(find(&map, 0x2000), None);
        assert_eq!(find(&map, 0x3000).unwrap().0, 0x3000);
        // Another inode, with all of the former and more.
        let mut text = fs::read(&path).unwrap();
        text.extend(b"4000 10 fourth\n");
        fs::rename(&path, dir.path().join("old")).unwrap();
        text[0] = b'5';
        fs::write(&path, &text).unwrap();
        read_on(&mut map, &File::open(&path).unwrap());
        assert_eq!((find(&map, 0x3000), find(&map, 0x5000).unwrap().0), (None, 0x5000));
        // Nothing is left of it.
        OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        read_on(&mut map, &File::open(&path).unwrap());
        assert_eq!(map.bytes(), 0);
    }

    #[test]
    fn reads_the_end_of_a_map_of_a_gigabyte() {
        let file = tempfile::tempfile().unwrap();
        let length = 1 << 30;
        file.write_all_at(b"1000 10 first\n", 0).unwrap();
        // The line in which reading begins is cut, and none.
        file.write_all_at(b"\n1000 10 cut\n", length - LIMIT_BYTES - 4).unwrap();
        file.write_all_at(b"\n2000 10 last\n", length - 14).unwrap();
        let mut map = PerfMap::default();
        let mut steps = 1;
        while !map.read_on(&file).unwrap() {
            steps += 1;
        }
        assert_eq!(steps, LIMIT_BYTES / STEP + 1);
        assert_eq!((find(&map, 0x1000), find(&map, 0)), (None, None));
        assert_eq!(name(&map, 0x2000).as_deref(), Some("last"));
    }

    #[test]
    fn survives_truncation_while_it_is_read() {
        let file = tempfile::tempfile().unwrap();
        let line = b"1000 10 a line of thirty-two b.\n";
        file.write_all_at(&line.repeat(3 << 15), 0).unwrap();
        let mut map = PerfMap::default();
        assert!(!map.read_on(&file).unwrap());
        file.set_len(40).unwrap();
        assert!(map.read_on(&file).unwrap());
        assert_eq!(map.tail.offset, 32);
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
