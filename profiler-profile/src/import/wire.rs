//! The fields of a protobuf message, with where each begins:
//! <https://protobuf.dev/programming-guides/encoding/>.

use super::Error;

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field<'a> {
    /// Where it begins.
    pub(super) at: usize,
    /// Its number.
    pub(super) number: u64,
    pub(super) value: Value<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Varint(u64),
    /// A message, a text, or a list of numbers.
    Bytes(&'a [u8]),
    /// Numbers of fixed length, which no profile has.
    Other,
}

/// The fields of a message one after another; after an error none.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        self.at += length;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let &[byte] = self.take(1)? else { return None };
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << shift;
            // The tenth byte has room for one bit.
            if shifted >> shift != bits {
                return None;
            }
            number |= shifted;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn field(&mut self) -> Result<Field<'a>, &'static str> {
        const CUT: &str = "the field is cut short";
        const NO_NUMBER: &str = "a number is cut short, or has more than 64 bits";
        let at = self.at;
        let key = self.varint().ok_or(NO_NUMBER)?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint().ok_or(NO_NUMBER)?),
            1 => self.take(8).map(|_| Value::Other).ok_or(CUT)?,
            2 => {
                let length = self.varint().ok_or(NO_NUMBER)?;
                let length = usize::try_from(length).map_err(|_| CUT)?;
                Value::Bytes(self.take(length).ok_or(CUT)?)
            }
            5 => self.take(4).map(|_| Value::Other).ok_or(CUT)?,
            _ => return Err("no field begins so: this is no profile of pprof"),
        };
        Ok(Field { at, number: key >> 3, value })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let at = self.at;
        let field = self.field().map_err(|what| Error::Byte { at, what: what.into() });
        if field.is_err() {
            self.bytes = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(bytes: &[u8]) -> Vec<Result<(usize, u64, Value<'_>), usize>> {
        fn one(field: Result<Field<'_>, Error>) -> Result<(usize, u64, Value<'_>), usize> {
            match field {
                Ok(Field { at, number, value }) => Ok((at, number, value)),
                Err(Error::Byte { at, .. }) => Err(at),
                Err(error) => panic!("{error}"),
            }
        }
        // One more than can be in so many bytes.
        Fields::of(bytes).take(bytes.len() + 1).map(one).collect()
    }

    #[test]
    fn fields_have_their_places() {
        let message =
            [8, 0x96, 1, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(
            fields(&message),
            [
                Ok((0, 1, Value::Varint(150))),
                Ok((3, 2, Value::Bytes(b"hi"))),
                Ok((7, 3, Value::Other)),
                Ok((12, 4, Value::Other)),
            ]
        );
        let most = [8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(fields(&most), [Ok((0, 1, Value::Varint(u64::MAX)))]);
    }

    #[test]
    fn what_is_no_field_ends_it() {
        for bytes in [
            &[8, 1, 8][..],
            &[8, 1, 8, 0x80],
            &[8, 1, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
            &[8, 1, 8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
            &[8, 1, 0x12, 2, 0],
            &[8, 1, 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[8, 1, 0x1d, 1, 2, 3],
            &[8, 1, 0x0b, 0x0c],
        ] {
            assert_eq!(fields(bytes), [Ok((0, 1, Value::Varint(1))), Err(2)], "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in any::<Vec<u8>>()) {
            prop_assert!(fields(&bytes).len() <= bytes.len());
        }
    }
}
