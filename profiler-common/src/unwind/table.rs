//! The rules of a file, packed for a search of few steps.
//!
//! A table is an array of 32-bit words, cut into chunks of [`CHUNK_WORDS`], each an element of a BPF
//! array. Addresses are offsets in the file, since these are the same in every process. Code is
//! divided into pages of 4 KiB:
//!
//! | words | |
//! |---|---|
//! | 0, 1 | the first page, and how many pages there are |
//! | 2 to 2 + 2 · pages | of each page, at which word its rows start, and how many rows it has |
//! | rows | of each page, in the order of addresses; those of a page are in one chunk |
//!
//! A row holds from its address to that of the next one, but for some bytes before that which are not
//! described: the padding between two functions. The first row of a page is at its begin, so that no
//! search has to look at the page before. From its upper bits down a row is
//!
//! | bits | |
//! |---|---|
//! | 12 | the address, from the begin of the page |
//! | 4 | how many bytes before the next row are padding |
//! | 16 | the number of the rule |

/// The size of a page, as a power of two.
pub const PAGE_BITS: u32 = 12;
/// Words of a chunk, and so the most rows that a page can have. Real code has a fifth of it.
pub const CHUNK_WORDS: u32 = 1 << CHUNK_BITS;
/// The first word of the pages' index.
pub const INDEX: u32 = 2;
/// Rules that all tables together can have.
pub const RULES: u32 = 1 << 14;

/// Places for tables: each file that a process has mapped as code takes one, whether its table is there or
/// not. A desktop's processes map some 1,500 files.
pub const TABLES: u32 = 1 << 12;
/// The number of the rule of code of which nothing is known.
pub const UNKNOWN: u16 = 0;

/// The first page of a table that was taken out, and can be had again.
pub const TAKEN_OUT: u32 = u32::MAX;

/// The words of one element of the BPF array.
pub type Chunk = [u32; CHUNK_WORDS as usize];

const CHUNK_BITS: u32 = 11;
/// What an address has within its page is in a row's upper bits, so that rows compare as numbers.
const ROW_SHIFT: u32 = 32 - PAGE_BITS;

/// The most bytes of padding that a row can have.
pub const PADDING: u32 = 15;
const PADDING_SHIFT: u32 = 16;

/// A row: from the offset `low` in its page on, the rule with this number holds.
#[must_use]
pub const fn row(low: u32, rule: u16) -> u32 {
    (low << ROW_SHIFT) | rule as u32
}

/// The number of a row's rule.
#[must_use]
pub const fn rule_of(row: u32) -> u16 {
    (row & 0xffff) as u16
}

/// The same row with so many bytes of padding behind it, up to the next row of its page.
#[must_use]
pub const fn padded(row: u32, padding: u32) -> u32 {
    (row & !(PADDING << PADDING_SHIFT)) | ((padding & PADDING) << PADDING_SHIFT)
}

/// How many bytes of padding are behind it.
#[must_use]
pub const fn padding_of(row: u32) -> u32 {
    (row >> PADDING_SHIFT) & PADDING
}

/// The offset in its page from which on a row holds.
#[must_use]
pub const fn low_of(row: u32) -> u32 {
    row >> ROW_SHIFT
}

/// A table, wherever it is.
pub trait Chunks {
    /// The chunk with this number.
    fn chunk(&self, number: u32) -> Option<&Chunk>;
}

/// The number of the rule for the code at an offset in the file; `None` if that lies outside of the
/// table.
#[inline(always)]
pub fn find(table: &impl Chunks, offset: u64) -> Option<u16> {
    let [first_page, pages, ..] = *table.chunk(0)?;
    let page = u32::try_from(offset >> PAGE_BITS).ok()?.wrapping_sub(first_page);
    if page >= pages {
        return None;
    }
    let at = page.wrapping_mul(2).wrapping_add(INDEX);
    let index = table.chunk(at >> CHUNK_BITS)?;
    let (first, mut rows) = (word(index, at), word(index, at + 1));
    let chunk = table.chunk(first >> CHUNK_BITS)?;
    let low = u32::try_from(offset & ((1 << PAGE_BITS) - 1)).ok()?;
    // Not above any row for this address.
    let wanted = padded(row(low, u16::MAX), PADDING);
    let (mut first, last) = (first, first.wrapping_add(rows).wrapping_sub(1));
    for _ in 0..CHUNK_BITS {
        let half = rows / 2;
        let middle = first.wrapping_add(half);
        if word(chunk, middle) <= wanted {
            first = middle;
            rows -= half;
        } else {
            rows = half;
        }
    }
    let found = word(chunk, first);
    let padding = padding_of(found);
    if padding > 0 && first != last && low + padding >= low_of(word(chunk, first + 1)) {
        return Some(UNKNOWN);
    }
    Some(rule_of(found))
}

/// The masked index is one that the verifier sees to be within the chunk.
#[inline(always)]
fn word(chunk: &Chunk, at: u32) -> u32 {
    chunk.get((at & (CHUNK_WORDS - 1)) as usize).copied().unwrap_or(0)
}
