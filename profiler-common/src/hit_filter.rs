//! Which hits of a tracepoint are wanted, by what their fields say: a small program that the agent makes of
//! `--filter`, and the eBPF program runs at each hit.
//!
//! It is a list of tests. Each says which test comes next if it holds, and which if not: always a later one, or one of
//! the two ends. So a run takes at most as many steps as there are tests, and what `&&`, `||`, `!` and parentheses
//! mean is in the order alone.

/// Tests of a filter, at most.
pub const MAX_TESTS: usize = 16;

/// Patterns for text of all filters of a run, at most.
pub const MAX_TEXTS: u32 = 8;

/// How much of a text is looked at, in bytes with the zero at its end.
pub const TEXT_BYTES: usize = 256;

/// In place of the next test: the hit is wanted.
pub const WANTED: u8 = 0xff;
/// In place of the next test: it is not.
pub const UNWANTED: u8 = 0xfe;

/// A filter. A list that ends before one of the ends is reached lets no hit through.
pub type Tests = [Test; MAX_TESTS];

/// One test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Test {
    /// What numbers are compared with; of text, which pattern.
    pub value: u64,
    /// Where the field is in the tracepoint's record, in bytes.
    pub offset: u16,
    /// How long a text is at most, in bytes.
    pub bytes: u16,
    /// A [`Field`].
    pub field: u8,
    /// A [`Compare`].
    pub compare: u8,
    /// The next test if it holds.
    pub if_true: u8,
    /// The next test if not.
    pub if_false: u8,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Field {
    /// A number of one byte.
    U8,
    /// Of two.
    U16,
    /// Of four.
    U32,
    /// Of eight.
    U64,
    /// A number of one byte with a sign.
    I8,
    /// Of two.
    I16,
    /// Of four.
    I32,
    /// Of eight.
    I64,
    /// The thread's id.
    Tid,
    /// The CPU's number.
    Cpu,
    /// A text in the record, which ends at its first zero or at its end.
    Text,
    /// A text somewhere behind the fields. There is a word of four bytes at the offset: the upper half is its length,
    /// the lower its place in the record.
    DataLoc,
    /// The same, but the place is counted from behind the word (Linux 5.18).
    RelLoc,
    /// The thread's name.
    Comm,
}

impl Field {
    const ALL: [Self; 14] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::Tid,
        Self::Cpu,
        Self::Text,
        Self::DataLoc,
        Self::RelLoc,
        Self::Comm,
    ];

    /// The field of this number.
    #[must_use]
    pub fn from_wire(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }

    /// That of a number of so many bytes.
    #[must_use]
    pub fn number(bytes: u64, signed: bool) -> Option<Self> {
        Some(match (bytes, signed) {
            (1, false) => Self::U8,
            (2, false) => Self::U16,
            (4, false) => Self::U32,
            (8, false) => Self::U64,
            (1, true) => Self::I8,
            (2, true) => Self::I16,
            (4, true) => Self::I32,
            (8, true) => Self::I64,
            _ => return None,
        })
    }

    /// Whether it is text.
    #[must_use]
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::DataLoc | Self::RelLoc | Self::Comm)
    }
}

/// How a number is compared; of text, only whether it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compare {
    /// It is the value, or matches the pattern.
    Equal,
    /// It is less.
    Less,
    /// It is less or the same.
    AtMost,
    /// It has some of the value's bits.
    HasBits,
}

/// A number as it lies in the record: the first of eight bytes, of which those that are not its own are zero.
#[inline]
#[must_use]
pub fn number(field: u8, raw: u64) -> u64 {
    const I8: u8 = Field::I8 as u8;
    const I16: u8 = Field::I16 as u8;
    const I32: u8 = Field::I32 as u8;
    match field {
        I8 => extended(raw, 8),
        I16 => extended(raw, 16),
        I32 => extended(raw, 32),
        _ => raw,
    }
}

/// A number of so many bits, with its sign in those above.
#[inline]
const fn extended(raw: u64, bits: u32) -> u64 {
    let above = u64::BITS - bits;
    ((raw << above).cast_signed() >> above).cast_unsigned()
}

/// How many bytes a number has; 0 of what is no number in the record.
#[inline]
#[must_use]
pub fn number_bytes(field: u8) -> u32 {
    if field <= Field::I64 as u8 { 1 << (field & 3) } else { 0 }
}

/// Whether a number is as a test wants it.
#[inline]
#[must_use]
pub fn holds(test: &Test, value: u64) -> bool {
    const LESS: u8 = Compare::Less as u8;
    const AT_MOST: u8 = Compare::AtMost as u8;
    const HAS_BITS: u8 = Compare::HasBits as u8;
    // Numbers with a sign are in the order of those without once the bit of the sign is turned around.
    let has_sign = test.field >= Field::I8 as u8 && test.field <= Field::I64 as u8;
    let sign = if has_sign { 1 << 63 } else { 0 };
    let (left, right) = (value ^ sign, test.value ^ sign);
    match test.compare {
        LESS => left < right,
        AT_MOST => left <= right,
        HAS_BITS => value & test.value != 0,
        _ => left == right,
    }
}

/// Where a text is that a word tells: its place in the record, and its length.
#[inline]
#[must_use]
pub fn place(test: &Test, word: u32) -> (u32, u32) {
    let (at, bytes) = (word & 0xffff, word >> 16);
    let behind_word = u32::from(test.offset) + 4;
    (if test.field == Field::RelLoc as u8 { behind_word + at } else { at }, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(field: Field, compare: Compare, value: u64) -> Test {
        Test { field: field as u8, compare: compare as u8, value, ..Test::default() }
    }

    #[test]
    fn a_field_is_known_by_its_number() {
        for field in Field::ALL {
            assert_eq!(Field::from_wire(field as u8), Some(field));
        }
        assert_eq!(Field::from_wire(14), None);
        assert_eq!(Field::number(4, true), Some(Field::I32));
        assert_eq!(Field::number(3, true), None);
        let sizes = Field::ALL.map(|field| number_bytes(field as u8));
        assert_eq!(sizes, [1, 2, 4, 8, 1, 2, 4, 8, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn numbers_are_compared_by_their_sign() {
        let minus_one = number(Field::I16 as u8, 0xffff);
        assert_eq!(minus_one, u64::MAX);
        assert!(holds(&test(Field::I16, Compare::Less, 0), minus_one));
        assert!(!holds(&test(Field::U64, Compare::Less, 0), minus_one));
        assert!(holds(&test(Field::I16, Compare::Equal, u64::MAX), minus_one));
        assert_eq!(number(Field::U16 as u8, 0xffff), 0xffff);
        assert_eq!(number(Field::I8 as u8, 0x80), 0x80_u64.wrapping_sub(0x100));
        assert_eq!(number(Field::I32 as u8, 0x7fff_ffff), 0x7fff_ffff);
        assert!(holds(&test(Field::I32, Compare::AtMost, 5), 5));
        assert!(!holds(&test(Field::I32, Compare::Less, 5), 5));
        assert!(holds(&test(Field::U8, Compare::HasBits, 6), 4));
        assert!(!holds(&test(Field::U8, Compare::HasBits, 6), 1));
    }

    #[test]
    fn a_text_is_where_its_word_says() {
        let at =
            |field, offset, word| place(&Test { offset, ..test(field, Compare::Equal, 0) }, word);
        assert_eq!(at(Field::DataLoc, 8, 5 << 16 | 0x40), (0x40, 5));
        assert_eq!(at(Field::RelLoc, 8, 5 << 16 | 0x40), (0x4c, 5));
    }
}
