//! Which Go has made a table, and where the program's code begins.

use super::number;

/// Of Go 1.18, and of 1.20 and later.
const MAGICS: [u32; 2] = [0xffff_fff0, NEWEST];
pub(super) const NEWEST: u32 = 0xffff_fff1;
/// Those before 1.18 have these, which would be among the later ones.
pub(super) const OLD_MAGICS: [u32; 2] = [0xffff_fffa, 0xffff_fffb];
/// Where the header has the address of the code.
pub(super) const TEXT_AT: usize = 24;
/// Where `moduledata` has the address of the table, and those of the functions and of the code, first and
/// last each.
const MODULE_TABLE_AT: usize = 0;
pub(super) const MODULE_CODE_AT: usize = 160;

/// Which Go has made a table, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Go 1.18 to 1.26, which can be read.
    Known {
        /// The address where the code starts, if the table has it.
        text: Option<u64>,
    },
    /// A later Go.
    Newer,
    /// An earlier Go, or none.
    Other,
}

impl Version {
    /// That of a table.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let Some((magic, rest)) = bytes.split_first_chunk() else { return Self::Other };
        // Two bytes of zero, the size of the smallest instruction, that of a pointer.
        let Some([0, 0, 1 | 4, 8]) = rest.first_chunk() else { return Self::Other };
        match u32::from_le_bytes(*magic) {
            magic if MAGICS.contains(&magic) => {
                Self::Known { text: number(bytes, TEXT_AT).filter(|it| *it != 0) }
            }
            // They have been counted up from 1.18 on.
            magic if magic > NEWEST && !OLD_MAGICS.contains(&magic) => Self::Newer,
            _ => Self::Other,
        }
    }
}

/// Where the code begins, by `moduledata` of a program whose table is at an address; `None` where it does
/// not look like that.
pub(crate) fn text_of_module(module: &[u8], table: u64) -> Option<u64> {
    let of_code = |index: usize| number(module, MODULE_CODE_AT + index * 8);
    let (first, last, text, end) = (of_code(0)?, of_code(1)?, of_code(2)?, of_code(3)?);
    let is_it = number(module, MODULE_TABLE_AT)? == table
        && text != 0
        && text <= first
        && first < last
        && last <= end;
    is_it.then_some(text)
}
