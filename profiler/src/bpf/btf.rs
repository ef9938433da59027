//! The kernel's description of its own types, as far as it is asked here.
//!
//! Format: <https://docs.kernel.org/bpf/btf.html>.

/// Where the kernel has it.
pub(crate) const PATH: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;

/// A structure of the kernel.
#[derive(Debug)]
pub(crate) struct Struct<'a> {
    /// In bytes.
    pub(crate) size: u32,
    /// By twelve bytes: name, type, and where it begins, in bits.
    members: &'a [u8],
    /// Whether that has the width of a bit field in its upper byte.
    has_widths: bool,
    names: &'a [u8],
}

impl Struct<'_> {
    /// Where a member is, in bytes.
    pub(crate) fn offset_of(&self, name: &str) -> Option<u32> {
        let member =
            |member: &&[u8]| name_at(self.names, u32_at(member, 0)) == Some(name.as_bytes());
        let member = self.members.chunks_exact(12).find(member)?;
        let bits = u32_at(member, 8)?;
        Some(if self.has_widths { bits & 0xff_ffff } else { bits } / 8)
    }
}

/// The structure of this name.
pub(crate) fn find<'a>(btf: &'a [u8], name: &str) -> Option<Struct<'a>> {
    if btf.first_chunk().copied().map(u16::from_ne_bytes) != Some(MAGIC) {
        return None;
    }
    let part = |offset, bytes| -> Option<&[u8]> {
        let start = u32_at(btf, 4)?.checked_add(u32_at(btf, offset)?)? as usize;
        btf.get(start..)?.get(..u32_at(btf, bytes)? as usize)
    };
    let (mut types, names) = (part(8, 12)?, part(16, 20)?);
    loop {
        let info = u32_at(types, 4)?;
        let (kind, count, has_widths) =
            (info >> 24 & 0x1f, info as usize & 0xffff, info >> 31 != 0);
        let rest = behind(kind, count)?;
        let body = types.get(12..)?.get(..rest)?;
        if kind == STRUCT && name_at(names, u32_at(types, 0)) == Some(name.as_bytes()) {
            return Some(Struct { size: u32_at(types, 8)?, members: body, has_widths, names });
        }
        types = types.get(12 + rest..)?;
    }
}

/// How many bytes follow the twelve that a type of each kind begins with.
fn behind(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // Pointers, forwards, typedefs, qualifiers, functions, floats and tags of types.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables and tags of declarations.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections and enumerations of 64 bits.
        4 | 5 | 15 | 19 => 12 * count,
        // Enumerations and prototypes.
        6 | 13 => 8 * count,
        _ => return None,
    })
}

/// A name without the zero at its end.
fn name_at(names: &[u8], at: Option<u32>) -> Option<&[u8]> {
    names.get(at? as usize..)?.split(|byte| *byte == 0).next()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An integer, a pointer, an enumeration, `task` and `task_struct`.
    fn example() -> Vec<u8> {
        let names = b"\0int\0task\0task_struct\0state\0stack\0";
        let at = |name: &str| {
            let name = [name.as_bytes(), b"\0"].concat();
            u32::try_from(names.windows(name.len()).position(|it| it == name).unwrap()).unwrap()
        };
        let kind = |kind: u32, count: u32| kind << 24 | count;
        let types = [
            &[at("int"), kind(1, 0), 4, 32][..],
            &[0, kind(2, 0), 1],
            &[0, kind(6, 1), 4, at("state"), 7],
            &[at("task"), kind(4, 1), 8, at("stack"), 2, 64],
            &[at("task_struct"), kind(4, 2) | 1 << 31, 24],
            // A bit field of three bits.
            &[at("state"), 1, 3 << 24 | 5, at("stack"), 2, 128],
        ];
        let types: Vec<u8> = types.concat().iter().flat_map(|word| word.to_ne_bytes()).collect();
        let bytes = |part: &[u8]| u32::try_from(part.len()).unwrap();
        let (type_bytes, name_bytes) = (bytes(&types), bytes(names));
        let header = [24, 0, type_bytes, type_bytes, name_bytes];
        let mut btf = [&MAGIC.to_ne_bytes()[..], &[1, 0]].concat();
        btf.extend(header.iter().flat_map(|word: &u32| word.to_ne_bytes()));
        [btf, types, names.to_vec()].concat()
    }

    #[test]
    fn members_are_found_behind_types_of_other_kinds() {
        let btf = example();
        let task = find(&btf, "task_struct").unwrap();
        assert_eq!(task.size, 24);
        assert_eq!(task.offset_of("stack"), Some(16));
        assert_eq!(task.offset_of("state"), Some(0));
        assert_eq!(task.offset_of("none"), None);
        assert_eq!(find(&btf, "task").unwrap().offset_of("stack"), Some(8));
        assert!(find(&btf, "none").is_none());
    }

    #[test]
    fn what_is_cut_off_is_no_description() {
        let btf = example();
        let names = btf.len() - 34;
        for len in 0..names {
            assert!(find(&btf[..len], "task_struct").is_none(), "{len}");
        }
        assert!(find(&[0; 64], "task_struct").is_none());
    }
}
