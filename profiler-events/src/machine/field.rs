//! The fields that a PMU's number for an event is made of.

use std::str::FromStr;

/// A part of `perf_event_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Register {
    Config,
    Config1,
    Config2,
    Config3,
}

impl Register {
    /// The one of this name, which is also that of a term.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "config" => Self::Config,
            "config1" => Self::Config1,
            "config2" => Self::Config2,
            "config3" => Self::Config3,
            _ => return None,
        })
    }
}

/// Where a value goes: bits of a register, the lowest bit of the value into the lowest of them.
///
/// <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-event_source-devices-format>
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) register: Register,
    /// Never 0.
    mask: u64,
}

/// Text that describes no field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoField;

impl FromStr for Field {
    type Err = NoField;

    /// Reads `config1:1,6-10,44`.
    fn from_str(text: &str) -> Result<Self, NoField> {
        let (register, bits) = text.trim().split_once(':').ok_or(NoField)?;
        let register = Register::named(register).ok_or(NoField)?;
        let mut mask = 0;
        for range in bits.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bit = |text: &str| text.parse::<u32>().ok().filter(|it| *it < u64::BITS);
            let (first, last) = bit(first).zip(bit(last)).ok_or(NoField)?;
            if first > last {
                return Err(NoField);
            }
            mask |= u64::MAX >> (u64::BITS - 1 - (last - first)) << first;
        }
        Ok(Self { register, mask })
    }
}

impl Field {
    /// In bits.
    pub(super) fn width(self) -> u32 {
        self.mask.count_ones()
    }

    /// The largest value that fits.
    pub(super) fn largest(self) -> u64 {
        u64::MAX >> self.mask.count_zeros()
    }

    /// The register, with the value in place of what the field had; `None` if the value does not fit.
    pub(super) fn put(self, value: u64, register: u64) -> Option<u64> {
        (value <= self.largest()).then(|| register & !self.mask | self.spread(value))
    }

    /// The bits of the value at those of the mask.
    fn spread(self, value: u64) -> u64 {
        let places = (0..u64::BITS).filter(|bit| self.mask >> bit & 1 == 1);
        places.enumerate().fold(0, |spread, (nth, bit)| spread | (value >> nth & 1) << bit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_go_where_the_format_says() {
        let field: Field = "config:0-7,32-35".parse().unwrap();
        assert_eq!((field.width(), field.largest()), (12, 0xfff));
        assert_eq!(field.put(0x28f, 0), Some(0x2_0000_008f));
        assert_eq!(field.put(0x1000, 0), None);
        // what was there is replaced, and the rest is left
        assert_eq!(field.put(0x1, 0x5_0000_12ff), Some(0x5_0000_12ff & !0xf_0000_00ff | 1));

        let field: Field = "config1:1,6-10,44".parse().unwrap();
        assert_eq!(field.register, Register::Config1);
        assert_eq!(field.put(0b111_1111, 0), Some(1 << 44 | 0x7c0 | 2));

        let field: Field = "config2:0-63".parse().unwrap();
        assert_eq!(field.put(u64::MAX, 0), Some(u64::MAX));
        assert_eq!("config3:5".parse::<Field>().unwrap().largest(), 1);
    }

    #[test]
    fn other_text_is_no_field() {
        for text in
            ["", "config", "config:", "config:64", "config:3-1", "conf:1", "config:1,", "config:-1"]
        {
            assert_eq!(text.parse::<Field>(), Err(NoField), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_value_that_fits_can_be_read_back(mask in 1_u64.., value: u64, register: u64) {
            let field = Field { register: Register::Config, mask };
            let value = value & field.largest();
            let put = field.put(value, register).unwrap();
            prop_assert_eq!(put & !mask, register & !mask);
            let mut bits = (0..64).filter(|bit| mask >> bit & 1 == 1);
            for nth in 0..field.width() {
                prop_assert_eq!(put >> bits.next().unwrap() & 1, value >> nth & 1);
            }
        }
    }
}
