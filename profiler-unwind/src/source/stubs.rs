//! The stubs by which a program calls functions of other files (PLT).

use std::ops::Range;

use object::read::{ReadRef, elf::SectionHeader as _};

use super::{ENDIAN, Sections, by_name};

/// A stub on x86-64, and the part that all of a section share.
const STUB_BYTES: u64 = 16;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `bti c`.
const BTI: [u8; 4] = 0xd503_245f_u32.to_le_bytes();

/// A section of stubs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stubs {
    /// Addresses of the ELF image.
    pub addresses: Range<u64>,
    /// Whether they bind lazily: each also has the code that looks up its function at the first call, and they share
    /// a part at the start of the section.
    pub is_lazy: bool,
    /// Whether each, or on aarch64 the shared part, starts with a landing pad (`endbr64`, `bti c`).
    pub is_marked: bool,
}

/// The sections of stubs.
pub(super) fn stubs<'d, R: ReadRef<'d>>(sections: &Sections<'d, R>, data: R) -> Vec<Stubs> {
    let names = [&b".plt"[..], b".plt.got", b".plt.sec"];
    let stubs = names.into_iter().filter_map(|name| {
        let (_, section) = by_name(sections, name)?;
        let start = section.sh_addr(ENDIAN);
        let addresses = start..start.checked_add(section.sh_size(ENDIAN))?;
        let first = data.read_bytes_at(section.sh_offset(ENDIAN), 8).unwrap_or_default();
        let is_lazy = name == b".plt" && is_shared_part(first);
        let own = section.sh_offset(ENDIAN).checked_add(if is_lazy { STUB_BYTES } else { 0 })?;
        let is_marked = first.starts_with(&BTI) || data.read_bytes_at(own, 4) == Ok(&ENDBR64);
        Some(Stubs { addresses, is_lazy, is_marked })
    });
    stubs.collect()
}

/// Whether stubs start with the shared part, which looks up functions; those of static programs don't. It pushes
/// first, on aarch64 possibly behind a landing pad.
fn is_shared_part(first: &[u8]) -> bool {
    const PUSH: [u8; 2] = [0xff, 0x35];
    const STP: [u8; 4] = 0xa9bf_7bf0_u32.to_le_bytes();
    first.starts_with(&PUSH) || first.strip_prefix(&BTI).unwrap_or(first).starts_with(&STP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_of_static_programs_share_nothing() {
        // push GOT+8(%rip); stp x16, x30, [sp, #-16]!, also behind bti c
        for shared in [
            &[0xff, 0x35, 0xe2, 0x2f, 0, 0, 0xff, 0x25][..],
            &[0xf0, 0x7b, 0xbf, 0xa9, 0x10, 0, 0, 0x90],
            &[0x5f, 0x24, 0x03, 0xd5, 0xf0, 0x7b, 0xbf, 0xa9],
        ] {
            assert!(is_shared_part(shared), "{shared:x?}");
        }
        // jmp *GOT(%rip); adrp x16, also behind bti c
        for own in [
            &[0xff, 0x25, 0xe2, 0x2f, 0, 0, 0x66, 0x90][..],
            &[0x10, 0, 0, 0x90, 0x11, 0x02, 0x40, 0xf9],
            &[0x5f, 0x24, 0x03, 0xd5, 0x10, 0, 0, 0x90],
            &[],
        ] {
            assert!(!is_shared_part(own), "{own:x?}");
        }
    }
}
