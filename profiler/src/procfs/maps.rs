//! `/proc/PID/maps`: which file is mapped where.
//!
//! Format: `proc_pid_maps(5)`. Only executable mappings are kept, since code is all that a stack
//! points into.

use std::sync::Arc;

/// Which file is mapped: its place in a file system, as the kernel tells it. On overlays and subvolumes
/// `stat` says another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MappedId {
    /// Device, major number.
    pub major: u32,
    /// Device, minor number.
    pub minor: u32,
    /// Inode number.
    pub inode: u64,
    /// Counts the files that had this inode number, on file systems that keep one. `/proc` does not tell
    /// it.
    pub generation: Option<u32>,
}

/// What is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing<F> {
    /// A file, also one that has been deleted.
    File(F),
    /// The kernel's vDSO.
    Vdso,
    /// No file: code made at run time, or the legacy vsyscall page.
    Anonymous,
}

impl<F> Backing<F> {
    /// What the kernel means by a mapping's name, and the file if there is one.
    pub(crate) fn of(name: &str, file: Option<F>) -> Self {
        match (name, file) {
            ("[vdso]", _) => Self::Vdso,
            (_, Some(file)) => Self::File(file),
            _ => Self::Anonymous,
        }
    }
}

/// One executable mapping; `F` says which file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<F> {
    /// First address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// Offset of `start` in the file.
    pub file_offset: u64,
    /// What is mapped.
    pub backing: Backing<F>,
    /// The name in the last column, as the process sees it; may be empty.
    pub name: Arc<str>,
}

impl<F> Mapping<F> {
    /// The offset in the file of an address of this mapping.
    #[must_use]
    pub fn file_offset_of(&self, address: u64) -> u64 {
        address.wrapping_sub(self.start).wrapping_add(self.file_offset)
    }
}

/// The executable mappings in a `/proc/PID/maps`, in the order of their addresses. A line that can't
/// be read is skipped.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<Mapping<MappedId>> {
    let mut mappings: Vec<_> = text.split(|&byte| byte == b'\n').filter_map(line).collect();
    // The kernel writes them in order; a search depends on it.
    mappings.sort_by_key(|mapping| mapping.start);
    mappings
}

/// The mapping that holds the address, in a list ordered by address.
#[must_use]
pub fn find<F>(mappings: &[Mapping<F>], address: u64) -> Option<&Mapping<F>> {
    let behind = mappings.partition_point(|mapping| mapping.start <= address);
    mappings.get(behind.checked_sub(1)?).filter(|mapping| address < mapping.end)
}

/// `55d0c1e00000-55d0c1f00000 r-xp 00026000 fe:00 1234   /usr/sbin/mysqld`
fn line(line: &[u8]) -> Option<Mapping<MappedId>> {
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|&byte| byte != b' ')?;
        let trimmed = rest.get(start..)?;
        let end = trimmed.iter().position(|&byte| byte == b' ').unwrap_or(trimmed.len());
        let (field, behind) = trimmed.split_at_checked(end)?;
        rest = behind;
        std::str::from_utf8(field).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?;
    let file_offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?.parse().ok()?;
    if permissions.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    // A name may hold blanks, and bytes that are no UTF-8.
    let blank = rest.iter().position(|&byte| byte != b' ').unwrap_or(rest.len());
    let name = String::from_utf8_lossy(rest.get(blank..)?);
    // Which file with this inode number it is, the kernel does not say here.
    let (major, minor) = (hex32(major)?, hex32(minor)?);
    let id = MappedId { major, minor, inode, generation: None };
    let backing = Backing::of(&name, (inode != 0).then_some(id));
    let (start, end) = (hex(start)?, hex(end)?);
    (start < end).then(|| Mapping { start, end, file_offset, backing, name: name.into() })
}

fn hex(text: &str) -> Option<u64> {
    // `from_str_radix` alone would take a plus sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if digits { u64::from_str_radix(text, 16).ok() } else { None }
}

fn hex32(text: &str) -> Option<u32> {
    hex(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAPS: &[u8] = b"\
55d0c1000000-55d0c1026000 r--p 00000000 fe:00 1234                       /usr/bin/a b
55d0c1026000-55d0c1100000 r-xp 00026000 fe:00 1234                       /usr/bin/a b
7f0000000000-7f0000001000 rwxp 00000000 00:00 0 
7f0000010000-7f0000011000 r-xp 00000000 00:05 77                         /memfd:jit (deleted)
7fff00000000-7fff00002000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn keeps_the_executable_ones() {
        let mappings = parse(MAPS);
        let names: Vec<&str> = mappings.iter().map(|mapping| &*mapping.name).collect();
        assert_eq!(names, ["/usr/bin/a b", "", "/memfd:jit (deleted)", "[vdso]", "[vsyscall]"]);
        let file = MappedId { major: 0xfe, minor: 0, inode: 1234, generation: None };
        assert_eq!(mappings[0].backing, Backing::File(file));
        assert_eq!(mappings[0].file_offset_of(0x55d0_c102_6010), 0x26010);
        assert_eq!(mappings[1].backing, Backing::Anonymous);
        assert_eq!(mappings[3].backing, Backing::Vdso);
    }

    #[test]
    fn finds_by_address() {
        let mappings = parse(MAPS);
        let name = |address| find(&mappings, address).map(|mapping| mapping.name.to_string());
        assert_eq!(name(0x55d0_c102_6000).as_deref(), Some("/usr/bin/a b"));
        assert_eq!(name(0x55d0_c10f_ffff).as_deref(), Some("/usr/bin/a b"));
        assert_eq!(name(0x55d0_c110_0000), None);
        assert_eq!(name(0), None);
        assert_eq!(name(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_sound_mappings(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for mapping in parse(&bytes) {
                prop_assert!(mapping.start < mapping.end);
            }
        }

        #[test]
        fn nearly_right_lines_too(text in "[0-9a-f]{0,18}-[0-9a-f]{0,18} [r-][w-]x[ps] [0-9a-f]{1,17} [0-9a-f]{1,9}:00 [0-9]{1,21} ?.{0,9}") {
            let _ = parse(text.as_bytes());
        }
    }
}
