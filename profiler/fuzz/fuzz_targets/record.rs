//! Any bytes in the ring of an event are records or skipped.
#![no_main]

use profiler::perf::record;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(record::parse(bytes).count() <= bytes.len() / 8 + 1);
});
