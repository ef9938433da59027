//! How a function takes more and less of the stack, from its first instruction to its last.

use super::{Entry, Pclntab};

/// The most steps of one function. The largest real ones have some thousands.
const MAX_STEPS: usize = 1 << 16;

/// Up to an address a function has taken so many bytes.
pub(super) struct Step {
    pub(super) until: u64,
    pub(super) taken: u32,
}

impl<'d> Pclntab<'d> {
    /// The steps of a function: pairs of how much the bytes that are taken change, as a number with a sign,
    /// and for how many instructions of the smallest size that holds.
    pub(super) fn steps_of(&self, entry: &Entry) -> impl Iterator<Item = Step> + use<'d> {
        let at = usize::try_from(self.steps.saturating_add(entry.steps.into()));
        let mut bytes = self.bytes.get(at.unwrap_or(usize::MAX)..).unwrap_or_default();
        let instruction_bytes = u64::from(self.instruction_bytes);
        let mut until = entry.addresses.start;
        let mut taken = -1_i32;
        let mut is_first = true;
        let next = move || {
            let change = varint(&mut bytes)?;
            if change == 0 && !is_first {
                return None;
            }
            is_first = false;
            let change = (change >> 1).cast_signed() ^ -((change & 1).cast_signed());
            taken = taken.wrapping_add(change);
            // One for no code would take time and say nothing.
            let code = varint(&mut bytes).filter(|code| *code > 0)?;
            until = until.checked_add(u64::from(code).checked_mul(instruction_bytes)?)?;
            Some(Step { until, taken: u32::try_from(taken).ok()? })
        };
        std::iter::from_fn(next).take(MAX_STEPS)
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
