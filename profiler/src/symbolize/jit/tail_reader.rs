//! A file that another process appends to.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
};

use crate::parser::{JIT_STEP as STEP, JitKind, JitTaken};

/// The most of a perf map that is read: its end, which holds where lines contradict each other.
const MAX_MAP_BYTES: u64 = 64 << 20;
/// So much of the last lines tells whether a perf map has been written anew.
const WITNESS_BYTES: usize = 64;
/// The header of a jitdump, which has the time when it was made.
const HEADER_BYTES: usize = 40;

/// How far a file has been read, and how to tell whether it is still what was read.
#[derive(Clone, Debug)]
pub(super) struct TailReader {
    kind: JitKind,
    /// Device and inode; `None` before the first file.
    id: Option<(u64, u64)>,
    /// What lies before has been read.
    pub(super) offset: u64,
    /// Some of what was read, and where it stands: a file may be written anew in its place, and be
    /// longer by now than it was.
    witness: (u64, Vec<u8>),
    /// Nothing more is wanted of this file.
    is_over: bool,
    /// Something in it can't be read.
    pub(super) is_malformed: bool,
}

/// What is new in a file.
#[derive(Debug)]
pub(super) struct News {
    /// Where it stands.
    pub(super) tail: TailReader,
    /// Whether it is another file than before.
    pub(super) is_new: bool,
    /// Whether it begins within a line.
    pub(super) is_cut: bool,
    /// Bytes of the file from here on.
    pub(super) behind: u64,
    /// At most a step; fewer at the file's end.
    pub(super) bytes: Vec<u8>,
}

impl TailReader {
    /// Nothing was read.
    pub(super) fn new(kind: JitKind) -> Self {
        Self {
            kind,
            id: None,
            offset: 0,
            witness: (0, Vec::new()),
            is_over: false,
            is_malformed: false,
        }
    }

    /// Whether a file was read.
    pub(super) fn has_begun(&self) -> bool {
        self.id.is_some()
    }

    /// What there is to say when the file is gone.
    pub(super) fn gone(&self) -> News {
        let tail = Self::new(self.kind);
        News { tail, is_new: true, is_cut: false, behind: 0, bytes: Vec::new() }
    }

    /// Device and inode of the file.
    pub(super) fn id(&self) -> Option<(u64, u64)> {
        self.id
    }

    /// Reads a step of what is new. May wait for the file system.
    pub(super) fn news(&self, file: &File) -> io::Result<News> {
        let length = file.metadata()?.len();
        let is_behind =
            self.kind == JitKind::PerfMap && length.saturating_sub(self.offset) > MAX_MAP_BYTES;
        let is_new = is_behind || !self.goes_on_in(file)?;
        let tail = if is_new { self.begin(file, length)? } else { self.clone() };
        let (behind, is_cut) = (length.saturating_sub(tail.offset), is_new && tail.offset > 0);
        let mut bytes = Vec::new();
        if !tail.is_over {
            let mut rest = At { file, offset: tail.offset }.take(STEP as u64);
            rest.read_to_end(&mut bytes)?;
        }
        Ok(News { tail, is_new, is_cut, behind, bytes })
    }

    /// Whether the file is the one that was read, and still begins with what was.
    fn goes_on_in(&self, file: &File) -> io::Result<bool> {
        let metadata = file.metadata()?;
        let (at, witness) = &self.witness;
        let mut now = vec![0; witness.len()];
        let is_there = file.read_exact_at(&mut now, *at).is_ok();
        Ok(self.id == Some((metadata.dev(), metadata.ino()))
            && self.offset <= metadata.len()
            && is_there
            && now == *witness)
    }

    /// Begins with another file.
    fn begin(&self, file: &File, length: u64) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let offset = match self.kind {
            JitKind::PerfMap => length.saturating_sub(MAX_MAP_BYTES),
            JitKind::Jitdump => 0,
        };
        Ok(Self { id: Some((metadata.dev(), metadata.ino())), offset, ..Self::new(self.kind) })
    }
}

impl News {
    /// Whether there is anything to say of the file.
    pub(super) fn is_any(&self) -> bool {
        self.is_new || !self.bytes.is_empty()
    }

