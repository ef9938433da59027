//! Strings of the interpreter.

use crate::{
    code::Unnamed,
    memory::{Memory, half_in, is_object, word_in},
    offsets::TextOffsets,
};

/// The most characters that are read; what follows is cut off.
pub const MAX_CHARS: usize = 4096;
/// As much is read at once: the head, and most names.
const FIRST_BYTES: usize = 192;

/// How a string is kept: `kind`, `compact` and `ascii`, from the lowest bit on.
const KIND: u32 = 7;
const COMPACT: u32 = 1 << 3;
const ASCII: u32 = 1 << 4;

/// The string at an address, whose type was checked.
pub(crate) fn read(
    memory: &impl Memory,
    offsets: &TextOffsets,
    address: u64,
) -> Result<String, Unnamed> {
    if !is_object(address) {
        return Err(Unnamed::NotCode);
    }
    let mut first = [0; FIRST_BYTES];
    let head_bytes = usize::from(offsets.wide.max(offsets.len + 8).max(offsets.state + 4));
    let mut have = FIRST_BYTES;
    if memory.read(address, &mut first).is_err() {
        // It may be the last one before memory ends.
        have = head_bytes.min(FIRST_BYTES);
        memory.read(address, first.get_mut(..have).unwrap_or_default())?;
    }
    let state = half_in(&first, offsets.state) >> offsets.kind_bit;
    let chars = word_in(&first, offsets.len);
    let (width, is_ascii) = (state & KIND, state & ASCII != 0);
    // All strings of code objects are compact.
    if state & COMPACT == 0 || chars > i64::MAX as u64 || is_ascii && width != 1 {
        return Err(Unnamed::NotCode);
    }
    let at = if is_ascii { offsets.ascii } else { offsets.wide };
    let chars = usize::try_from(chars).unwrap_or(MAX_CHARS).min(MAX_CHARS);
    let width_bytes = usize::try_from(width).map_err(|_| Unnamed::NotCode)?;
    let bytes = chars * width_bytes;
    let there = first.get(..have).and_then(|it| it.get(usize::from(at)..)?.get(..bytes));
    let mut rest = Vec::new();
    let data = match there {
        Some(data) => data,
        None => {
            rest.resize(bytes, 0);
            memory.read(address.wrapping_add(at.into()), &mut rest)?;
            &rest
        }
    };
    let or_replaced = |number| char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER);
    match width {
        1 if is_ascii => {
            String::from_utf8(data.to_vec()).ok().filter(|it| it.is_ascii()).ok_or(Unnamed::NotCode)
        }
        1 => Ok(data.iter().map(|byte| char::from(*byte)).collect()),
        2 => {
            let units = data.as_chunks().0.iter().map(|it| u16::from_le_bytes(*it));
            Ok(units.map(|it| or_replaced(it.into())).collect())
        }
        4 => {
            let units = data.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it));
            Ok(units.map(or_replaced).collect())
        }
        _ => Err(Unnamed::NotCode),
    }
}
