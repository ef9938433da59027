//! Which function lies where, in memory that is used again and again.

use std::{collections::BTreeMap, sync::Arc};

/// The most functions that are kept.
const LIMIT_FUNCTIONS: usize = 1 << 20;
/// The most bytes of their names.
const LIMIT_BYTES: usize = 64 << 20;
/// The most bytes of a name that are kept.
pub(crate) const LIMIT_NAME: usize = 4 << 10;

/// A function, or what others have left of it.
#[derive(Clone, Debug)]
struct Piece {
    end: u64,
    /// Where the function began, which may lie before the piece.
    start: u64,
    name: Arc<str>,
}

/// What a piece takes: a tree's nodes are at least half full, and a name has its counts and the allocator's share.
const ENTRY_BYTES: usize = 2 * size_of::<(u64, Piece)>() + 32;

/// Addresses of which the same holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span<'a> {
    pub(super) first: u64,
    pub(super) last: u64,
    /// Start and name of the function that is there.
    pub(super) function: Option<(u64, &'a Arc<str>)>,
}

/// Functions by address. Where two overlap, the one that came later holds.
#[derive(Debug)]
pub(super) struct Functions {
    /// By their first address.
    pieces: BTreeMap<u64, Piece>,
    name_bytes: usize,
    /// What all may take.
    limit_bytes: usize,
}

impl Default for Functions {
    fn default() -> Self {
        Self { pieces: BTreeMap::new(), name_bytes: 0, limit_bytes: usize::MAX }
    }
}