    /// Where the file is read on, now that this was taken of it, and whether that was all.
    pub(super) fn taken(self, taken: &JitTaken) -> (TailReader, bool) {
        let Self { mut tail, behind, bytes, .. } = self;
        match tail.kind {
            JitKind::PerfMap => {
                let length = usize::try_from(taken.bytes).unwrap_or(usize::MAX);
                let lines = bytes.get(..length).unwrap_or_default();
                if !lines.is_empty() {
                    let at = lines.len().saturating_sub(WITNESS_BYTES);
                    let witness = lines.get(at..).unwrap_or_default().to_vec();
                    tail.witness = (tail.offset.saturating_add(at as u64), witness);
                }
            }
            JitKind::Jitdump if tail.offset == 0 => {
                if let Some(header) = bytes.get(..HEADER_BYTES) {
                    tail.witness = (0, header.to_vec());
                }
            }
            JitKind::Jitdump => {}
        }
        tail.offset = tail.offset.saturating_add(taken.bytes);
        (tail.is_over, tail.is_malformed) = (taken.is_over, taken.is_malformed);
        let is_all = match tail.kind {
            JitKind::PerfMap => bytes.len() < STEP,
            JitKind::Jitdump => taken.bytes == 0 || taken.bytes >= behind || taken.is_over,
        };
        (tail, is_all)
    }
}

