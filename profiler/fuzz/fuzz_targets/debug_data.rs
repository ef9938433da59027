//! Any bytes are packed, or not: never more than the limit comes out.
#![no_main]

use std::time::{Duration, Instant};

use profiler_symbols::debug_data;

const LIMIT_BYTES: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let unpacked = debug_data::unpack(bytes, LIMIT_BYTES, Instant::now() + Duration::from_secs(3));
    assert!(unpacked.is_none_or(|it| it.len() <= LIMIT_BYTES));
});