impl Functions {
    /// Sets what all of them may take from here on.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.limit_bytes = bytes;
    }

    /// Adds a function. What is not UTF-8 in its name is replaced. Beyond the limits it is left out,
    /// but what was known of its addresses before no longer holds.
    pub(super) fn add(&mut self, start: u64, size: u64, name: &[u8]) {
        let name = name.get(..LIMIT_NAME).unwrap_or(name);
        self.set(start, size, String::from_utf8_lossy(name).into());
    }

    /// Takes the function that begins at an address to another.
    pub(super) fn relocate(&mut self, from: u64, to: u64, size: u64) {
        let Some((_, name)) = self.find(from).filter(|(start, _)| *start == from) else {
            return self.remove(to, to.saturating_add(size));
        };
        self.remove(from, from.saturating_add(size));
        self.set(to, size, name);
    }

    /// Start and name of the function that holds the address.
    pub(super) fn find(&self, address: u64) -> Option<(u64, Arc<str>)> {
        let (_, piece) = self.pieces.range(..=address).next_back()?;
        (address < piece.end).then(|| (piece.start, Arc::clone(&piece.name)))
    }

    /// What is at an address, and how far around it the same holds.
    pub(super) fn span(&self, address: u64) -> Span<'_> {
        let before = self.pieces.range(..=address).next_back();
        if let Some((&first, piece)) = before.filter(|(_, piece)| address < piece.end) {
            let function = Some((piece.start, &piece.name));
            return Span { first, last: piece.end.saturating_sub(1), function };
        }
        let behind = address.checked_add(1).and_then(|it| self.pieces.range(it..).next());
        Span {
            first: before.map_or(0, |(_, piece)| piece.end),
            last: behind.map_or(u64::MAX, |(start, _)| start.saturating_sub(1)),
            function: None,
        }
    }

    /// The memory it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.pieces.len() * ENTRY_BYTES + self.name_bytes
    }

    fn set(&mut self, start: u64, size: u64, name: Arc<str>) {
        let Some(end) = start.checked_add(size).filter(|_| size > 0) else { return };
        self.remove(start, end);
        if !name.is_empty() {
            self.put(start, Piece { end, start, name });
        }
    }

    /// Forgets what lies in a range; what reaches beyond it stays there.
    fn remove(&mut self, start: u64, end: u64) {
        // Of those that begin before the range's end, the last also ends last.
        while let Some((&from, piece)) = self.pieces.range(..end).next_back()
            && piece.end > start
        {
            let Some(piece) = self.pieces.remove(&from) else { return };
            self.name_bytes -= piece.name.len();
            if from < start {
                self.put(from, Piece { end: start, ..piece.clone() });
            }
            if piece.end > end {
                self.put(end, piece);
            }
        }
    }

    fn put(&mut self, from: u64, piece: Piece) {
        let name_bytes = self.name_bytes + piece.name.len();
        let bytes = (self.pieces.len() + 1) * ENTRY_BYTES + name_bytes;
        if self.pieces.len() < LIMIT_FUNCTIONS
            && name_bytes <= LIMIT_BYTES
            && bytes <= self.limit_bytes
        {
            self.name_bytes = name_bytes;
            self.pieces.insert(from, piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(functions: &Functions, addresses: impl IntoIterator<Item = u64>) -> String {
        let name = |address| functions.find(address).map_or(".".into(), |(_, name)| name);
        addresses.into_iter().map(|address| name(address).to_string()).collect()
    }

    #[test]
    fn the_later_holds() {
        let mut functions = Functions::default();
        functions.add(2, 6, b"a");
        assert_eq!(names(&functions, 0..10), "..aaaaaa..");
        functions.add(4, 2, b"b");
        assert_eq!(names(&functions, 0..10), "..aabbaa..");
        assert_eq!(functions.find(7).unwrap().0, 2);
        functions.add(5, 2, b"c");
        assert_eq!(names(&functions, 0..10), "..aabcca..");
        functions.add(0, 9, b"d");
        assert_eq!(names(&functions, 0..10), "ddddddddd.");
        assert_eq!((functions.pieces.len(), functions.name_bytes), (1, 1));
    }

    #[test]
    fn a_function_moves_with_its_name() {
        let mut functions = Functions::default();
        functions.add(10, 4, b"a");
        functions.add(16, 4, b"b");
        functions.relocate(10, 8, 4);
        assert_eq!(names(&functions, 8..20), "aaaa....bbbb");
        // There is none, so nobody knows what has come to its new place.
        functions.relocate(11, 14, 4);
        assert_eq!(names(&functions, 8..20), "aaaa......bb");
    }

    #[test]
    fn what_can_not_be_is_left_out() {
        let mut functions = Functions::default();
        functions.add(u64::MAX, 1, b"beyond all addresses");
        functions.add(10, 0, b"empty");
        functions.add(20, 1, b"");
        assert!(functions.pieces.is_empty());
    }

    #[test]
    fn is_bounded() {
        let mut functions = Functions::default();
        functions.add(u64::MAX - 1, 1, &[b'x'; 2 * LIMIT_NAME]);
        assert_eq!(functions.name_bytes, LIMIT_NAME);
        for start in 0..=LIMIT_FUNCTIONS as u64 {
            functions.add(2 * start, 1, b"f");
        }
        assert_eq!(functions.pieces.len(), LIMIT_FUNCTIONS);
        functions.add(1, 1, b"one too many");
        assert_eq!(names(&functions, 0..4), "f.f.");
    }

    proptest! {
        #[test]
        fn as_if_each_address_were_kept(adds in prop::collection::vec((0_usize..40, 0_usize..10, 0_usize..40, any::<bool>()), 0..60)) {
            let mut functions = Functions::default();
            let mut plain = vec![None; 64];
            for (n, (start, size, to, is_add)) in adds.into_iter().enumerate() {
                if is_add {
                    functions.add(start as u64, size as u64, n.to_string().as_bytes());
                    plain[start..start + size].fill(Some((start, n)));
                    continue;
                }
                functions.relocate(start as u64, to as u64, size as u64);
                let known = plain[start].filter(|(from, _)| *from == start);
                if known.is_some() {
                    plain[start..start + size].fill(None);
                }
                plain[to..to + size].fill(known.map(|(_, n)| (to, n)));
            }
            for (address, expected) in plain.into_iter().enumerate() {
                let address = address as u64;
                let found = functions.find(address);
                let span = functions.span(address);
                prop_assert!((span.first..=span.last).contains(&address));
                prop_assert_eq!(span.function.map(|(start, name)| (start, name.clone())), found.clone());
                for end in [span.first, span.last] {
                    prop_assert_eq!(functions.find(end), found.clone());
                }
                let found = found.map(|(start, name)| (start, name.parse().unwrap()));
                prop_assert_eq!(found, expected.map(|(start, n)| (start as u64, n)));
            }
            let bytes: usize = functions.pieces.values().map(|piece| piece.name.len()).sum();
            prop_assert_eq!(functions.name_bytes, bytes);
        }
    }
}