/// A file from an offset on.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl io::Read for At<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read_at(into, self.offset)?;
        self.offset = self.offset.saturating_add(bytes as u64);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parser::jit::{JitNames, Text, functions::LIMIT_NAME, jitdump::tests::*};
    use std::{
        fs::{self, OpenOptions},
        io::Write as _,
    };

    /// A file that is read, and what a parser process would know of it.
    struct Reading {
        tail: TailReader,
        names: JitNames,
        held_bytes: u64,
    }

    impl Reading {
        fn of(kind: JitKind) -> Self {
            Self { tail: TailReader::new(kind), names: JitNames::default(), held_bytes: 0 }
        }

        /// Reads a step, and says whether that was all.
        fn step(&mut self, file: &File) -> bool {
            let news = self.tail.news(file).unwrap();
            if !news.is_any() {
                return true;
            }
            let taken = self.names.take(&Text {
                process: 1,
                kind: self.tail.kind,
                is_new: news.is_new,
                is_cut: news.is_cut,
                behind: news.behind,
                bytes: news.bytes.clone(),
            });
            self.held_bytes = taken.held_bytes;
            let (tail, is_all) = news.taken(&taken);
            self.tail = tail;
            is_all
        }

        /// Reads what is new, in as many steps as it takes.
        fn read_on(&mut self, file: &File) {
            while !self.step(file) {}
        }

        fn find(&self, address: u64) -> Option<(u64, String)> {
            let found = self.names.find(1, &[address])?.pop()?.function?;
            Some((found.start, found.name))
        }

        fn name(&self, address: u64) -> Option<String> {
            self.find(address).map(|(_, name)| name)
        }
    }

    #[test]
    fn reads_only_what_is_new() {
        let mut file = tempfile::tempfile().unwrap();
        let mut map = Reading::of(JitKind::PerfMap);
        let filler = "nonsense ".repeat(WITNESS_BYTES);
        write!(file, "1000 10 first\n{filler}\n2000 10 hal").unwrap();
        map.read_on(&file);
        assert_eq!(map.name(0x1000).as_deref(), Some("first"));
        assert_eq!(map.find(0x2000), None);
        // What has been read does not change; that we don't see it if it does shows what is read.
        file.write_all_at(b"x", 8).unwrap();
        file.write_all(b"f\n3000 10 third\n").unwrap();
        map.read_on(&file);
        assert_eq!(map.name(0x1000).as_deref(), Some("first"));
        assert_eq!(map.name(0x2000).as_deref(), Some("half"));
        assert_eq!(map.name(0x3000).as_deref(), Some("third"));
    }

    #[test]
    fn reads_anew_what_was_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let mut map = Reading::of(JitKind::PerfMap);
        fs::write(&path, "1000 10 first\n").unwrap();
        map.read_on(&File::open(&path).unwrap());
        // Shorter.
        fs::write(&path, "2000 10 2nd\n").unwrap();
        map.read_on(&File::open(&path).unwrap());
        assert_eq!((map.find(0x1000), map.find(0x2000)), (None, Some((0x2000, "2nd".to_owned()))));
        // Longer, in the same inode.
        fs::write(&path, "3000 10 third, of another length\n").unwrap();
        map.read_on(&File::open(&path).unwrap());
        assert_eq!(map.find(0x2000), None);
        assert_eq!(map.find(0x3000).unwrap().0, 0x3000);
        // Another inode, with all of the former and more.
        let mut text = fs::read(&path).unwrap();
        text.extend(b"4000 10 fourth\n");
        fs::rename(&path, dir.path().join("old")).unwrap();
        text[0] = b'5';
        fs::write(&path, &text).unwrap();
        map.read_on(&File::open(&path).unwrap());
        assert_eq!((map.find(0x3000), map.find(0x5000).unwrap().0), (None, 0x5000));
        // Nothing is left of it.
        OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        map.read_on(&File::open(&path).unwrap());
        assert_eq!(map.held_bytes, 0);
    }

    #[test]
    fn reads_the_end_of_a_map_of_a_gigabyte() {
        let file = tempfile::tempfile().unwrap();
        let length = 1 << 30;
        file.write_all_at(b"1000 10 first\n", 0).unwrap();
        // The line in which reading begins is cut, and none.
        file.write_all_at(b"\n1000 10 cut\n", length - MAX_MAP_BYTES - 4).unwrap();
        file.write_all_at(b"\n2000 10 last\n", length - 14).unwrap();
        let mut map = Reading::of(JitKind::PerfMap);
        let mut steps = 1;
        while !map.step(&file) {
            steps += 1;
        }
        assert_eq!(steps, MAX_MAP_BYTES / STEP as u64 + 1);
        assert_eq!((map.find(0x1000), map.find(0)), (None, None));
        assert_eq!(map.name(0x2000).as_deref(), Some("last"));
    }

    #[test]
    fn survives_truncation_while_it_is_read() {
        let file = tempfile::tempfile().unwrap();
        let line = b"1000 10 a line of thirty-two b.\n";
        file.write_all_at(&line.repeat(3 << 15), 0).unwrap();
        let mut map = Reading::of(JitKind::PerfMap);
        assert!(!map.step(&file));
        file.set_len(40).unwrap();
        assert!(map.step(&file));
        assert_eq!(map.tail.offset, 32);
    }

    #[test]
    fn reads_on_as_the_file_grows() {
        let file = tempfile::tempfile().unwrap();
        let mut dump = Reading::of(JitKind::Jitdump);
        let first = [header(), load(0x1000, 0x10, b"first", &[0xcc; 0x10])].concat();
        let whole = [&*first, &load(0x2000, 0x10, b"second", &[0xcc; 0x10])].concat();
        for (at, byte) in whole.iter().enumerate() {
            assert_eq!(dump.name(0x1000).is_some(), at >= first.len(), "at {at}");
            assert_eq!(dump.name(0x2000), None, "at {at}");
            file.write_all_at(&[*byte], at as u64).unwrap();
            dump.read_on(&file);
        }
        assert_eq!(dump.name(0x2000).as_deref(), Some("second"));
        // Room for what comes.
        file.set_len(whole.len() as u64 + 4096).unwrap();
        dump.read_on(&file);
        file.write_all_at(&load(0x3000, 1, b"third", &[]), whole.len() as u64).unwrap();
        dump.read_on(&file);
        assert_eq!(dump.name(0x3000).as_deref(), Some("third"));
    }

    #[test]
    fn a_jitdump_that_was_written_anew_is_read_anew() {
        let file = tempfile::tempfile().unwrap();
        let mut dump = Reading::of(JitKind::Jitdump);
        file.write_all_at(&[header(), load(0x1000, 0x10, b"first", &[])].concat(), 0).unwrap();
        dump.read_on(&file);
        let mut other = header();
        other[24] = 1;
        let load = load(0x2000, 0x10, b"of another process", &[]);
        file.write_all_at(&[other, load].concat(), 0).unwrap();
        dump.read_on(&file);
        assert_eq!(dump.name(0x1000), None);
        assert_eq!(dump.name(0x2000).as_deref(), Some("of another process"));
    }

    #[test]
    fn skips_code_and_long_names() {
        let file = tempfile::tempfile().unwrap();
        let (mut dump, size) = (Reading::of(JitKind::Jitdump), 3_u32 << 30);
        let mut large = load(0x1000, 0x10, &[b'n'; 3 * LIMIT_NAME], &[]);
        large[4..8].copy_from_slice(&size.to_ne_bytes());
        let next = HEADER_BYTES as u64 + u64::from(size);
        file.write_all_at(&[header(), large].concat(), 0).unwrap();
        file.write_all_at(&load(0x2000, 0x10, b"behind", &[]), next).unwrap();
        dump.read_on(&file);
        assert_eq!(dump.name(0x1000).map(|it| it.len()), Some(LIMIT_NAME));
        assert_eq!(dump.name(0x2000).as_deref(), Some("behind"));
    }

    #[test]
    fn a_step_is_bounded() {
        let file = tempfile::tempfile().unwrap();
        let record = record(4, &[]);
        let records = record.repeat(3 * STEP / record.len());
        file.write_all_at(&[header(), records].concat(), 0).unwrap();
        let mut dump = Reading::of(JitKind::Jitdump);
        assert!(!dump.step(&file));
        assert!(dump.tail.offset <= STEP as u64);
        // As the file is truncated while it is read.
        file.set_len(STEP as u64 / 2).unwrap();
        dump.read_on(&file);
        assert!(dump.tail.offset <= STEP as u64 / 2);
    }
}
