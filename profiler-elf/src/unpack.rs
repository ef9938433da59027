//! Compressed sections, unpacked within a limit: whoever runs a program has written its file.

use std::{
    io::{self, Read},
    panic,
};

use flate2::read::ZlibDecoder;
use ruzstd::decoding::StreamingDecoder;

/// How sections named `.zdebug_…` begin, which are older than the flag `SHF_COMPRESSED`: the unpacked size
/// follows, eight bytes in big endian.
const ZDEBUG_MAGIC: &[u8] = b"ZLIB";

/// How a section is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// `ELFCOMPRESS_ZLIB`.
    Zlib,
    /// `ELFCOMPRESS_ZSTD`.
    Zstd,
}

/// Unpacks a section, which is to have so many bytes unpacked.
///
/// `None` if it is damaged, or if it has another number of bytes, or more than `limit_bytes` packed or
/// unpacked.
#[must_use]
pub fn unpack(packing: Packing, packed: &[u8], bytes: u64, limit_bytes: u64) -> Option<Vec<u8>> {
    if bytes > limit_bytes || packed.len() as u64 > limit_bytes {
        return None;
    }
    // What an unpacker does not expect costs this section only.
    let unpacked = panic::catch_unwind(|| match packing {
        Packing::Zlib => read(ZlibDecoder::new(packed), bytes),
        Packing::Zstd => read(StreamingDecoder::new(packed).map_err(io::Error::other)?, bytes),
    });
    unpacked.ok()?.ok().filter(|it| it.len() as u64 == bytes)
}

/// Unpacks a section named `.zdebug_…`, which begins with its unpacked size. `None` as of [`unpack`].
#[must_use]
pub fn unpack_zdebug(section: &[u8], limit_bytes: u64) -> Option<Vec<u8>> {
    let (bytes, packed) = section.strip_prefix(ZDEBUG_MAGIC)?.split_first_chunk()?;
    unpack(Packing::Zlib, packed, u64::from_be_bytes(*bytes), limit_bytes)
}

/// Grows with what is read, not by what is said, and reads at most one byte too many.
fn read(unpacker: impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    unpacker.take(bytes.saturating_add(1)).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::ZlibEncoder};
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write as _;

    const LIMIT: u64 = 1 << 20;

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn both(bytes: &[u8]) -> [(Packing, Vec<u8>); 2] {
        let zstd = compress_to_vec(bytes, CompressionLevel::Fastest);
        [(Packing::Zlib, zlib(bytes)), (Packing::Zstd, zstd)]
    }

    #[test]
    fn what_was_packed_comes_out() {
        let text: Vec<u8> = (0..50_000u32).flat_map(u32::to_le_bytes).collect();
        let bytes = text.len() as u64;
        for (packing, packed) in both(&text) {
            assert_eq!(unpack(packing, &packed, bytes, LIMIT).as_ref(), Some(&text), "{packing:?}");
            for other in [bytes - 1, bytes + 1, 0, u64::MAX] {
                assert_eq!(unpack(packing, &packed, other, LIMIT), None, "{packing:?} {other}");
            }
        }
        let old = [ZDEBUG_MAGIC, &bytes.to_be_bytes(), &zlib(&text)].concat();
        assert_eq!(unpack_zdebug(&old, LIMIT), Some(text));
        assert_eq!(unpack_zdebug(&old[1..], LIMIT), None);
        assert_eq!(unpack_zdebug(b"ZLIB\0\0", LIMIT), None);
    }

    #[test]
    fn what_is_unpacked_is_bounded() {
        let size = usize::try_from(LIMIT).unwrap();
        for (packing, bomb) in both(&vec![0; 8 * size]) {
            assert!(bomb.len() < size / 10, "{packing:?}: {}", bomb.len());
            assert!(unpack(packing, &bomb, 8 * LIMIT, 8 * LIMIT).is_some());
            assert_eq!(unpack(packing, &bomb, 8 * LIMIT, LIMIT), None);
            // It says less than it is.
            assert_eq!(unpack(packing, &bomb, LIMIT, LIMIT), None);
        }
        // It says more than it is, which is not believed before it is read.
        for (packing, nothing) in both(b"") {
            assert_eq!(unpack(packing, &nothing, 64 << 20, 64 << 20), None);
        }
    }

    #[test]
    fn what_is_damaged_is_no_harm() {
        let text: Vec<u8> = (0..5_000u32).flat_map(u32::to_le_bytes).collect();
        let bytes = text.len() as u64;
        for (packing, packed) in both(&text) {
            for at in (0..packed.len()).step_by(53) {
                assert_eq!(unpack(packing, &packed[..at], bytes, LIMIT), None);
                let mut damaged = packed.clone();
                damaged[at] ^= 0x55;
                let _ = unpack(packing, &damaged, bytes, LIMIT);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_harm(
            packed in prop::collection::vec(any::<u8>(), 0..300),
            bytes in 1..1000_u64,
        ) {
            // The frame's magic, so that more than that is read.
            let zstd = [&[0x28, 0xb5, 0x2f, 0xfd][..], &packed].concat();
            let _ = unpack(Packing::Zstd, &zstd, bytes, LIMIT);
            let _ = unpack(Packing::Zlib, &[&[0x78, 0x9c][..], &packed].concat(), bytes, LIMIT);
            let _ = unpack_zdebug(&packed, LIMIT);
        }
    }
}
