//! Which names of threads, or texts of tracepoints, match a set of patterns: an automaton that the eBPF program runs, of
//! a few instructions a byte.
//!
//! All patterns are matched at once, by the shift-and method of R. Baeza-Yates and G. Gonnet, "A New Approach to Text
//! Searching", Communications of the ACM 35 (10), 1992. A pattern of `m` elements has `m + 1` bits in a row; bit `i` is
//! set while the name so far matches the first `i` elements. The agent builds the table, and the program gets it as a
//! map with [`ENTRIES`] entries: for each byte the states whose next element accepts it, and then [`START`],
//! [`REPEATING`] and [`MATCHED`].

/// How many words of states there are.
pub const WORDS: usize = 4;

/// A bit for each state of each pattern.
pub type States = [u64; WORDS];

/// Where the table has the states before the first byte.
pub const START: u32 = 256;
/// Where it has the states that any byte leaves as they are: a `*` stands there.
pub const REPEATING: u32 = 257;
/// Where it has the last state of each pattern.
pub const MATCHED: u32 = 258;
/// The length of the table.
pub const ENTRIES: u32 = 259;

/// Whether a name, which ends at its first zero, matches one of the patterns; `false` if the table lacks an entry.
#[inline]
pub fn matches<'a, const LEN: usize>(
    name: &[u8; LEN],
    entry: impl Fn(u32) -> Option<&'a States>,
) -> bool {
    let (Some(start), Some(repeating), Some(matched)) =
        (entry(START), entry(REPEATING), entry(MATCHED))
    else {
        return false;
    };
    let mut states = *start;
    for &byte in name {
        if byte == 0 {
            break;
        }
        let Some(accepting) = entry(u32::from(byte)) else { return false };
        for ((states, accepting), repeating) in states.iter_mut().zip(accepting).zip(repeating) {
            // No element follows the last state, so no bit is carried into the next pattern.
            *states = ((*states & accepting) << 1) | (*states & repeating);
        }
    }
    states.iter().zip(matched).any(|(states, matched)| states & matched != 0)
}
