//! Reads profiles of pprof, whoever wrote them:
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>.

mod tables;
#[cfg(test)]
pub(super) mod tests;

use std::{
    borrow::Cow,
    io::{self, Read as _},
    sync::Arc,
};

use flate2::bufread::MultiGzDecoder;
use prost::Message;

use self::tables::Tables;
use super::{
    Budget, Error, Imported, Label, LabelValue, Limits, Stack, ValueType,
    wire::{Field, Fields, Value},
};
use crate::profile_proto as proto;

/// Reads a profile, gzipped or not.
///
/// ```
/// use profiler_profile::import::{Limits, pprof};
/// let error = pprof::read(b"no profile", &Limits::default()).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "byte 0 of the decompressed profile: no field begins so: this is no profile of pprof"
/// );
/// ```
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Imported, Error> {
    let bytes = decompressed(bytes, limits.bytes)?;
    let mut budget = Budget::new(limits.things);
    let tables = Tables::read(&bytes, &mut budget)?;
    let mut profile = Imported::default();
    let mut head = Head::default();
    // What samples refer to may come behind them.
    for field in Fields::of(&bytes) {
        let Field { at, number, value } = field?;
        match (number, value) {
            (1, Value::Bytes(message)) => {
                budget.take(1)?;
                profile
                    .value_types
                    .push(tables.value_type(&decode(message, at, "type", &budget)?, at)?);
            }
            (9, Value::Varint(ns)) => profile.begun_ns = some(ns),
            (10, Value::Varint(ns)) => profile.duration_ns = some(ns),
            (11, Value::Bytes(message)) => {
                head.period_type =
                    Some(tables.value_type(&decode(message, at, "type", &budget)?, at)?);
            }
            (12, Value::Varint(period)) => head.period = period.cast_signed(),
            (13, value) => {
                let part = repeated(13, value);
                let part: proto::Profile = decode(&part, at, "comments", &budget)?;
                budget.take(part.comment.len())?;
                for text in part.comment {
                    profile.comments.push(tables.text(text, at)?.as_ref().into());
                }
            }
            (14, Value::Varint(text)) => {
                head.default = Some(Arc::clone(tables.text(text.cast_signed(), at)?));
            }
            // Samples are next, others were before.
            _ => {}
        }
    }
    if profile.value_types.is_empty() {
        let what = "the profile ends without saying what its values are".into();
        return Err(Error::Byte { at: bytes.len(), what });
    }
    profile.period = head.period_type.filter(|_| head.period > 0).map(|it| (it, head.period));
    // Where none is said to be, it is the last.
    let is_default = |it: &ValueType| head.default.as_ref().is_some_and(|name| it.name == *name);
    let last = profile.value_types.len().saturating_sub(1);
    profile.default_value = profile.value_types.iter().position(is_default).unwrap_or(last);
    for field in Fields::of(&bytes) {
        let Field { at, number, value } = field?;
        if let (2, Value::Bytes(message)) = (number, value) {
            let sample = decode(message, at, "sample", &budget)?;
            let stack = stack(sample, at, &tables, profile.value_types.len(), &mut budget)?;
            profile.stacks.push(stack);
        }
    }
    profile.frames = tables.frames;
    Ok(profile)
}

/// What is said once, as far as it depends on what comes later.
#[derive(Default)]
struct Head {
    period_type: Option<ValueType>,
    period: i64,
    default: Option<Arc<str>>,
}

/// A number that is 0 where nothing is known.
fn some(number: u64) -> Option<i64> {
    Some(number.cast_signed()).filter(|it| *it != 0)
}

/// The bytes behind gzip, up to a limit.
fn decompressed(bytes: &[u8], limit: usize) -> Result<Cow<'_, [u8]>, Error> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        let is_small = bytes.len() <= limit;
        return if is_small { Ok(Cow::Borrowed(bytes)) } else { Err(Error::TooLarge { limit }) };
    }
    let mut all = Vec::new();
    let mut gzip = MultiGzDecoder::new(bytes);
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let read: io::Result<usize> = gzip.by_ref().take(most).read_to_end(&mut all);
    match read {
        _ if all.len() > limit => Err(Error::TooLarge { limit }),
        Ok(_) => Ok(Cow::Owned(all)),
        Err(error) => Err(Error::Gzip { bytes: all.len(), why: error.to_string() }),
    }
}

fn decode<M: Message + Default>(
    message: &[u8],
    at: usize,
    what: &str,
    budget: &Budget,
) -> Result<M, Error> {
    // Each number or message in it takes at least a byte of this kind, and several of memory.
    budget.has(message.iter().filter(|byte| **byte < 0x80).count())?;
    let error = |error: prost::DecodeError| Error::Byte { at, what: format!("{what}: {error}") };
    M::decode(message).map_err(error)
}

/// A field of numbers as a message of its own: they may stand each by itself, or all behind one another.
fn repeated(number: u32, value: Value<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    match value {
        Value::Varint(value) => {
            prost::encoding::uint64::encode(number, &value, &mut message);
        }
        Value::Bytes(bytes) => {
            prost::encoding::bytes::encode(number, &bytes.to_vec(), &mut message);
        }
        Value::Other => {}
    }
    message
}

fn stack(
    sample: proto::Sample,
    at: usize,
    tables: &Tables,
    values: usize,
    budget: &mut Budget,
) -> Result<Stack, Error> {
    let proto::Sample { location_id, value, label } = sample;
    if value.len() != values {
        let what = format!("the sample has {} values of {values} types", value.len());
        return Err(Error::Byte { at, what });
    }
    budget.take(1 + values + label.len())?;
    let mut frames = Vec::new();
    for id in location_id {
        let of_location = tables.location(id, at)?;
        budget.take(of_location.len())?;
        frames.extend(of_location);
    }
    let mut labels = Vec::with_capacity(label.len());
    for proto::Label { key, str, num, .. } in label {
        let key = Arc::clone(tables.text(key, at)?);
        let value = match str {
            0 => LabelValue::Number(num),
            text => LabelValue::Text(Arc::clone(tables.text(text, at)?)),
        };
        labels.push(Label { key, value });
    }
    Ok(Stack { frames, labels, values: value })
}
