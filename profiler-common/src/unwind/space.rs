//! What is mapped where, as the walk searches it.
//!
//! The executable mappings of a process, in the order of their addresses, lie in consecutive blocks:
//! the elements of a BPF array. Processes that have the same mappings share their blocks.

/// One executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Mapping {
    /// First address; [`u64::MAX`] in an element that is not in use.
    pub start: u64,
    /// Offset of `start` in the file.
    pub file_offset: u64,
    /// Its size in units of 4 KiB.
    pub pages: u32,
    /// The file's table, by its position; [`NO_TABLE`] where there is no file, or [`NOT_OPEN`].
    pub table: u32,
}

const _: () = assert!(size_of::<Mapping>() == 24, "no implicit padding");

/// Of code without a file, such as what is made at run time.
pub const NO_TABLE: u32 = u32::MAX;
/// Of a file that is not open yet, so that its table has no position.
pub const NOT_OPEN: u32 = u32::MAX - 1;
/// Mappings of a block.
pub const BLOCK_MAPPINGS: u32 = 1 << BLOCK_BITS;
/// Blocks of a process, at most.
pub const SPACE_BLOCKS: u32 = 1 << SPACE_BITS;

const BLOCK_BITS: u32 = 6;
const SPACE_BITS: u32 = 4;

/// One element of the array.
pub type Block = [Mapping; BLOCK_MAPPINGS as usize];

/// What the walk knows of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Space {
    /// Another number whenever mappings change; not zero.
    pub generation: u32,
    /// The first of its blocks.
    pub first_block: u32,
    /// How many there are.
    pub blocks: u32,
    /// How its interpreter's frames are found: one more than the element of the map of interpreters, or 0.
    pub interpreter: u32,
}

impl Mapping {
    /// An element that is not in use.
    pub const UNUSED: Self = Self { start: u64::MAX, file_offset: 0, pages: 0, table: NO_TABLE };
}

/// The blocks, wherever they are.
pub trait Blocks {
    /// The block with this number.
    fn block(&self, number: u32) -> Option<&Block>;
}

/// The mapping that holds the address.
#[inline(always)]
pub fn find<'a>(blocks: &'a impl Blocks, space: &Space, address: u64) -> Option<&'a Mapping> {
    if space.blocks == 0 {
        return None;
    }
    let mut first = space.first_block;
    let mut count = space.blocks;
    if count > 1 {
        // The last block that does not begin behind the address.
        for _ in 0..SPACE_BITS {
            let half = count / 2;
            let middle = first.wrapping_add(half);
            if blocks.block(middle)?.first()?.start <= address {
                first = middle;
                count -= half;
            } else {
                count = half;
            }
        }
    }
    let block = blocks.block(first)?;
    let mut at = 0;
    let mut step = BLOCK_MAPPINGS / 2;
    for _ in 0..BLOCK_BITS {
        if mapping(block, at + step)?.start <= address {
            at += step;
        }
        step /= 2;
    }
    let found = mapping(block, at)?;
    let offset = address.wrapping_sub(found.start);
    (found.start <= address && offset >> 12 < u64::from(found.pages)).then_some(found)
}

/// The masked index is one that the verifier sees to be within the block.
#[inline(always)]
fn mapping(block: &Block, at: u32) -> Option<&Mapping> {
    block.get((at & (BLOCK_MAPPINGS - 1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    struct Memory(Vec<Block>);

    impl Blocks for Memory {
        fn block(&self, number: u32) -> Option<&Block> {
            self.0.get(number as usize)
        }
    }

    #[test]
    fn finds_what_holds_an_address() {
        for count in [1_u32, 2, 63, 64, 65, 128, 500, 1024] {
            // Each mapping has two pages, and the third is a gap.
            let mappings = (0..count).map(|n| Mapping {
                start: u64::from(n + 1) * 3 * 4096,
                pages: 2,
                table: n,
                ..Mapping::UNUSED
            });
            let mappings: Vec<Mapping> = mappings.collect();
            // Others come before.
            let mut blocks = std::vec![[Mapping::UNUSED; 64]; 3];
            for part in mappings.chunks(64) {
                let mut block = [Mapping::UNUSED; 64];
                block[..part.len()].copy_from_slice(part);
                blocks.push(block);
            }
            let space =
                Space { generation: 1, first_block: 3, blocks: count.div_ceil(64), interpreter: 0 };
            let memory = Memory(blocks);
            let table_at = |address| find(&memory, &space, address).map(|found| found.table);
            for (n, mapping) in mappings.iter().enumerate() {
                let n = Some(u32::try_from(n).unwrap());
                assert_eq!(table_at(mapping.start), n);
                assert_eq!(table_at(mapping.start + 8191), n);
                assert_eq!(table_at(mapping.start + 8192), None);
                assert_eq!(table_at(mapping.start - 1), None);
            }
            assert_eq!(table_at(0), None);
            assert_eq!(table_at(u64::MAX), None);
        }
    }
}
